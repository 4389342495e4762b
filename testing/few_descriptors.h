// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/assert.h"

namespace infercluster::testing {

// While it lives, this process can open `left` more files than it has open, if none of those is closed; then EMFILE.
class FewDescriptors {
 public:
  explicit FewDescriptors(unsigned left) {
    IC_ASSERT(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const int lowest = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    IC_ASSERT(lowest >= 0 && ::close(lowest) == 0);
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(lowest) + left;
    IC_ASSERT(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  }
  ~FewDescriptors() { IC_ASSERT(::setrlimit(RLIMIT_NOFILE, &before_) == 0); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace infercluster::testing
