// SPDX-License-Identifier: Apache-2.0
// What a target must not forget: who it is, which addresses it has ever given out, and which file is at which. Without
// it the namespace is a new one, with a new UUID, so that no host takes new bytes for old ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "nvme/fabrics.h"
#include "os/file.h"

namespace infercluster::target {

// Addresses are made durable in steps, so that most objects need no write of their own before they are served.
inline constexpr std::uint64_t kHighWaterStepBlocks = (std::uint64_t{1} << 40) / 4096;

struct KnownObject {
  std::uint64_t first_block = 0;
  os::FileIdentity identity;
  std::string path;
  bool operator==(const KnownObject&) const = default;
};

struct State {
  nvme::Uuid uuid{};
  std::string nqn;
  std::string serial;
  std::uint64_t high_water_block = 0;  // no address from here on was ever given out
  std::vector<KnownObject> objects;
  bool operator==(const State&) const = default;
};

// A new identity, by the kernel's random numbers, and a beginning for its addresses in the lower half of the space.
// `nqn` empty: one from the UUID.
Result<State> new_state(std::string nqn);

std::string encode(const State& state);
// Errors: corrupt (damaged, or written by hand); unsupported (a newer format).
Result<State> decode_state(std::string_view text);

// Held as long as the descriptor is open: two targets must not give out addresses by one state. The lock is on an empty
// file beside it, "PATH.lock", which stays. Error invalid_argument: another process has it.
Result<Fd> lock_state(const std::string& path);
// nullopt: there is no such file.
Result<std::optional<State>> load_state(const std::string& path);
// Durable when it returns.
Status save_state(const std::string& path, const State& state);

}  // namespace infercluster::target
