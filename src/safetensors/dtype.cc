// SPDX-License-Identifier: Apache-2.0
#include "safetensors/dtype.h"

#include <array>

#include "base/assert.h"

namespace infercluster::safetensors {
namespace {

struct Traits {
  std::string_view name;
  std::uint8_t bits;
  std::uint8_t alignment;  // bytes
};

// In the order of the enumeration.
constexpr std::array<Traits, kDtypeCount> kTraits{{
    {"U64", 64, 8},    {"I64", 64, 8},        {"F64", 64, 8},        {"C64", 64, 4},    {"F32", 32, 4},
    {"U32", 32, 4},    {"I32", 32, 4},        {"BF16", 16, 2},       {"F16", 16, 2},    {"U16", 16, 2},
    {"I16", 16, 2},    {"F8_E5M2FNUZ", 8, 1}, {"F8_E4M3FNUZ", 8, 1}, {"F8_E8M0", 8, 1}, {"F8_E4M3", 8, 1},
    {"F8_E5M2", 8, 1}, {"I8", 8, 1},          {"U8", 8, 1},          {"F6_E3M2", 6, 1}, {"F6_E2M3", 6, 1},
    {"F4", 4, 1},      {"BOOL", 8, 1},
}};

const Traits& traits_of(Dtype dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  IC_ASSERT(index < kTraits.size());
  return kTraits[index];
}

}  // namespace

std::string_view name_of(Dtype dtype) {
  return traits_of(dtype).name;
}

std::optional<Dtype> parse_dtype(std::string_view name) {
  for (std::size_t i = 0; i < kTraits.size(); ++i) {
    if (kTraits[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

unsigned bits_of(Dtype dtype) {
  return traits_of(dtype).bits;
}

unsigned alignment_of(Dtype dtype) {
  return traits_of(dtype).alignment;
}

}  // namespace infercluster::safetensors
