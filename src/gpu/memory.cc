// SPDX-License-Identifier: Apache-2.0
#include "gpu/memory.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/units.h"
#include "gpu/stream.h"

namespace infercluster::gpu {
namespace {

// Whole pages above this, so that cuFile and the DMA engines see whole pages.
constexpr std::uint64_t kWholePagesAbove = 64 * kKiB;
constexpr std::uint64_t kPage = 4 * kKiB;

// What is pinned now, so that copiers know how far one registration reaches. Never destroyed: owners may end later.
struct PinnedSpans {
  std::mutex mutex;
  std::vector<memory::Span> spans;  // guarded by mutex
};

PinnedSpans& pinned_spans() {
  static auto* const spans = new PinnedSpans();  // NOLINT(cppcoreguidelines-owning-memory): see above
  return *spans;
}

}  // namespace

Result<std::shared_ptr<DeviceMemory>> DeviceMemory::allocate(std::shared_ptr<Device> device, std::uint64_t bytes) {
  IC_TRY(const Device::Current current, Device::Current::make(*device));
  std::shared_ptr<DeviceMemory> memory(new DeviceMemory(std::move(device), bytes));  // NOLINT: private constructor
  const Device& on = *memory->device_;
  if (bytes > UINT64_MAX / 2) {
    return Error(ErrorCode::out_of_memory, "cannot allocate " + format_bytes(bytes) + " on " + on.text());
  }
  memory->capacity_ = align_up(std::max<std::uint64_t>(bytes, 1), bytes > kWholePagesAbove ? kPage : kDeviceAlignment);
  CuDevicePtr address = 0;
  const CuResult result = on.api().cuMemAlloc_v2(&address, memory->capacity_);
  if (result != CuResult::success) {
    Error error = on.error(result, "cuMemAlloc", "allocate " + format_bytes(memory->capacity_));
    const auto left = on.memory();
    if (!left.ok()) return error;
    return Error(error.code(),
                 error.message() + "; " + format_bytes(left->free) + " of " + format_bytes(left->total) + " are free")
        .with_hint(error.hint());
  }
  IC_ASSERT(address % kDeviceAlignment == 0);
  memory->address_ = address;
  return memory;
}

DeviceMemory::~DeviceMemory() {
  if (address_ == 0 || !may_call_driver()) return;
  const auto current = Device::Current::for_release(*device_);
  device_->release_ended(device_->api().cuMemFree_v2(address_), "cuMemFree", "free " + format_bytes(capacity_));
}

Result<std::unique_ptr<Pinned>> Pinned::make(std::shared_ptr<Device> device, const memory::Span& host) {
  IC_ASSERT(host.kind == memory::Kind::host && host.bytes > 0);
  IC_ASSERT(host.address % kPage == 0 && host.bytes % kPage == 0);
  IC_TRY(const Device::Current current, Device::Current::make(*device));
  const CuResult result = device->api().cuMemHostRegister_v2(host.host(), host.bytes, kCuHostRegisterPortable);
  if (result != CuResult::success) {
    Error error = device->error(result, "cuMemHostRegister", "pin " + format_bytes(host.bytes) + " of host memory");
    if (result != CuResult::out_of_memory && result != CuResult::not_permitted) return error;
    return std::move(error).with_hint("Lower the memory option, or raise the limit of locked memory (ulimit -l)");
  }
  PinnedSpans& pinned = pinned_spans();
  const std::scoped_lock lock(pinned.mutex);
  pinned.spans.push_back(host);
  return std::unique_ptr<Pinned>(new Pinned(std::move(device), host));  // NOLINT: the constructor is private
}

Pinned::~Pinned() {
  if (!may_call_driver()) return;
  {
    PinnedSpans& pinned = pinned_spans();
    const std::scoped_lock lock(pinned.mutex);
    std::erase_if(pinned.spans, [&](const memory::Span& span) { return span.address == span_.address; });
  }
  const auto current = Device::Current::for_release(*device_);
  device_->release_ended(device_->api().cuMemHostUnregister(span_.host()), "cuMemHostUnregister",
                         "unpin " + format_bytes(span_.bytes) + " of host memory");
}

std::optional<memory::Span> pinned_around(const memory::Span& host) {
  PinnedSpans& pinned = pinned_spans();
  const std::scoped_lock lock(pinned.mutex);
  for (const memory::Span& span : pinned.spans) {
    if (host.address >= span.address && host.address - span.address < span.bytes) return span;
  }
  return std::nullopt;
}

}  // namespace infercluster::gpu
