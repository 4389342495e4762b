// SPDX-License-Identifier: Apache-2.0
#include "os/sealed_map.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <utility>

namespace infercluster::os {

std::optional<SealedMap> SealedMap::of(const Fd& file, std::uint64_t bytes) {
  constexpr int kUnchanging = F_SEAL_WRITE | F_SEAL_SHRINK;
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kUnchanging) != kUnchanging) return std::nullopt;
  void* const start = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (start == MAP_FAILED) return std::nullopt;
  return SealedMap({static_cast<const std::byte*>(start), bytes});
}

SealedMap::SealedMap(SealedMap&& other) noexcept : data_(std::exchange(other.data_, {})) {}

SealedMap& SealedMap::operator=(SealedMap&& other) noexcept {
  std::swap(data_, other.data_);
  return *this;
}

SealedMap::~SealedMap() {
  if (!data_.empty()) ::munmap(const_cast<std::byte*>(data_.data()), data_.size());
}

}  // namespace infercluster::os
