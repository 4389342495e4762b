// SPDX-License-Identifier: Apache-2.0
// Child processes, and what a kernel or a container may refuse in them.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "base/assert.h"

namespace infercluster::testing {

// Runs `body` in a forked child and returns what it gives (0 to 255), or -1 when the child died by a signal. The child
// leaves by _exit: gtest's expectations in it are lost, so it says what it found by its return value.
template <typename Body>
int in_child(const Body& body) {
  const pid_t child = ::fork();
  IC_ASSERT(child >= 0);
  if (child == 0) ::_exit(body());
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) IC_ASSERT(errno == EINTR);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct Refusal {
  long number = 0;          // of the system call
  int system_errno = 0;     // what it fails with
  int argument = -1;        // -1: it always fails; 0 to 5: only when of this argument's low word ...
  std::uint32_t mask = 0;   // ... these bits ...
  std::uint32_t value = 0;  // ... are exactly these
};

// Makes one system call fail in this process from now on, by seccomp. There is no way back: for children only.
inline void refuse(const Refusal& refusal) {
  // Little-endian, as all machines that we build for: the low word of an argument comes first.
  const auto argument = static_cast<std::uint32_t>(
      offsetof(seccomp_data, args) +
      sizeof(std::uint64_t) * static_cast<std::size_t>(refusal.argument < 0 ? 0 : refusal.argument));
  const auto number = static_cast<std::uint32_t>(refusal.number);
  const auto failed = static_cast<std::uint32_t>(SECCOMP_RET_ERRNO | static_cast<unsigned>(refusal.system_errno));
  std::array<sock_filter, 7> code{{
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 4, number},
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, argument},
      {BPF_ALU | BPF_AND | BPF_K, 0, 0, refusal.argument < 0 ? 0U : refusal.mask},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, refusal.argument < 0 ? 0U : refusal.value},
      {BPF_RET | BPF_K, 0, 0, failed},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  }};
  const sock_fprog program{.len = static_cast<unsigned short>(code.size()), .filter = code.data()};
  IC_ASSERT(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  IC_ASSERT(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

}  // namespace infercluster::testing
