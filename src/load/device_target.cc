// SPDX-License-Identifier: Apache-2.0
#include "load/device_target.h"

#include "base/log.h"
#include "base/units.h"
#include "gpu/copier.h"
#include "gpu/device.h"
#include "gpu/event.h"
#include "gpu/memory.h"
#include "os/numa.h"

namespace infercluster::load {
namespace {

// Host memory that is pinned for the device, in this order let go.
struct PinnedArena {
  std::shared_ptr<memory::Arena> arena;
  std::unique_ptr<gpu::Pinned> pinned;
};

class DeviceTarget final : public Target {
 public:
  DeviceTarget(std::shared_ptr<gpu::Device> device, DeviceOptions options)
      : device_(std::move(device)), options_(std::move(options)) {}

  [[nodiscard]] memory::Kind kind() const override { return memory::Kind::cuda; }
  [[nodiscard]] int device() const override { return device_->ordinal(); }
  [[nodiscard]] std::shared_ptr<gpu::Device> gpu() const override { return device_; }

  Result<memory::Block> allocate(std::uint64_t bytes) override {
    if (options_.allocate) return allocate_of_caller(bytes);
    IC_TRY(std::shared_ptr<gpu::DeviceMemory> memory, gpu::DeviceMemory::allocate(device_, bytes));
    const memory::Span span = memory->span();
    return memory::Block{span, std::move(memory), nullptr};
  }

  [[nodiscard]] std::uint64_t free_bytes() const override {
    const auto memory = device_->memory();
    return memory.ok() ? memory->free : 0;
  }

  [[nodiscard]] Status check_free(std::uint64_t bytes) const override {
    if (options_.allocate) return {};  // the caller's allocator may hold memory that the driver does not call free
    IC_TRY(const gpu::Device::Memory memory, device_->memory());
    if (bytes <= memory.free) return {};
    return Error(ErrorCode::out_of_memory, "the tensors need " + format_bytes(bytes) + " of memory, and " +
                                               device_->text() + " has " + format_bytes(memory.free) + " free of " +
                                               format_bytes(memory.total))
        .with_hint("Load fewer tensors or slices of them, stream them, or free memory of the device");
  }

  // On the device's own NUMA node where that is known.
  Result<memory::Ring> make_ring(std::uint64_t slot_bytes, unsigned slots) override {
    IC_TRY(memory::Block host, memory::allocate_on_host(slot_bytes * slots));
    if (const auto node = device_->numa_node()) {
      const Status preferred = os::prefer_numa_node({host.span.host(), host.span.bytes}, static_cast<unsigned>(*node));
      if (!preferred.ok()) log_debug("the ring is not on the device's NUMA node: " + preferred.error().to_string());
    }
    for (std::uint64_t step = 0; step < host.arena->steps(); ++step) IC_CHECK(host.arena->populate_step(step));
    auto ring = std::make_shared<PinnedArena>();
    ring->arena = host.arena;
    IC_TRY(ring->pinned, gpu::Pinned::make(device_, host.span));
    host.owner = std::move(ring);
    return memory::Ring(std::move(host), slot_bytes);
  }

  Result<std::unique_ptr<memory::Copier>> make_copier() override {
    gpu::CopierOptions options;
    options.after = gpu::StreamId{options_.stream};
    return gpu::make_copier(device_, options);
  }

  Result<std::shared_ptr<const memory::Mark>> mark() override {
    IC_TRY(std::shared_ptr<gpu::Event> event, gpu::Event::create(device_));
    IC_CHECK(event->record(gpu::StreamId{options_.stream}));
    return std::shared_ptr<const memory::Mark>(std::move(event));
  }

  Status read(const memory::Span& from, std::byte* to) override { return gpu::copy_to_host(device_, from, to); }

 private:
  Result<memory::Block> allocate_of_caller(std::uint64_t bytes) {
    IC_TRY(memory::Block block, options_.allocate(bytes));
    if (block.span.bytes >= bytes && block.span.kind == memory::Kind::cuda && block.span.device == device() &&
        block.span.address % gpu::kDeviceAlignment == 0) {
      return block;
    }
    return Error(ErrorCode::invalid_argument, "the caller's allocator gave " + format_bytes(block.span.bytes) +
                                                  " on device " + std::to_string(block.span.device) +
                                                  ", aligned or not; expected " + format_bytes(bytes) + " on device " +
                                                  std::to_string(device()) + ", aligned to 256 bytes");
  }

  const std::shared_ptr<gpu::Device> device_;
  const DeviceOptions options_;
};

}  // namespace

Result<std::shared_ptr<Target>> open_device_target(const DeviceOptions& options) {
  IC_TRY(std::shared_ptr<gpu::Device> device, gpu::Device::open(options.ordinal));
  return std::shared_ptr<Target>(std::make_shared<DeviceTarget>(std::move(device), options));
}

}  // namespace infercluster::load
