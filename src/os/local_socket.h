// SPDX-License-Identifier: Apache-2.0
// Messages and descriptors between processes of one user on one machine. Their names are in no file system, so nothing
// is left behind, and the kernel tells when the process at the other end is gone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"

namespace infercluster::os {

// Processes for which this is equal reach each other by name: the same boot of a kernel, namespaces of network and
// users, and user.
// Empty: the system does not say.
std::string socket_neighbourhood();

// One end of a connection. Thread rule: one thread.
class LocalSocket {
 public:
  explicit LocalSocket(Fd fd) : fd_(std::move(fd)) {}
  // A listener of that name must be there.
  static Result<LocalSocket> connect(const std::string& name);

  // `passed`: a descriptor that goes along; -1: none. Errors: timed_out; io (the other process is gone).
  Status send(std::string_view message, int passed, Clock::TimePoint deadline);
  struct Message {
    std::string bytes;
    Fd passed;  // invalid: none came along
  };
  // Errors: timed_out; io (the other process is gone); too_large.
  Result<Message> receive(std::uint64_t bytes_max, Clock::TimePoint deadline);
  // Whether something is there to receive, or the other process is gone, by `until` (in the past: looks once).
  [[nodiscard]] bool wait_readable(Clock::TimePoint until) const;
  // The other end is closed; what it sent before does not count.
  [[nodiscard]] bool ended() const;

 private:
  Fd fd_;
};

class LocalListener {
 public:
  // Listens when this returns. Errors: io, permission.
  static Result<LocalListener> open(const std::string& name, int backlog);
  // Nothing by `until` (in the past: looks once). Other users' processes are turned away.
  Result<std::optional<LocalSocket>> accept(Clock::TimePoint until);

 private:
  explicit LocalListener(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace infercluster::os
