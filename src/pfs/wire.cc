// SPDX-License-Identifier: Apache-2.0
#include "pfs/wire.h"

#include <sys/ioctl.h>

#include <cstring>

#include "base/assert.h"

namespace infercluster::pfs {
namespace {

static_assert(kLustreSetStripe == _IOW('f', 154, long));

constexpr std::uint32_t kMagicV1 = 0x0BD10BD0;
constexpr std::uint32_t kMagicV3 = 0x0BD30BD0;
constexpr std::uint32_t kMagicComposite = 0x0BD60BD0;
constexpr std::uint32_t kPatternRaid0 = 1;
constexpr std::uint16_t kAnyTarget = 0xFFFF;  // lmm_stripe_offset: the server chooses
constexpr std::size_t kHeaderBytes = 32;      // of v1, and of a composite layout
constexpr std::size_t kPoolBytes = 16;
constexpr std::size_t kComponentBytes = 48;

// Offsets within lov_user_md_v1.
constexpr std::size_t kPatternAt = 4;
constexpr std::size_t kStripeBytesAt = 24;
constexpr std::size_t kStripeCountAt = 28;
constexpr std::size_t kStripeOffsetAt = 30;
// Within lov_comp_md_v1, and within each lov_comp_md_entry_v1 behind it.
constexpr std::size_t kEntryCountAt = 14;
constexpr std::size_t kExtentStartAt = 8;
constexpr std::size_t kExtentEndAt = 16;
constexpr std::size_t kPartOffsetAt = 24;
constexpr std::size_t kPartBytesAt = 28;

constexpr std::int32_t kGpfsVersion = 1;         // GPFS_FCNTL_CURRENT_VERSION
constexpr std::int32_t kGpfsAccessRange = 1001;  // GPFS_ACCESS_RANGE
constexpr std::int32_t kGpfsHeaderBytes = 16;    // gpfsFcntlHeader_t
constexpr std::int32_t kGpfsRangeBytes = 32;     // gpfsAccessRange_t

template <typename Number>
void put(std::string& bytes, std::size_t at, Number value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

template <typename Number>
Number number_at(std::string_view bytes, std::size_t at) {
  Number value{};
  IC_ASSERT(at <= bytes.size() && sizeof(value) <= bytes.size() - at);
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

Error damaged() {
  return Error(ErrorCode::corrupt, "lustre.lov is too short for what it says it is");
}

Result<LustreStripes> decode_plain(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes) return damaged();
  const auto magic = number_at<std::uint32_t>(bytes, 0);
  LustreStripes stripes{.stripe_bytes = number_at<std::uint32_t>(bytes, kStripeBytesAt),
                        .stripe_count = number_at<std::uint16_t>(bytes, kStripeCountAt),
                        .pool = {}};
  if (magic == kMagicV1) return stripes;
  if (magic != kMagicV3) return Error(ErrorCode::unsupported, "lustre.lov is of a kind that is not known");
  if (bytes.size() < kHeaderBytes + kPoolBytes) return damaged();
  const std::string_view pool = bytes.substr(kHeaderBytes, kPoolBytes);
  stripes.pool = pool.substr(0, pool.find('\0'));
  return stripes;
}

}  // namespace

std::string encode_lustre(const LustreStripes& stripes) {
  IC_ASSERT(stripes.stripe_bytes % kLustreStripeUnit == 0 && stripes.pool.size() <= kLustrePoolBytesMax);
  const bool with_pool = !stripes.pool.empty();
  std::string bytes(with_pool ? kHeaderBytes + kPoolBytes : kHeaderBytes, '\0');
  put(bytes, 0, with_pool ? kMagicV3 : kMagicV1);
  put(bytes, kPatternAt, kPatternRaid0);
  put(bytes, kStripeBytesAt, stripes.stripe_bytes);
  put(bytes, kStripeCountAt, stripes.stripe_count);
  put(bytes, kStripeOffsetAt, kAnyTarget);
  if (with_pool) bytes.replace(kHeaderBytes, stripes.pool.size(), stripes.pool);
  return bytes;
}

Result<std::vector<LustreComponent>> decode_lustre(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes) return damaged();
  if (number_at<std::uint32_t>(bytes, 0) != kMagicComposite) {
    IC_TRY(LustreStripes stripes, decode_plain(bytes));
    return std::vector<LustreComponent>{{.start = 0, .end = ~0ULL, .stripes = std::move(stripes)}};
  }
  const std::size_t count = number_at<std::uint16_t>(bytes, kEntryCountAt);
  if (count == 0 || count > (bytes.size() - kHeaderBytes) / kComponentBytes) return damaged();
  std::vector<LustreComponent> components;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view entry = bytes.substr(kHeaderBytes + i * kComponentBytes, kComponentBytes);
    const auto offset = number_at<std::uint32_t>(entry, kPartOffsetAt);
    const auto size = number_at<std::uint32_t>(entry, kPartBytesAt);
    if (offset > bytes.size() || size > bytes.size() - offset) return damaged();
    IC_TRY(LustreStripes stripes, decode_plain(bytes.substr(offset, size)));
    components.push_back({.start = number_at<std::uint64_t>(entry, kExtentStartAt),
                          .end = number_at<std::uint64_t>(entry, kExtentEndAt),
                          .stripes = std::move(stripes)});
  }
  return components;
}

std::string encode_gpfs_write_hint(std::uint64_t length) {
  std::string bytes(kGpfsHeaderBytes + kGpfsRangeBytes, '\0');
  put(bytes, 0, kGpfsHeaderBytes + kGpfsRangeBytes);  // totalLength
  put(bytes, 4, kGpfsVersion);                        // then errorOffset and a reserved field: 0
  put(bytes, 16, kGpfsRangeBytes);                    // structLen
  put(bytes, 20, kGpfsAccessRange);                   // structType; start: 0
  put(bytes, 32, static_cast<std::int64_t>(length));
  put(bytes, 40, std::int32_t{1});  // isWrite; then 4 bytes of padding
  return bytes;
}

}  // namespace infercluster::pfs
