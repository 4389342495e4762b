// SPDX-License-Identifier: Apache-2.0
// The admin queue: what both discovery and reading begin with.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "initiator/channel.h"
#include "initiator/options.h"
#include "nvme/identify.h"

namespace infercluster::initiator {

// Who this host says it is to `subsystem`. Errors: invalid_argument (the NQN is none).
Result<nvme::ConnectData> who_am_i(const HostOptions& options, std::string subsystem);

// All of one connecting ends after the time for it.
ChannelOptions bounded(const HostOptions& options);

struct Admin {
  std::unique_ptr<Channel> channel;
  std::uint16_t controller_id = 0;
  nvme::Capabilities capabilities;
};
// Connects the admin queue and enables the controller. Errors: those of Channel; unsupported.
Result<Admin> open_admin(const os::SocketAddress& address, const nvme::ConnectData& self, const HostOptions& options,
                         const ChannelOptions& bounds, std::uint32_t keep_alive_ms);

// Tells the target goodbye, and does not mind when it does not answer.
void shut_down(Channel& channel);

// The page of an answer to Identify.
std::span<const std::byte, nvme::kIdentifyBytes> identify_page(const Channel::Reply& reply);

// What a discovery controller at an address knows. Errors: those of Channel.
Result<nvme::DiscoveryLog> discover(const os::SocketAddress& address, const HostOptions& options);

}  // namespace infercluster::initiator
