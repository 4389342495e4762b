// SPDX-License-Identifier: Apache-2.0
// Copies between arenas and the memory of devices, for one save or one restore.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/result.h"
#include "checkpoint/box_copy.h"
#include "checkpoint/strided_copy.h"
#include "gpu/device.h"
#include "memory/copier.h"

namespace infercluster::checkpoint {

// By a device's ordinal: the stream whose work uses the memory (torch.cuda.Stream.cuda_stream). Devices that are not
// named: their legacy default stream.
using DeviceStreams = std::map<int, std::uintptr_t>;

// In a device's memory a piece is contiguous, or rows of neighbours at equal distances, as a slice of columns is: one
// copy of the hardware. Anything else is refused (invalid_argument) by name.
Status check_device_strides(const Piece& piece, const Strides& strides);

class DeviceCopies;

// All copies that were begun until it was taken. Thread-safe. Its end waits for them, so that their memory may go.
class Arrival {
 public:
  ~Arrival();
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;

  // The error, if there was one, each time it is asked for. No copy is under way then either.
  Status wait();
  Result<bool> passed();

 private:
  friend class DeviceCopies;
  explicit Arrival(std::shared_ptr<DeviceCopies> copies) : copies_(std::move(copies)) {}
  Status settle(Status done);  // with mutex_ held

  const std::shared_ptr<DeviceCopies> copies_;
  std::vector<std::shared_ptr<const memory::Mark>> marks_;
  std::mutex mutex_;
  std::optional<Status> settled_;  // guarded by mutex_
};

// Streams of our own, one for each device that is used; on no other is there a context. Thread-safe.
class DeviceCopies : public std::enable_shared_from_this<DeviceCopies> {
 public:
  // Copies begin behind what is queued on `streams` when a device is opened.
  static std::shared_ptr<DeviceCopies> make(DeviceStreams streams);

  // Errors: those of gpu::Device::open and gpu::make_copier.
  Result<std::shared_ptr<gpu::Device>> open(int ordinal);

  enum class Direction : std::uint8_t { to_host, to_device };
  // The device's side of `item` has its address as a pointer; the host's should be pinned. The device was opened.
  Status copy(int ordinal, Direction direction, const StridedCopy& item);
  Result<std::shared_ptr<Arrival>> arrival();
  // What is queued on the callers' streams from now on begins only behind the copies until now.
  Status hold_callers_back();
  // Waits for all copies. On error none is under way either.
  Status drain();

 private:
  explicit DeviceCopies(DeviceStreams streams) : streams_(std::move(streams)) {}
  [[nodiscard]] std::uintptr_t stream_of(int ordinal) const;

  struct Side {
    std::shared_ptr<gpu::Device> device;
    std::unique_ptr<memory::Copier> copier;
  };
  const DeviceStreams streams_;
  std::mutex mutex_;
  std::map<int, Side> sides_;  // guarded by mutex_
};

}  // namespace infercluster::checkpoint
