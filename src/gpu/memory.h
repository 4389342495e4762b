// SPDX-License-Identifier: Apache-2.0
// Memory of a device, and host memory that a device reads by DMA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/result.h"
#include "gpu/device.h"
#include "memory/span.h"

namespace infercluster::gpu {

// Device memory starts at a multiple of this (CUDA C++ programming guide, device memory accesses).
inline constexpr std::uint64_t kDeviceAlignment = 256;

// One allocation of the driver's. Owners share it: tensors keep it alive, and it keeps the device's context. Its bytes
// are whatever was there before. Freed when nothing is in flight to it: copiers drain before their targets go.
class DeviceMemory {
 public:
  // At least `bytes`, rounded up to 256 bytes, or to 4 KiB above 64 KiB. Errors: out_of_memory, with what is free.
  static Result<std::shared_ptr<DeviceMemory>> allocate(std::shared_ptr<Device> device, std::uint64_t bytes);

  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  [[nodiscard]] const std::shared_ptr<Device>& device() const { return device_; }
  // The bytes that were asked for.
  [[nodiscard]] memory::Span span() const {
    return {memory::Kind::cuda, device_->ordinal(), static_cast<std::uintptr_t>(address_), bytes_};
  }
  [[nodiscard]] std::uint64_t capacity() const { return capacity_; }  // rounded up

 private:
  DeviceMemory(std::shared_ptr<Device> device, std::uint64_t bytes) : device_(std::move(device)), bytes_(bytes) {}

  const std::shared_ptr<Device> device_;
  CuDevicePtr address_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t capacity_ = 0;
};

// Host memory that is page-locked for the driver (of every device: portable), so that copies from it are one DMA and
// truly asynchronous. Does not own the memory: it outlives this, and nothing is in flight from it when this ends.
// Pinning costs time by the page: small rings, not arenas.
class Pinned {
 public:
  // `host` starts and ends at page boundaries. Errors: out_of_memory, permission, or io where it is pinned already.
  static Result<std::unique_ptr<Pinned>> make(std::shared_ptr<Device> device, const memory::Span& host);

  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  [[nodiscard]] const memory::Span& span() const { return span_; }

 private:
  Pinned(std::shared_ptr<Device> device, const memory::Span& span) : device_(std::move(device)), span_(span) {}

  const std::shared_ptr<Device> device_;
  const memory::Span span_;
};

// The Pinned of this process that holds the start of a host span; nullopt when none does. Thread-safe.
std::optional<memory::Span> pinned_around(const memory::Span& host);

// Copy between device and host memory of any kind, and return when the bytes are there. On a stream of their own: work
// of others on the device memory must be done before. For small amounts: each call makes and ends a stream.
Status copy_to_host(const std::shared_ptr<Device>& device, const memory::Span& from, std::byte* to);
Status copy_to_device(const std::shared_ptr<Device>& device, const std::byte* from, const memory::Span& to);

}  // namespace infercluster::gpu
