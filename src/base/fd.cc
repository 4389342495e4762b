// SPDX-License-Identifier: Apache-2.0
#include "base/fd.h"

#include <unistd.h>

#include <cerrno>

namespace infercluster {

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

Fd::~Fd() {
  reset();
}

void Fd::reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

int Fd::close_checked() {
  if (fd_ < 0) return EBADF;
  return ::close(std::exchange(fd_, -1)) == 0 ? 0 : errno;
}

}  // namespace infercluster
