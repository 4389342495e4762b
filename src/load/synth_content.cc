// SPDX-License-Identifier: Apache-2.0
#include "load/synth_content.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"

namespace infercluster::load {
namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio: SplitMix64's step

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every input bit changes every output bit with probability 1/2.
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

// FNV-1a: the same on every machine and in every version, unlike std::hash.
std::uint64_t stable_hash(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return hash;
}

}  // namespace

SynthContent::SynthContent(std::uint64_t seed, std::string_view tensor_name, safetensors::Dtype dtype)
    : key_(mix(mix(seed + kGolden) ^ stable_hash(tensor_name))) {
  switch (dtype) {
    case safetensors::Dtype::bf16:  // random sign and mantissa, exponents from 2^-7 to 2^-4
      random_bits_ = 0x81FF81FF81FF81FF;
      fixed_bits_ = 0x3C003C003C003C00;
      return;
    case safetensors::Dtype::f32:
      random_bits_ = 0x81FFFFFF81FFFFFF;
      fixed_bits_ = 0x3C0000003C000000;
      return;
    case safetensors::Dtype::f8_e4m3:  // below 2: the one NaN has all bits of the exponent set
      random_bits_ = 0xBFBFBFBFBFBFBFBF;
      return;
    default:
      IC_ASSERT(false);
  }
}

void SynthContent::fill(std::uint64_t offset, std::span<std::byte> into) const {
  IC_ASSERT(offset % kSynthBlockBytes == 0);
  for (std::uint64_t block = offset / kSynthBlockBytes; !into.empty(); ++block) {
    const std::span<std::byte> part = into.first(std::min<std::size_t>(into.size(), kSynthBlockBytes));
    std::uint64_t state = mix(key_ + block * kGolden);
    std::size_t at = 0;
    for (; at + sizeof state <= part.size(); at += sizeof state) {
      state += kGolden;
      const std::uint64_t word = (mix(state) & random_bits_) | fixed_bits_;
      std::memcpy(part.data() + at, &word, sizeof word);
    }
    if (at < part.size()) {
      const std::uint64_t word = (mix(state + kGolden) & random_bits_) | fixed_bits_;
      std::memcpy(part.data() + at, &word, part.size() - at);
    }
    into = into.subspan(part.size());
  }
}

}  // namespace infercluster::load
