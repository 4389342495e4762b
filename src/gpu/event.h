// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "base/result.h"
#include "gpu/device.h"
#include "gpu/stream.h"
#include "memory/copier.h"

namespace infercluster::gpu {

// A point in the work of a stream: behind all that was queued when record() was called. Without timing, which makes it
// cheap. Until the first record() it has passed. Thread rule: one thread, but waiting for it may be left to others.
class Event final : public memory::Mark {
 public:
  static Result<std::unique_ptr<Event>> create(std::shared_ptr<Device> device);

  ~Event() override;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // Streams of this device only. Recording again moves the point; who waits already waits for the old one.
  Status record(const Stream& stream);
  Status record(StreamId stream);
  [[nodiscard]] Result<bool> passed() const override;
  Status wait() const override;

  [[nodiscard]] CuEvent handle() const { return handle_; }

 private:
  explicit Event(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  Status record_on(CuStream stream);

  const std::shared_ptr<Device> device_;
  CuEvent handle_ = nullptr;
};

// Work that is queued on `stream`, of this device, from now on begins only behind `mark`, an Event of the same device.
Status hold_back(const Device& device, StreamId stream, const memory::Mark& mark);

}  // namespace infercluster::gpu
