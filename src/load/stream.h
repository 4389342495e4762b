// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "base/result.h"
#include "load/job.h"

namespace infercluster::load {

// Yields each tensor as soon as its bytes are there, within a window of memory. The window holds blocks; a block is
// reused when no tensor of it is referenced. A block that the consumer keeps a tensor of is donated to it and replaced;
// more donated bytes than the window is an error. Thread-safe. Destruction cancels, and waits until no read is in
// flight; tensors that were handed out stay valid.
class Stream {
 public:
  // `options.into` must be empty. A window too small for the largest tensor is refused, with the figure that is needed.
  static Result<std::unique_ptr<Stream>> start(std::shared_ptr<const Repository> repository, const Options& options,
                                               const Environment& environment);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  enum class State : std::uint8_t { tensor, waiting, ended };
  struct Next {
    State state = State::waiting;
    std::optional<LoadedTensor> tensor;
  };
  // The next tensor, in order of delivery; `waiting` when none came within `timeout`. An error ends the stream.
  Result<Next> next(std::chrono::nanoseconds timeout);
  void cancel();
  [[nodiscard]] Progress progress() const;
  // So far; complete once next() said `ended`.
  [[nodiscard]] Report report() const;

 private:
  struct Impl;
  explicit Stream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace infercluster::load
