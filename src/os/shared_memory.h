// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/fd.h"
#include "base/result.h"

namespace infercluster::os {

// Memory that several processes of a machine map. It has no name, and is gone with the last of them. Zeroed; neither
// side can shrink it. Move-only; addresses stay when it is moved. Not there in forked children.
class SharedMemory {
 public:
  static Result<SharedMemory> create(std::uint64_t bytes);
  // What another process created: `fd` is its descriptor, as it came through a LocalSocket. Error corrupt: it has
  // another size, or could shrink.
  static Result<SharedMemory> map(Fd fd, std::uint64_t bytes);

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  [[nodiscard]] std::span<std::byte> data() const { return data_; }
  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  static Result<SharedMemory> map_whole(Fd fd, std::uint64_t bytes);

  Fd fd_;
  std::span<std::byte> data_;
};

}  // namespace infercluster::os
