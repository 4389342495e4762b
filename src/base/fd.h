// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace infercluster {

// Owns one file descriptor; move-only. Closing reports nothing: writers that must know call close_checked().
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd();

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  void reset();
  // Closes, and returns 0 or the errno that close(2) gave. The descriptor is gone either way.
  [[nodiscard]] int close_checked();

 private:
  int fd_ = -1;
};

}  // namespace infercluster
