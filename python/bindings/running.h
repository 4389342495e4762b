// SPDX-License-Identifier: Apache-2.0
// Objects of the core with threads of their own, as Python holds them.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "errors.h"
#include "gil.h"

namespace infercluster::python {

// What several Python threads may use, and one may close meanwhile: it ends when the last call on it
// has returned. In a forked child, where its threads do not exist, it is left alone.
template <typename T>
class Running {
 public:
  explicit Running(std::unique_ptr<T> running) : running_(std::move(running)) {}
  Running(Running&&) noexcept = default;
  Running& operator=(Running&&) = delete;
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() { close(); }

  // The caller holds the GIL, which guards running_.
  [[nodiscard]] std::shared_ptr<T> get() const {
    if (running_ == nullptr) raise(Error(ErrorCode::invalid_argument, "is closed"));
    if (getpid() != owner_) {
      raise(Error(ErrorCode::unsupported, "this process was forked from the one that made it")
                .with_hint("Use it in the process that made it, or start processes by spawn instead of fork"));
    }
    return running_;
  }

  // Waits until nothing of it runs any more.
  void close() {
    std::shared_ptr<T> running = std::move(running_);
    if (running == nullptr) return;
    if (getpid() != owner_) {
      new std::shared_ptr<T>(std::move(running));  // NOLINT: leaked on purpose
      return;
    }
    without_gil([&] { running.reset(); });
  }

 private:
  std::shared_ptr<T> running_;
  pid_t owner_ = getpid();
};

}  // namespace infercluster::python
