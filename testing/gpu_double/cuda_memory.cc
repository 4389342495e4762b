// SPDX-License-Identifier: Apache-2.0
// libcuda.so.1: device memory, registered host memory, copies.
#include <algorithm>
#include <bit>

#include "gpu/cuda_api.h"
#include "testing/gpu_double/copies.h"
#include "testing/gpu_double/counters.h"
#include "testing/gpu_double/exported.h"
#include "testing/gpu_double/guard.h"

namespace infercluster::gpu_double {
namespace {

using namespace infercluster::gpu;  // NOLINT(google-build-using-namespace): the API that this file implements

Side device_side(CuDevicePtr address, std::size_t pitch) {
  return Side{true, address, pitch};
}
Side host_side(const void* address, std::size_t pitch) {
  return Side{false, std::bit_cast<std::uint64_t>(address), pitch};
}

// body(driver, context, stream)
template <typename Body>
CuResult call_on_stream(std::string_view name, CuStream stream, Body body) {
  return call_in_context(name, [&](Driver& driver, const std::shared_ptr<Context>& context) {
    StreamEntry entry;
    const CuResult found = driver.find_stream(std::bit_cast<Handle>(stream), context, entry);
    return found == CuResult::success ? body(context, entry) : found;
  });
}

std::optional<Side> side(CuMemoryType type, const void* host, CuDevicePtr device, std::size_t x, std::size_t y,
                         std::size_t pitch) {
  const std::size_t offset = y * pitch + x;
  if (type == CuMemoryType::device) return device_side(device + offset, pitch);
  if (type == CuMemoryType::host) return host_side(static_cast<const char*>(host) + offset, pitch);
  return std::nullopt;  // arrays and unified pointers: nobody here uses them
}

}  // namespace

IC_EXPORT CuResult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return call_in_context("cuMemGetInfo", [&](Driver& driver, const std::shared_ptr<Context>& context) {
    if (free == nullptr || total == nullptr) return CuResult::invalid_value;
    *total = fault_plan().settings().memory_bytes;
    *free = *total - std::min<std::size_t>(*total, driver.memory(context->device).allocated_bytes());
    return CuResult::success;
  });
}

IC_EXPORT CuResult cuMemAlloc_v2(CuDevicePtr* address, std::size_t bytes) {
  return call_in_context("cuMemAlloc", [&](Driver& driver, const std::shared_ptr<Context>& context) {
    if (address == nullptr || bytes == 0) return CuResult::invalid_value;
    const auto allocated =
        driver.memory(context->device).allocate(bytes, context->handle, fault_plan().settings().memory_bytes);
    if (!allocated) return CuResult::out_of_memory;
    *address = *allocated;
    return CuResult::success;
  });
}

IC_EXPORT CuResult cuMemFree_v2(CuDevicePtr address) {
  return release("cuMemFree", [&](Driver& driver) {
    if (address == 0) return CuResult::success;
    const auto device = driver.device_of(address);
    if (!device) return CuResult::invalid_value;
    DeviceMemory& memory = driver.memory(*device);
    const auto allocation = memory.find(address, 1);
    if (!allocation || allocation->address != address) return CuResult::invalid_value;
    if (memory.in_flight(address, allocation->bytes)) ++counters().frees_in_flight;
    driver.wait_for_device(*device);
    {
      const std::scoped_lock lock(driver.cufile.mutex);
      const auto buffer = driver.cufile.buffers.lower_bound(address);
      if (buffer != driver.cufile.buffers.end() && buffer->first < address + allocation->bytes) {
        count_violation("cuMemFree of memory that is still registered with cuFile");
      }
    }
    return memory.release(address) ? CuResult::success : CuResult::invalid_value;
  });
}

IC_EXPORT CuResult cuMemHostRegister_v2(void* address, std::size_t bytes, unsigned flags) {
  constexpr unsigned kFlagsKnown = 0x0F;
  return call_in_context("cuMemHostRegister", [&](Driver& driver, const std::shared_ptr<Context>& context) {
    if (address == nullptr || bytes == 0 || (flags & ~kFlagsKnown) != 0) return CuResult::invalid_value;
    const bool portable = (flags & kCuHostRegisterPortable) != 0;
    switch (driver.host.add({std::bit_cast<std::uintptr_t>(address), bytes, context->handle, portable})) {
      case HostMemory::Registering::kDone:
        return CuResult::success;
      case HostMemory::Registering::kOverlaps:
        return CuResult::host_memory_already_registered;
      case HostMemory::Registering::kNotMapped:
        return CuResult::invalid_value;
    }
    return CuResult::unknown;
  });
}

