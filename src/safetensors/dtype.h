// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace infercluster::safetensors {

// The element types of the safetensors format, in the order in which a writer sorts them.
enum class Dtype : std::uint8_t {
  u64,
  i64,
  f64,
  c64,
  f32,
  u32,
  i32,
  bf16,
  f16,
  u16,
  i16,
  f8_e5m2fnuz,
  f8_e4m3fnuz,
  f8_e8m0,
  f8_e4m3,
  f8_e5m2,
  i8,
  u8,
  f6_e3m2,
  f6_e2m3,
  f4,
  boolean,
};
inline constexpr int kDtypeCount = 22;

std::string_view name_of(Dtype dtype);  // as in a header: "F32", "F8_E4M3", "BOOL"
std::optional<Dtype> parse_dtype(std::string_view name);
unsigned bits_of(Dtype dtype);  // per element
unsigned alignment_of(
    Dtype dtype);  // bytes that a host pointer to it needs: 8 for F64, 4 for C64 and F32, 1 for F8, F6 and F4

}  // namespace infercluster::safetensors
