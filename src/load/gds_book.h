// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "gpu/cufile.h"
#include "io/engine.h"
#include "load/options.h"
#include "load/target.h"

namespace infercluster::load {

// What this process knows of GPUDirect Storage: cuFile, once it was worth opening (about 2 s), and for each mount and
// device which way was measured to be faster. Thread-safe; lives as long as the process, or as what it gave.
class GdsBook {
 public:
  // Opening cuFile takes as long as a device reads this many bytes: below it there is nothing to win.
  static constexpr std::uint64_t kLoadMin = 4ull << 30;
  explicit GdsBook(std::uint64_t load_min = kLoadMin) : load_min_(load_min) {}

  struct Question {
    Gds policy = Gds::automatic;
    Target& target;                                                    // of a device
    const io::FileSource& largest;                                     // of the files that would be read so
    std::uint64_t bytes = 0;                                           // of all of them
    std::uint64_t slot_bytes = 0;                                      // of the load's rings
    std::function<Result<std::unique_ptr<io::Engine>>()> open_engine;  // for the probe
    const Clock& clock;
  };
  struct Answer {
    std::shared_ptr<gpu::CuFile> cufile;  // null: take the ring of host memory
    std::string reason;                   // in words, with figures
  };
  // Errors, for Gds::always alone: unsupported, where GDS is not real.
  Result<Answer> ask(const Question& question);

 private:
  Result<std::shared_ptr<gpu::CuFile>> open(const std::shared_ptr<gpu::Device>& device);
  static Result<Answer> measure(const Question& question, const std::shared_ptr<gpu::CuFile>& cufile);

  const std::uint64_t load_min_;  // smaller loads do not ask cuFile, with Gds::automatic
  std::mutex mutex_;
  std::map<int, std::shared_ptr<gpu::CuFile>> open_;         // by ordinal; guarded by mutex_
  std::map<std::pair<std::uint64_t, int>, Answer> answers_;  // by file system and ordinal; guarded by mutex_
};

}  // namespace infercluster::load