IC_EXPORT CuResult cuMemHostUnregister(void* address) {
  return release("cuMemHostUnregister", [&](Driver& driver) {
    const auto registration = driver.host.at(std::bit_cast<std::uintptr_t>(address));
    if (!registration) return CuResult::host_memory_not_registered;
    if (driver.host.in_flight(registration->address, registration->bytes)) {
      count_violation("cuMemHostUnregister of memory that a queued copy still needs");
      for (int device = 0; device < kDevicesMax; ++device) driver.wait_for_device(device);
    }
    return driver.host.remove(registration->address) ? CuResult::success : CuResult::host_memory_not_registered;
  });
}

IC_EXPORT CuResult cuMemcpyHtoDAsync_v2(CuDevicePtr to, const void* from, std::size_t bytes, CuStream stream) {
  return call_on_stream("cuMemcpyHtoDAsync", stream, [&](const auto& context, const StreamEntry& entry) {
    return enqueue_copy(context, entry, device_side(to, bytes), host_side(from, bytes), bytes, 1);
  });
}

IC_EXPORT CuResult cuMemcpyDtoHAsync_v2(void* to, CuDevicePtr from, std::size_t bytes, CuStream stream) {
  return call_on_stream("cuMemcpyDtoHAsync", stream, [&](const auto& context, const StreamEntry& entry) {
    return enqueue_copy(context, entry, host_side(to, bytes), device_side(from, bytes), bytes, 1);
  });
}

IC_EXPORT CuResult cuMemcpyDtoDAsync_v2(CuDevicePtr to, CuDevicePtr from, std::size_t bytes, CuStream stream) {
  return call_on_stream("cuMemcpyDtoDAsync", stream, [&](const auto& context, const StreamEntry& entry) {
    return enqueue_copy(context, entry, device_side(to, bytes), device_side(from, bytes), bytes, 1);
  });
}

IC_EXPORT CuResult cuMemcpy2DAsync_v2(const CuMemcpy2D* copy, CuStream stream) {
  return call_on_stream("cuMemcpy2DAsync", stream, [&](const auto& context, const StreamEntry& entry) {
    if (copy == nullptr) return CuResult::invalid_value;
    const auto to = side(copy->target_type, copy->target_host, copy->target_device, copy->target_x_bytes,
                         copy->target_y, copy->target_pitch);
    const auto from = side(copy->source_type, copy->source_host, copy->source_device, copy->source_x_bytes,
                           copy->source_y, copy->source_pitch);
    if (!to || !from) return CuResult::invalid_value;
    return enqueue_copy(context, entry, *to, *from, copy->width_bytes, copy->height);
  });
}

IC_EXPORT CuResult cuMemsetD8Async(CuDevicePtr to, unsigned char value, std::size_t bytes, CuStream stream) {
  return call_on_stream("cuMemsetD8Async", stream, [&](const auto& context, const StreamEntry& entry) {
    return enqueue_fill(context, entry, to, value, bytes);
  });
}

IC_EXPORT CuResult cuPointerGetAttribute(void* value, CuPointerAttribute attribute, CuDevicePtr address) {
  return call("cuPointerGetAttribute", [&](Driver& driver) {
    if (value == nullptr) return CuResult::invalid_value;
    const auto device = driver.device_of(address);
    const auto allocation = device ? driver.memory(*device).find(address, 1) : std::nullopt;
    const auto registration = driver.host.find(address, 1);
    if (!allocation && !registration) return CuResult::invalid_value;
    const Handle handle = allocation ? allocation->context : registration->context;
    const auto context = driver.context(handle);
    switch (attribute) {
      case CuPointerAttribute::range_start:
        *static_cast<CuDevicePtr*>(value) = allocation ? allocation->address : registration->address;
        return CuResult::success;
      case CuPointerAttribute::range_size:
        *static_cast<std::size_t*>(value) = allocation ? allocation->bytes : registration->bytes;
        return CuResult::success;
      case CuPointerAttribute::context:
        *static_cast<CuContext*>(value) = std::bit_cast<CuContext>(handle);
        return CuResult::success;
      case CuPointerAttribute::memory_type:
        *static_cast<CuMemoryType*>(value) = allocation ? CuMemoryType::device : CuMemoryType::host;
        return CuResult::success;
      case CuPointerAttribute::device_ordinal:
        *static_cast<int*>(value) = context == nullptr ? -1 : context->device;
        return CuResult::success;
    }
    return CuResult::invalid_value;
  });
}

}  // namespace infercluster::gpu_double
