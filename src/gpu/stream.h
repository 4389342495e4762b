// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "gpu/device.h"

namespace infercluster::gpu {

// A stream of somebody else's, as its CUstream is given in an integer (torch.cuda.Stream.cuda_stream): 0 is the legacy
// default stream.
enum class StreamId : std::uintptr_t {};

// One queue of work on a device, which does not wait for the default stream's work. Thread rule: one thread.
class Stream {
 public:
  static Result<std::unique_ptr<Stream>> create(std::shared_ptr<Device> device);

  // Waits for what is in it.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] CuStream handle() const { return handle_; }
  [[nodiscard]] const std::shared_ptr<Device>& device() const { return device_; }
  // Waits until all work in it is done. On error none is in flight either: the call is made twice before it is
  // believed, and a context whose streams cannot be waited for has lost them.
  Status wait();

 private:
  explicit Stream(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  CuResult synchronize();

  const std::shared_ptr<Device> device_;
  CuStream handle_ = nullptr;
};

}  // namespace infercluster::gpu
