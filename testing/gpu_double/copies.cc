// SPDX-License-Identifier: Apache-2.0
#include "testing/gpu_double/copies.h"

#include <bit>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "testing/gpu_double/counters.h"
#include "testing/gpu_double/unseen.h"

namespace infercluster::gpu_double {
namespace {

char* host_pointer(std::uint64_t address) {
  return std::bit_cast<char*>(address);
}

// Device memory that one operation touches: what is known of it from being queued until it has run.
struct Touched {
  int device = 0;
  Rows rows;
  Address allocation = 0;
  DeviceMemory::Ticket ticket = 0;
  bool poison_later = false;
};

// Where a copy's end is, and that it may be touched.
std::optional<Touched> touch(Driver& driver, Address address, std::size_t pitch, std::size_t width,
                             std::size_t height) {
  Touched touched{.rows = Rows{address, width, pitch, height}};
  const auto device = driver.device_of(address);
  if (!device) return std::nullopt;
  touched.device = *device;
  const auto allocation = driver.memory(*device).find(address, touched.rows.span());
  if (!allocation) return std::nullopt;
  touched.allocation = allocation->address;
  return touched;
}

void begin(Driver& driver, Touched& touched) {
  bool poison_now = false;
  touched.ticket = driver.memory(touched.device).begin(touched.rows, poison_now);
  touched.poison_later = !poison_now;
}

// An operation that is ready to run. What it touches is in flight until it is gone.
struct Work {
  Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  ~Work() {
    const Unseen unseen;
    Driver& driver = Driver::instance();
    if (target) driver.memory(target->device).end(target->ticket);
    if (source) driver.memory(source->device).end(source->ticket);
    if (host) driver.host.end(*host);
  }

  std::optional<Touched> target;  // poisoned first
  std::optional<Touched> source;
  std::optional<HostMemory::Ticket> host;
  std::optional<Fault> fault;
  std::chrono::microseconds delay{0};
  std::function<void()> run;
};

// Whether the memory is still the one that was named when the operation was queued.
bool still_there(const Touched& touched) {
  const Unseen unseen;
  const auto allocation = Driver::instance().memory(touched.device).find(touched.rows.address, touched.rows.span());
  if (allocation && allocation->address == touched.allocation) return true;
  count_violation("a queued operation ran on memory that was freed meanwhile");
  return false;
}

void perform(Context& context, const Work& work) {
  if (work.target && work.target->poison_later) {
    Driver::instance().memory(work.target->device).poison(work.target->rows);
  }
  if (work.delay.count() != 0) std::this_thread::sleep_for(work.delay);
  if (work.fault) {
    fail(context, work.fault->kind == Fault::Kind::kCuda ? static_cast<CuResult>(work.fault->code) : CuResult::unknown);
  }
  if (context.failed.load(std::memory_order_relaxed) != CuResult::success) return;
  if (work.target && !still_there(*work.target)) return;
  if (work.source && !still_there(*work.source)) return;
  work.run();
}

std::optional<Point> enqueue(const StreamEntry& stream, std::shared_ptr<Work> work) {
  Driver& driver = Driver::instance();
  if (work->source) begin(driver, *work->source);
  if (work->target) {
    begin(driver, *work->target);
    if (!work->target->poison_later) driver.memory(work->target->device).poison(work->target->rows);
  }
  work->fault = fault_plan().on_async();
  work->delay = std::chrono::microseconds(fault_plan().next_delay_us());
  return driver.submit(stream, [context = stream.context.get(), work = std::move(work)] { perform(*context, *work); });
}

void copy_rows(char* to, std::size_t to_pitch, const char* from, std::size_t from_pitch, std::size_t width,
               std::size_t height) {
  if (width == to_pitch && width == from_pitch) {
    std::memmove(to, from, width * height);
    return;
  }
  for (std::size_t row = 0; row < height; ++row) std::memmove(to + row * to_pitch, from + row * from_pitch, width);
}

void count_copy(bool to_device, bool from_device, std::size_t bytes) {
  Counters& all = counters();
  if (to_device && from_device) {
    ++all.device_to_device_copies;
    all.device_to_device_bytes += bytes;
  } else if (to_device) {
    ++all.host_to_device_copies;
    all.host_to_device_bytes += bytes;
  } else if (from_device) {
    ++all.device_to_host_copies;
    all.device_to_host_bytes += bytes;
  }
}

bool is_pinned(const Context& context, const Side& side, std::size_t span) {
  return side.on_device || Driver::instance().host.pinned_for(context.handle, side.address, span);
}

}  // namespace

CuResult enqueue_copy(const std::shared_ptr<Context>& current, const StreamEntry& stream, const Side& to,
                      const Side& from, std::size_t width, std::size_t height) {
  if (width == 0 || height == 0) return CuResult::success;
  if (height > 1) {
    constexpr std::size_t kMax = kPitchMax;
    if (to.pitch < width || from.pitch < width || to.pitch > kMax || from.pitch > kMax) return CuResult::invalid_value;
    if (height > std::numeric_limits<std::uint32_t>::max()) return CuResult::invalid_value;
  }
  Driver& driver = Driver::instance();
  auto work = std::make_shared<Work>();
  if (to.on_device) {
    work->target = touch(driver, to.address, to.pitch, width, height);
    if (!work->target || work->target->device != current->device) return CuResult::invalid_value;
  }
  if (from.on_device) {
    work->source = touch(driver, from.address, from.pitch, width, height);
    if (!work->source) return CuResult::invalid_value;
  }
  const std::size_t to_span = Rows{to.address, width, to.pitch, height}.span();
  const std::size_t from_span = Rows{from.address, width, from.pitch, height}.span();
  const bool target_pinned = is_pinned(*current, to, to_span);
  const bool source_pinned = is_pinned(*current, from, from_span);
  if (!target_pinned || !source_pinned) ++counters().pageable_copies;
  if (!to.on_device) work->host = driver.host.begin(to.address, to_span);
  std::shared_ptr<std::vector<char>> staged;
  if (!source_pinned) {
    staged = std::make_shared<std::vector<char>>(host_pointer(from.address), host_pointer(from.address) + from_span);
  } else if (!from.on_device) {
    work->host = driver.host.begin(from.address, from_span);
  }
  char* target = to.on_device ? driver.memory(work->target->device).bytes(to.address) : host_pointer(to.address);
  const char* source = host_pointer(from.address);
  if (staged != nullptr) source = staged->data();
  if (from.on_device) source = driver.memory(work->source->device).bytes(from.address);
  work->run = [target, source, staged = std::move(staged), to, from, width, height] {
    copy_rows(target, to.pitch, source, from.pitch, width, height);
    count_copy(to.on_device, from.on_device, width * height);
  };
  const auto point = enqueue(stream, std::move(work));
  if (!point) return CuResult::invalid_handle;
  if (target_pinned) return CuResult::success;
  point->wait();
  return current->failed;
}

CuResult enqueue_fill(const std::shared_ptr<Context>& current, const StreamEntry& stream, Address to,
                      unsigned char value, std::size_t bytes) {
  if (bytes == 0) return CuResult::success;
  Driver& driver = Driver::instance();
  auto work = std::make_shared<Work>();
  work->target = touch(driver, to, bytes, bytes, 1);
  if (!work->target || work->target->device != current->device) return CuResult::invalid_value;
  char* target = driver.memory(work->target->device).bytes(to);
  work->run = [=] {
    std::memset(target, value, bytes);
    ++counters().memsets;
  };
  return enqueue(stream, std::move(work)) ? CuResult::success : CuResult::invalid_handle;
}

}  // namespace infercluster::gpu_double
