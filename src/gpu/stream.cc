// SPDX-License-Identifier: Apache-2.0
#include "gpu/stream.h"

namespace infercluster::gpu {

Result<std::unique_ptr<Stream>> Stream::create(std::shared_ptr<Device> device) {
  IC_TRY(const Device::Current current, Device::Current::make(*device));
  std::unique_ptr<Stream> stream(new Stream(std::move(device)));  // NOLINT: the constructor is private
  CuStream handle = nullptr;
  const CuResult result = stream->device_->api().cuStreamCreate(&handle, kCuStreamNonBlocking);
  if (result != CuResult::success) return stream->device_->error(result, "cuStreamCreate", "make a stream");
  stream->handle_ = handle;
  return stream;
}

// The device's context is current.
CuResult Stream::synchronize() {
  const CuResult first = device_->api().cuStreamSynchronize(handle_);
  if (first != CuResult::success) static_cast<void>(device_->api().cuStreamSynchronize(handle_));
  return first;
}

Status Stream::wait() {
  IC_CHECK(driver());  // not in a forked child
  const auto current = Device::Current::for_release(*device_);
  const CuResult result = synchronize();
  if (result != CuResult::success) return device_->error(result, "cuStreamSynchronize", "wait for copies");
  return {};
}

Stream::~Stream() {
  if (handle_ == nullptr || !may_call_driver()) return;
  const auto current = Device::Current::for_release(*device_);
  static_cast<void>(synchronize());
  device_->release_ended(device_->api().cuStreamDestroy_v2(handle_), "cuStreamDestroy", "end a stream");
}

}  // namespace infercluster::gpu
