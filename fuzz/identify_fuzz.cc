// SPDX-License-Identifier: Apache-2.0
// Any bytes as what a target answers to Identify and Get Log Page. What must hold: no fault; what is read is written
// again to something that reads the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/assert.h"
#include "nvme/identify.h"

namespace infercluster::nvme {
namespace {

void check(std::span<const std::byte> input) {
  std::array<std::byte, kIdentifyBytes> page{};
  std::copy_n(input.begin(), std::min(input.size(), page.size()), page.begin());
  const std::span<std::byte, kIdentifyBytes> fixed(page);
  std::array<std::byte, kIdentifyBytes> again{};

  const IdentifyController controller = decode_identify_controller(fixed);
  encode(controller, std::span<std::byte, kIdentifyBytes>(again));
  IC_ASSERT(decode_identify_controller(again) == controller);
  const IdentifyNamespace name_space = decode_identify_namespace(fixed);
  encode(name_space, std::span<std::byte, kIdentifyBytes>(again));
  IC_ASSERT(decode_identify_namespace(again) == name_space);
  const std::vector<std::uint32_t> ids = decode_namespace_list(fixed);
  encode_namespace_list(ids, std::span<std::byte, kIdentifyBytes>(again));
  IC_ASSERT(decode_namespace_list(again) == ids);
  (void)decode_namespace_descriptors(fixed);

  const Result<DiscoveryLog> log = decode_discovery_log(input);
  if (log.ok()) {
    const Result<DiscoveryLog> same = decode_discovery_log(encode(*log));
    IC_ASSERT(same.ok() && *same == *log);
  } else {
    IC_ASSERT(!log.error().message().empty());
  }
}

}  // namespace
}  // namespace infercluster::nvme

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  infercluster::nvme::check(std::as_bytes(std::span(data, size)));
  return 0;
}
