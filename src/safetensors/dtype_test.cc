// SPDX-License-Identifier: Apache-2.0
#include "safetensors/dtype.h"

#include <gtest/gtest.h>

#include <string>

namespace infercluster::safetensors {
namespace {

TEST(Dtype, EveryNameIsParsedBack) {
  for (int i = 0; i < kDtypeCount; ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype) << name_of(dtype);
  }
}

TEST(Dtype, OtherNamesAreRefused) {
  for (const char* name : {"", "f32", "F32 ", "F128", "BOOLEAN", "F8", "bool", "I4"})
    EXPECT_FALSE(parse_dtype(name)) << name;
}

TEST(Dtype, NamesBitsAndAlignmentAreTheFormats) {
  struct Row {
    Dtype dtype;
    const char* name;
    unsigned bits;
    unsigned alignment;
  };
  const Row rows[] = {
      {Dtype::u64, "U64", 64, 8},
      {Dtype::i64, "I64", 64, 8},
      {Dtype::f64, "F64", 64, 8},
      {Dtype::c64, "C64", 64, 4},
      {Dtype::f32, "F32", 32, 4},
      {Dtype::u32, "U32", 32, 4},
      {Dtype::i32, "I32", 32, 4},
      {Dtype::bf16, "BF16", 16, 2},
      {Dtype::f16, "F16", 16, 2},
      {Dtype::u16, "U16", 16, 2},
      {Dtype::i16, "I16", 16, 2},
      {Dtype::f8_e5m2fnuz, "F8_E5M2FNUZ", 8, 1},
      {Dtype::f8_e4m3fnuz, "F8_E4M3FNUZ", 8, 1},
      {Dtype::f8_e8m0, "F8_E8M0", 8, 1},
      {Dtype::f8_e4m3, "F8_E4M3", 8, 1},
      {Dtype::f8_e5m2, "F8_E5M2", 8, 1},
      {Dtype::i8, "I8", 8, 1},
      {Dtype::u8, "U8", 8, 1},
      {Dtype::f6_e3m2, "F6_E3M2", 6, 1},
      {Dtype::f6_e2m3, "F6_E2M3", 6, 1},
      {Dtype::f4, "F4", 4, 1},
      {Dtype::boolean, "BOOL", 8, 1},
  };
  ASSERT_EQ(std::size(rows), static_cast<std::size_t>(kDtypeCount));
  for (const Row& row : rows) {
    EXPECT_EQ(name_of(row.dtype), row.name);
    EXPECT_EQ(bits_of(row.dtype), row.bits) << row.name;
    EXPECT_EQ(alignment_of(row.dtype), row.alignment) << row.name;
  }
}

}  // namespace
}  // namespace infercluster::safetensors
