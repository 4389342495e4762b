// SPDX-License-Identifier: Apache-2.0
// HMAC (RFC 2104) over SHA-2 (FIPS 180-4), and what else is needed to compare and forget secrets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace infercluster::checksum {

enum class Sha2 : std::uint8_t { sha256, sha384, sha512 };

// Bytes of a digest: 32, 48 or 64.
std::size_t digest_bytes(Sha2 hash);

std::vector<std::byte> hmac(Sha2 hash, std::span<const std::byte> key, std::span<const std::byte> message);

// In a time that depends on the lengths alone.
bool equal_secrets(std::span<const std::byte> a, std::span<const std::byte> b);

// Overwrites a secret; unlike a plain store, no compiler leaves it out.
void wipe(std::span<std::byte> secret);

}  // namespace infercluster::checksum
