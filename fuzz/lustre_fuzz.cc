// SPDX-License-Identifier: Apache-2.0
// Layouts as a Lustre client gives them: whatever decodes has components, and pools that fit.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "pfs/wire.h"

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto components = infercluster::pfs::decode_lustre(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!components.ok()) return 0;
  if (components->empty()) std::abort();
  for (const auto& component : *components)
    if (component.stripes.pool.size() > infercluster::pfs::kLustrePoolBytesMax + 1) std::abort();
  return 0;
}
