// SPDX-License-Identifier: Apache-2.0
// What the stand-in for the driver holds: devices, contexts, streams, events. The exported functions (cuda_*.cc,
// cufile.cc) check their arguments and end up here.
//
// Handles are numbers that are never given out twice, so that the use of something destroyed is always found.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "gpu/cuda_api.h"
#include "testing/gpu_double/device_memory.h"
#include "testing/gpu_double/fault_plan.h"
#include "testing/gpu_double/host_memory.h"
#include "testing/gpu_double/stream.h"

namespace infercluster::gpu_double {

using gpu::CuResult;
using Handle = std::uint64_t;

// A primary context, the only kind there is. Once `failed` is not success, all that is asked of it answers with that
// error until the context is gone, as in CUDA. The object stays until reset(), for operations that outlive their
// stream.
struct Context {
  Handle handle = 0;
  int device = 0;
  std::atomic<CuResult> failed{CuResult::success};
  std::shared_ptr<Stream> legacy = Stream::create();  // the default stream
};

struct StreamEntry {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
  bool blocking = false;  // ordered with the default stream
};

struct EventEntry {
  std::shared_ptr<Context> context;
  Point point;  // of the last record
};

// Thread-safe.
class Driver {
 public:
  // Begins with the plan of the environment.
  static Driver& instance();
  // The plan in INFERCLUSTER_GPU_DOUBLE; aborts when that makes no sense.
  static PlanText plan_of_environment();

  std::atomic<bool> initialized{false};
  HostMemory host;
  DeviceMemory& memory(int device) { return memories_[static_cast<std::size_t>(device)]; }
  // The device that the address belongs to.
  [[nodiscard]] std::optional<int> device_of(Address address) const;

  std::shared_ptr<Context> retain_primary(int device);
  CuResult release_primary(int device);
  [[nodiscard]] bool primary_active(int device) const;
  [[nodiscard]] std::uint64_t contexts_created(int device) const;
  [[nodiscard]] std::uint64_t contexts_retained(int device) const;
  [[nodiscard]] std::shared_ptr<Context> context(Handle handle) const;

  // The calling thread's stack of contexts.
  void push_current(Handle handle);
  std::optional<Handle> pop_current();
  [[nodiscard]] Handle current_handle() const;  // 0: none
  // The calling thread's context, or why it cannot be used: none, destroyed, or failed.
  CuResult current(std::shared_ptr<Context>& context) const;

  Handle add_stream(StreamEntry entry);
  // The default stream for 0 and 1 (CU_STREAM_LEGACY).
  CuResult find_stream(Handle handle, const std::shared_ptr<Context>& current, StreamEntry& entry) const;
  CuResult destroy_stream(Handle handle);
  Handle add_event(std::shared_ptr<Context> context);
  [[nodiscard]] std::optional<EventEntry> find_event(Handle handle) const;
  bool set_event(Handle handle, Point point);
  bool destroy_event(Handle handle);

  // Queues `operation` behind what it must follow: the stream, and for the default stream all blocking ones (and the
  // other way round).
  std::optional<Point> submit(const StreamEntry& entry, std::function<void()> operation);
  // Waits for all streams of a device.
  void wait_for_device(int device) const;

  // Everything goes but cuInit; the plan becomes `plan`. Waits for all that runs.
  void reset(PlanText plan);

  // For the cuFile double, which keeps its state here so that reset() finds it.
  struct CuFile {
    struct File {
      int fd = -1;
      std::uint64_t device = 0;
      std::uint64_t inode = 0;
      bool direct = false;
    };
    std::mutex mutex;
    int driver_opens = 0;
    std::optional<int> retained_device;  // the context that opening it created
    std::map<Handle, File> files;
    std::map<Address, std::size_t> buffers;
  };
  CuFile cufile;
  Handle next_handle() { return handles_ += 16; }

 private:
  struct Primary {
    std::shared_ptr<Context> context;
    std::uint64_t retained = 0;
    std::uint64_t created = 0;
  };

  Driver() = default;
  static Driver* create();
  void destroy_context(const std::shared_ptr<Context>& context);
  std::vector<Point> predecessors(const StreamEntry& entry) const;
  std::vector<Point> points_of(int device) const;

  mutable std::mutex mutex_;
  std::array<Primary, kDevicesMax> primaries_;      // guarded by mutex_
  std::vector<std::shared_ptr<Context>> contexts_;  // guarded by mutex_: all of them, until reset()
  std::map<Handle, StreamEntry> streams_;           // guarded by mutex_
  std::map<Handle, EventEntry> events_;             // guarded by mutex_
  std::atomic<std::uint64_t> generation_{1};        // of thread-local stacks: reset() ends them all
  std::atomic<Handle> handles_{0x1000};
  std::array<DeviceMemory, kDevicesMax> memories_;
};

// Fails a context: the first error stays.
void fail(Context& context, CuResult error);

}  // namespace infercluster::gpu_double
