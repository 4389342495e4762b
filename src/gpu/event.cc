// SPDX-License-Identifier: Apache-2.0
#include "gpu/event.h"

namespace infercluster::gpu {

Result<std::unique_ptr<Event>> Event::create(std::shared_ptr<Device> device) {
  IC_TRY(const Device::Current current, Device::Current::make(*device));
  std::unique_ptr<Event> event(new Event(std::move(device)));  // NOLINT: the constructor is private
  CuEvent handle = nullptr;
  const CuResult result = event->device_->api().cuEventCreate(&handle, kCuEventDisableTiming);
  if (result != CuResult::success) return event->device_->error(result, "cuEventCreate", "make an event");
  event->handle_ = handle;
  return event;
}

Event::~Event() {
  if (handle_ == nullptr || !may_call_driver()) return;
  const auto current = Device::Current::for_release(*device_);
  // What waits for the event still gets it: the driver frees it behind that (cuEventDestroy).
  device_->release_ended(device_->api().cuEventDestroy_v2(handle_), "cuEventDestroy", "end an event");
}

Status Event::record(const Stream& stream) {
  return record_on(stream.handle());
}

Status Event::record(StreamId stream) {
  return record_on(reinterpret_cast<CuStream>(stream));  // NOLINT: that is what the integer is
}

Status Event::record_on(CuStream stream) {
  IC_TRY(const Device::Current current, Device::Current::make(*device_));
  const CuResult result = device_->api().cuEventRecord(handle_, stream);
  if (result != CuResult::success) return device_->error(result, "cuEventRecord", "record an event");
  return {};
}

Result<bool> Event::passed() const {
  IC_TRY(const Device::Current current, Device::Current::make(*device_));
  const CuResult result = device_->api().cuEventQuery(handle_);
  if (result == CuResult::success) return true;
  if (result == CuResult::not_ready) return false;
  return device_->error(result, "cuEventQuery", "copy");  // what failed is the work before the event
}

Status hold_back(const Device& device, StreamId stream, const memory::Mark& mark) {
  const auto* const event = dynamic_cast<const Event*>(&mark);
  IC_ASSERT(event != nullptr);  // another kind of memory's mark
  IC_TRY(const Device::Current current, Device::Current::make(device));
  const CuResult result =
      device.api().cuStreamWaitEvent(reinterpret_cast<CuStream>(stream), event->handle(), 0);  // NOLINT: see record()
  if (result != CuResult::success)
    return device.error(result, "cuStreamWaitEvent", "let the caller's stream wait for copies");
  return {};
}

Status Event::wait() const {
  IC_TRY(const Device::Current current, Device::Current::make(*device_));
  const CuResult result = device_->api().cuEventSynchronize(handle_);
  if (result != CuResult::success) return device_->error(result, "cuEventSynchronize", "wait for an event");
  return {};
}

}  // namespace infercluster::gpu
