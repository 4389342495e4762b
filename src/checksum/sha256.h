// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace infercluster::checksum {

// SHA-256 (FIPS 180-4) of bytes that come in pieces, in order. One thread at a time. Move-only.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&& other) noexcept;
  Sha256& operator=(Sha256&& other) noexcept;
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> bytes);
  // 64 lower-case hexadecimal digits; once, and nothing may be added after it.
  [[nodiscard]] std::string finish_hex();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace infercluster::checksum
