// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "initiator/channel.h"
#include "nvme/auth_secret.h"

namespace infercluster::initiator {

// What comes after Connect on each queue: this host proves itself where the target asks for that, and the target where
// there is a secret of its own (DH-HMAC-CHAP). `self` is what the Connect said. Errors: permission (the target wants a
// proof and there is no secret; it refuses it; it does not prove itself as it is to, or asks for nothing although it
// is); those of Channel.
Status authenticate(Channel& channel, const nvme::Connected& connected, const nvme::ConnectData& self,
                    const std::optional<nvme::Credentials>& credentials);

}  // namespace infercluster::initiator
