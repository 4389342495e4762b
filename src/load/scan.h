// SPDX-License-Identifier: Apache-2.0
// Reads whole files from their first byte to their last, for those who look at every byte: sealing and verifying.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "io/backend.h"
#include "io/source.h"
#include "load/job.h"

namespace infercluster::load {

struct ScanOptions {
  io::DirectPolicy direct = io::DirectPolicy::automatic;
  io::BackendOptions backend;
};

// One file after another over one backend and one ring of 32 MiB, so that the device stays busy while bytes are looked
// at. Thread rule: one thread, on which the callbacks are called.
class Scanner {
 public:
  // `environment` is borrowed.
  static Result<std::unique_ptr<Scanner>> open(const ScanOptions& options, const Environment& environment);
  ~Scanner();
  Scanner(const Scanner&) = delete;
  Scanner& operator=(const Scanner&) = delete;

  using Visit = std::function<Status(std::span<const std::byte> bytes)>;  // in file order, without gaps; an error ends
                                                                          // the scan with it
  using KeepGoing = std::function<bool()>;  // asked several times a second; false ends the scan: cancelled

  struct Scanned {
    os::FileIdentity identity;
    io::FileMode mode = io::FileMode::buffered;
    std::string reason;
  };
  // A file that changes under the scan is an error (code changed), whatever was visited.
  Result<Scanned> scan(const std::string& path, const Visit& visit, const KeepGoing& keep_going);

 private:
  struct Impl;
  explicit Scanner(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace infercluster::load
