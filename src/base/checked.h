// SPDX-License-Identifier: Apache-2.0
// Arithmetic on numbers that a file or a peer announced: nullopt on overflow, never a wrapped value.
#pragma once

#include <concepts>
#include <optional>

namespace infercluster {

template <std::unsigned_integral T>
constexpr std::optional<T> checked_add(T a, T b) {
  T sum{};
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

template <std::unsigned_integral T>
constexpr std::optional<T> checked_multiply(T a, T b) {
  T product{};
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// The narrowing that must not lose anything: nullopt where `value` does not fit.
template <std::integral To, std::integral From>
constexpr std::optional<To> checked_cast(From value) {
  const To narrowed = static_cast<To>(value);
  if (static_cast<From>(narrowed) != value || (narrowed < To{}) != (value < From{})) return std::nullopt;
  return narrowed;
}

}  // namespace infercluster
