// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/fd.h"

namespace infercluster::os {

// A memfd mapped to read, whose seals (memfd_create(2), fcntl(2): F_SEAL_WRITE and F_SEAL_SHRINK) keep everybody from
// changing or cutting it: unlike that of any other file, its memory stays as it is, and there. Move-only.
class SealedMap {
 public:
  // Nothing: the file is not sealed like that, or cannot be mapped. `bytes`: its size, not 0.
  static std::optional<SealedMap> of(const Fd& file, std::uint64_t bytes);

  SealedMap(SealedMap&& other) noexcept;
  SealedMap& operator=(SealedMap&& other) noexcept;
  SealedMap(const SealedMap&) = delete;
  SealedMap& operator=(const SealedMap&) = delete;
  ~SealedMap();

  [[nodiscard]] std::span<const std::byte> data() const { return data_; }

 private:
  explicit SealedMap(std::span<const std::byte> data) : data_(data) {}
  std::span<const std::byte> data_;
};

}  // namespace infercluster::os
