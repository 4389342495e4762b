// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <thread>

#include "base/assert.h"

namespace infercluster::testing {

// Seccomp filters as containers have them. A filter holds for the thread that installs it, and those it starts, for
// good: so a test runs its body in a thread of its own. No privilege is needed.
class Refusals {
 public:
  // Runs `body` in a thread in which openat with O_DIRECT fails with `system_errno`.
  static void without_direct_opens(std::uint32_t system_errno, const std::function<void()>& body) {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                 offsetof(seccomp_data, args[2])),  // the lower half, on little-endian machines
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_DIRECT, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | system_errno),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    run(filter, std::size(filter), body);
  }

  // Runs `body` in a thread in which `call` (SYS_io_uring_setup, ...) fails with `system_errno`.
  static void without(long call, std::uint32_t system_errno, const std::function<void()>& body) {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(call), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | system_errno),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    run(filter, std::size(filter), body);
  }

 private:
  static void run(sock_filter* filter, std::size_t length, const std::function<void()>& body) {
    std::thread thread([&] {
      const sock_fprog program{.len = static_cast<unsigned short>(length), .filter = filter};
      IC_ASSERT(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
      IC_ASSERT(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
      body();
    });
    thread.join();
  }
};

}  // namespace infercluster::testing
