// SPDX-License-Identifier: Apache-2.0
#include "gpu/copier.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/units.h"
#include "gpu/event.h"
#include "gpu/memory.h"

namespace infercluster::gpu {
namespace {

using memory::Kind;
using memory::Span;

class CudaCopier final : public memory::Copier {
 public:
  static Result<std::unique_ptr<memory::Copier>> make(std::shared_ptr<Device> device, const CopierOptions& options);

  ~CudaCopier() override {
    pending_.reset();
    static_cast<void>(stream_->wait());  // before the memory on either side goes
  }
  CudaCopier(const CudaCopier&) = delete;
  CudaCopier& operator=(const CudaCopier&) = delete;

  Status copy(const Span& from, const Span& to) override;
  Status copy_rows(const Span& from, const Span& to, const memory::RowLayout& layout) override;
  Status wait_for(const memory::Mark& mark) override;
  Result<Fence> fence() override;
  Result<bool> passed(Fence fence) override;
  Result<std::shared_ptr<const memory::Mark>> mark() override;
  Status drain() override;
  [[nodiscard]] memory::CopyStatistics statistics() const override { return statistics_; }

 private:
  struct Copy {
    Span from;
    Span to;
  };
  struct Recorded {
    Fence fence = 0;
    std::unique_ptr<Event> event;
  };

  CudaCopier(std::shared_ptr<Device> device, std::unique_ptr<Stream> stream)
      : device_(std::move(device)), stream_(std::move(stream)) {}

  Status healthy() const { return error_ ? Status(*error_) : Status(); }
  Error remember(Error error) {
    if (!error_) error_ = error;
    pending_.reset();
    return error;
  }
  bool merge(const Span& from, const Span& to);
  [[nodiscard]] bool within_one(const Span& first, std::uint64_t bytes, std::optional<Span>& known) const;
  Status flush();
  Status issue(const Span& from, const Span& to);
  Status issue_rows(const Span& from, const Span& to, const memory::RowLayout& layout);
  void retire(Fence through);

