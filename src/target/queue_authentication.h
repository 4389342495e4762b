// SPDX-License-Identifier: Apache-2.0
// The authentication of one queue: the commands that carry it, and how long it may take. NVM Express Base Specification
// 2.0, sections 6.1 and 6.2 (Authentication Receive and Send).
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/clock.h"
#include "nvme/authentication.h"
#include "nvme/controller.h"

namespace infercluster::target {

// Thread rule: one thread at a time.
class QueueAuthentication {
 public:
  // `credentials` must outlive it. A host that has not proven itself by `deadline` is to be refused.
  QueueAuthentication(const nvme::Credentials& credentials, nvme::AuthParties parties, Clock::TimePoint deadline);

  static bool concerns(const nvme::Command& command);
  // The reply to a command that concerns it; `in_capsule` is the data that came with it.
  nvme::Reply answer(const nvme::Command& command, std::span<const std::byte> in_capsule);

  [[nodiscard]] bool authenticated() const { return exchange_.authenticated(); }
  // The host was refused, and has been told: its connection is to end.
  [[nodiscard]] bool failed() const { return exchange_.failed(); }
  [[nodiscard]] bool overdue(Clock::TimePoint now) const { return !authenticated() && !failed() && now > deadline_; }
  // Who was refused and why, for those who run the target.
  [[nodiscard]] std::string refusal() const;

 private:
  nvme::Reply send(const nvme::Command& command, std::span<const std::byte> in_capsule);
  nvme::Reply receive(const nvme::Command& command);

  std::string host_nqn_;
  Clock::TimePoint deadline_;
  nvme::ControllerAuthentication exchange_;
};

}  // namespace infercluster::target
