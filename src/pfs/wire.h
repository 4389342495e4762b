// SPDX-License-Identifier: Apache-2.0
// The structures that Lustre's and GPFS's calls take, as bytes: pure. Host-endian, without padding that is not theirs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace infercluster::pfs {

// Lustre: lustre_user.h, struct lov_user_md_v1 and _v3.
struct LustreStripes {
  std::uint32_t stripe_bytes = 0;  // a multiple of 64 KiB; 0: the file system's default
  std::uint16_t stripe_count = 0;  // 0: the file system's default; 0xFFFF: over all targets
  std::string pool;                // at most 15 bytes; empty: none
};
inline constexpr std::uint32_t kLustreStripeUnit = 65536;
inline constexpr unsigned kLustreStripesMax = 160;  // without the ea_inode feature of the metadata target
inline constexpr std::size_t kLustrePoolBytesMax = 15;
inline constexpr const char* kLustreLayoutName = "lustre.lov";
inline constexpr unsigned long kLustreSetStripe = 0x4008669A;  // LL_IOC_LOV_SETSTRIPE: _IOW('f', 154, long)

// The header alone, 32 bytes, or 48 with a pool; the server chooses the targets.
std::string encode_lustre(const LustreStripes& stripes);

struct LustreComponent {
  std::uint64_t start = 0;  // bytes of the file that it covers
  std::uint64_t end = 0;    // ~0: to the end
  LustreStripes stripes;
};
// What "lustre.lov" reads as: one component for plain layouts (v1, v3), several for composite ones (progressive,
// mirrored). Errors: corrupt; unsupported (a magic that we do not know).
Result<std::vector<LustreComponent>> decode_lustre(std::string_view bytes);

// GPFS: gpfs_fcntl.h. The argument of gpfs_fcntl that says: this node will write [0, length) of the file (48 bytes).
std::string encode_gpfs_write_hint(std::uint64_t length);

}  // namespace infercluster::pfs
