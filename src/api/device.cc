// SPDX-License-Identifier: Apache-2.0
#include "gpu/device.h"
#include "api/runtime.h"
#include "gpu/memory.h"
#include "infercluster/infercluster.h"

namespace infercluster {

Result<memory::Block> allocate_on_device(int ordinal, std::uint64_t bytes) {
  IC_TRY(const api::Runtime* const runtime, api::Runtime::get());
  static_cast<void>(runtime);  // refused in a forked child
  IC_TRY(std::shared_ptr<gpu::Device> device, gpu::Device::open(ordinal));
  IC_TRY(std::shared_ptr<gpu::DeviceMemory> memory, gpu::DeviceMemory::allocate(std::move(device), bytes));
  const memory::Span span = memory->span();
  return memory::Block{span, std::move(memory), nullptr};
}

Status copy_to_host(const memory::Span& from, std::byte* to) {
  IC_TRY(const api::Runtime* const runtime, api::Runtime::get());
  static_cast<void>(runtime);
  IC_TRY(const std::shared_ptr<gpu::Device> device, gpu::Device::open(from.device));
  return gpu::copy_to_host(device, from, to);
}

}  // namespace infercluster
