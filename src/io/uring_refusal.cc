// SPDX-License-Identifier: Apache-2.0
#include "io/uring_refusal.h"

#include <cerrno>
#include <string>

namespace infercluster::io {

Error uring_refusal(int system_errno, std::optional<int> disabled) {
  if (system_errno == EPERM && disabled == 2) {
    return Error::from_errno(system_errno, "io_uring is switched off on this machine (kernel.io_uring_disabled = 2)")
        .with_hint("An administrator can switch it on: sysctl kernel.io_uring_disabled=0");
  }
  if (system_errno == EPERM && disabled == 1) {
    return Error::from_errno(system_errno, "io_uring is for privileged processes only (kernel.io_uring_disabled = 1)")
        .with_hint("Add this user to the group kernel.io_uring_group, or: sysctl kernel.io_uring_disabled=0");
  }
  if (system_errno == EPERM || system_errno == EACCES) {
    return Error::from_errno(system_errno, "io_uring is refused, as the default seccomp profiles of containers do")
        .with_hint("Allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile");
  }
  if (system_errno == ENOSYS) {
    return Error::from_errno(system_errno,
                             "io_uring is not there (a kernel before 5.11, or a seccomp filter that hides it)")
        .with_hint("Allow io_uring_setup, io_uring_enter and io_uring_register, or use Linux 5.11 or later");
  }
  if (system_errno == ENOMEM) {
    return Error::from_errno(system_errno, "io_uring found no memory for its rings (they count as locked memory)")
        .with_hint("Raise the limit of locked memory: ulimit -l, LimitMEMLOCK= or --ulimit memlock=");
  }
  return Error::from_errno(system_errno, "io_uring cannot be used");
}

}  // namespace infercluster::io