  const std::shared_ptr<Device> device_;
  const std::unique_ptr<Stream> stream_;
  std::uint64_t pitch_max_ = 0;
  std::optional<Copy> pending_;
  // The allocations that the last merged copies lay in. Known until the next fence: memory that is copied lives as
  // long.
  std::optional<Span> from_allocation_;
  std::optional<Span> to_allocation_;
  bool issued_since_fence_ = false;
  Fence last_fence_ = 0;
  Fence passed_fence_ = 0;
  std::vector<Recorded> recorded_;  // in order; as many as the ring has slots
  std::vector<std::unique_ptr<Event>> spare_events_;
  std::optional<Error> error_;
  memory::CopyStatistics statistics_;
};

Result<std::unique_ptr<memory::Copier>> CudaCopier::make(std::shared_ptr<Device> device, const CopierOptions& options) {
  IC_TRY(auto stream, Stream::create(device));
  std::unique_ptr<CudaCopier> copier(new CudaCopier(device, std::move(stream)));  // NOLINT: private constructor
  int pitch_max = 0;
  const CuResult result =
      device->api().cuDeviceGetAttribute(&pitch_max, CuDeviceAttribute::max_pitch, device->handle());
  if (result != CuResult::success) return device->error(result, "cuDeviceGetAttribute", "ask for the largest pitch");
  copier->pitch_max_ = static_cast<std::uint64_t>(std::max(0, pitch_max));
  if (options.after) {
    IC_TRY(const auto event, Event::create(device));
    IC_CHECK(event->record(*options.after));
    IC_CHECK(copier->wait_for(*event));
  }
  return std::unique_ptr<memory::Copier>(std::move(copier));
}

// Do `first` and the bytes behind it, `bytes` in all, lie in one allocation? A copy across two is an error.
bool CudaCopier::within_one(const Span& first, std::uint64_t bytes, std::optional<Span>& known) const {
  const auto holds = [&](const Span& allocation) {
    return allocation.kind == first.kind && first.address >= allocation.address &&
           first.address - allocation.address <= allocation.bytes &&
           bytes <= allocation.bytes - (first.address - allocation.address);
  };
  if (known && holds(*known)) return true;
  const auto found = first.kind == Kind::host ? pinned_around(first) : device_->allocation_around(first);
  if (!found) return false;
  known = found;
  return holds(*found);
}

bool CudaCopier::merge(const Span& from, const Span& to) {
  if (!pending_ || pending_->from.kind != from.kind || pending_->to.kind != to.kind) return false;
  const std::uint64_t so_far = pending_->from.bytes;
  if (from.address != pending_->from.address + so_far || to.address != pending_->to.address + so_far) return false;
  const std::uint64_t together = so_far + from.bytes;
  if (!within_one(pending_->from, together, from_allocation_)) return false;
  if (!within_one(pending_->to, together, to_allocation_)) return false;
  pending_->from.bytes = together;
  pending_->to.bytes = together;
  return true;
}

Status CudaCopier::copy(const Span& from, const Span& to) {
  IC_ASSERT(from.bytes == to.bytes);
  IC_ASSERT(from.kind == Kind::cuda || to.kind == Kind::cuda);
  IC_ASSERT(from.kind == Kind::host || from.device == device_->ordinal());
  IC_ASSERT(to.kind == Kind::host || to.device == device_->ordinal());
  IC_CHECK(healthy());
  if (from.bytes == 0 || merge(from, to)) return {};
  IC_CHECK(flush());
  pending_ = Copy{from, to};
  return {};
}

Status CudaCopier::flush() {
  if (!pending_) return {};
  const Copy copy = *pending_;
  pending_.reset();
  auto current = Device::Current::make(*device_);
  if (!current.ok()) return remember(std::move(current).error());
  return issue(copy.from, copy.to);
}

// The device's context is current.
Status CudaCopier::issue(const Span& from, const Span& to) {
  const CudaApi& api = device_->api();
  CuResult result = CuResult::success;
  const char* call = nullptr;
  issued_since_fence_ = true;  // even when the call fails: it may have queued something
  if (from.kind == Kind::host) {
    call = "cuMemcpyHtoDAsync";
    result = api.cuMemcpyHtoDAsync_v2(to.address, from.host(), from.bytes, stream_->handle());
  } else if (to.kind == Kind::host) {
    call = "cuMemcpyDtoHAsync";
    result = api.cuMemcpyDtoHAsync_v2(to.host(), from.address, from.bytes, stream_->handle());
  } else {
    call = "cuMemcpyDtoDAsync";
    result = api.cuMemcpyDtoDAsync_v2(to.address, from.address, from.bytes, stream_->handle());
  }
  if (result != CuResult::success) return remember(device_->error(result, call, "copy " + format_bytes(from.bytes)));
  ++statistics_.copies;
  statistics_.bytes += from.bytes;
  return {};
}

Status CudaCopier::copy_rows(const Span& from, const Span& to, const memory::RowLayout& layout) {
  IC_ASSERT(layout.from_pitch >= layout.row_bytes && layout.to_pitch >= layout.row_bytes);
  IC_CHECK(healthy());
  if (layout.rows == 0 || layout.row_bytes == 0) return {};
  const bool dense = layout.from_pitch == layout.row_bytes && layout.to_pitch == layout.row_bytes;
  if (layout.rows == 1 || dense) {
    const std::uint64_t bytes = layout.rows * layout.row_bytes;
    return copy(from.part(0, bytes), to.part(0, bytes));
  }
  IC_CHECK(flush());
  auto current = Device::Current::make(*device_);
  if (!current.ok()) return remember(std::move(current).error());
  return issue_rows(from, to, layout);
}

// The device's context is current.
Status CudaCopier::issue_rows(const Span& from, const Span& to, const memory::RowLayout& layout) {
  if (layout.from_pitch <= pitch_max_ && layout.to_pitch <= pitch_max_) {
    CuMemcpy2D copy{};
    copy.source_type = from.kind == Kind::host ? CuMemoryType::host : CuMemoryType::device;
    copy.source_host = from.kind == Kind::host ? from.host() : nullptr;
    copy.source_device = from.kind == Kind::host ? 0 : from.address;
    copy.source_pitch = layout.from_pitch;
    copy.target_type = to.kind == Kind::host ? CuMemoryType::host : CuMemoryType::device;
    copy.target_host = to.kind == Kind::host ? to.host() : nullptr;
    copy.target_device = to.kind == Kind::host ? 0 : to.address;
    copy.target_pitch = layout.to_pitch;
    copy.width_bytes = layout.row_bytes;
    copy.height = layout.rows;
    issued_since_fence_ = true;
    const CuResult result = device_->api().cuMemcpy2DAsync_v2(&copy, stream_->handle());
    if (result == CuResult::success) {
      ++statistics_.copies;
      statistics_.bytes += layout.rows * layout.row_bytes;
      return {};
    }
    // Within a device it may refuse pitches that are not cuMemAllocPitch's (cuda.h, cuMemcpy2DAsync): row by row then.
    if (result != CuResult::invalid_value) {
      return remember(
          device_->error(result, "cuMemcpy2DAsync",
                         "copy " + std::to_string(layout.rows) + " rows of " + format_bytes(layout.row_bytes)));
    }
  }
  for (std::uint64_t row = 0; row < layout.rows; ++row) {
    IC_CHECK(
        issue(from.part(row * layout.from_pitch, layout.row_bytes), to.part(row * layout.to_pitch, layout.row_bytes)));
  }
  return {};
}

Status CudaCopier::wait_for(const memory::Mark& mark) {
  const auto* const event = dynamic_cast<const Event*>(&mark);
  IC_ASSERT(event != nullptr);  // another kind of memory's mark
  IC_CHECK(healthy());
  IC_CHECK(flush());
  auto current = Device::Current::make(*device_);
  if (!current.ok()) return remember(std::move(current).error());
  const CuResult result = device_->api().cuStreamWaitEvent(stream_->handle(), event->handle(), 0);
  if (result != CuResult::success) {
    return remember(device_->error(result, "cuStreamWaitEvent", "wait for earlier work"));
  }
  return {};
}

Result<memory::Copier::Fence> CudaCopier::fence() {
  IC_CHECK(healthy());
  IC_CHECK(flush());
  from_allocation_.reset();
  to_allocation_.reset();
  if (!issued_since_fence_) return last_fence_;
  if (spare_events_.empty()) {
    auto event = Event::create(device_);
    if (!event.ok()) return remember(std::move(event).error());
    spare_events_.push_back(std::move(event).value());
  }
  const Status status = spare_events_.back()->record(*stream_);
  if (!status.ok()) return remember(status.error());
  recorded_.push_back({++last_fence_, std::move(spare_events_.back())});
  spare_events_.pop_back();
  issued_since_fence_ = false;
  return last_fence_;
}

void CudaCopier::retire(Fence through) {
  const auto still = std::find_if(recorded_.begin(), recorded_.end(),
                                  [&](const Recorded& recorded) { return recorded.fence > through; });
  for (auto passed = recorded_.begin(); passed != still; ++passed) spare_events_.push_back(std::move(passed->event));
  recorded_.erase(recorded_.begin(), still);
  passed_fence_ = std::max(passed_fence_, through);
}

Result<bool> CudaCopier::passed(Fence fence) {
  IC_ASSERT(fence <= last_fence_);
  IC_CHECK(healthy());
  if (fence <= passed_fence_) return true;
  const auto found = std::find_if(recorded_.begin(), recorded_.end(),
                                  [&](const Recorded& recorded) { return recorded.fence == fence; });
  IC_ASSERT(found != recorded_.end());
  auto passed = found->event->passed();
  if (!passed.ok()) return remember(std::move(passed).error());
  if (*passed) retire(fence);  // a stream works in order: those before have passed too
  return *passed;
}

Result<std::shared_ptr<const memory::Mark>> CudaCopier::mark() {
  IC_CHECK(healthy());
  IC_CHECK(flush());
  auto event = Event::create(device_);
  if (!event.ok()) return remember(std::move(event).error());
  const Status recorded = (*event)->record(*stream_);
  if (!recorded.ok()) return remember(recorded.error());
  return std::shared_ptr<const memory::Mark>(std::move(event).value());
}

Status CudaCopier::drain() {
  if (!error_) static_cast<void>(flush());  // remembers its error
  from_allocation_.reset();
  to_allocation_.reset();
  const Status waited = stream_->wait();
  issued_since_fence_ = false;
  retire(last_fence_);
  if (!waited.ok()) return remember(error_ ? *error_ : waited.error());
  return healthy();
}

}  // namespace

Result<std::unique_ptr<memory::Copier>> make_copier(std::shared_ptr<Device> device, const CopierOptions& options) {
  return CudaCopier::make(std::move(device), options);
}

Status copy_to_host(const std::shared_ptr<Device>& device, const Span& from, std::byte* to) {
  IC_TRY(const auto copier, make_copier(device));
  IC_CHECK(copier->copy(from, memory::host_span(to, from.bytes)));
  return copier->drain();
}

Status copy_to_device(const std::shared_ptr<Device>& device, const std::byte* from, const Span& to) {
  IC_TRY(const auto copier, make_copier(device));
  IC_CHECK(copier->copy(memory::host_span(from, to.bytes), to));
  return copier->drain();
}

}  // namespace infercluster::gpu
