// SPDX-License-Identifier: Apache-2.0
#include "testing/gpu_double/copies.h"

#include <bit>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "testing/gpu_double/counters.h"

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

// Whether the memory is still the one that was named when the operation was queued.
bool still_there(Driver& driver, const Touched& touched) {
  const auto allocation = driver.memory(touched.device).find(touched.rows.address, touched.rows.span());
  if (allocation && allocation->address == touched.allocation) return true;
  count_violation("a queued operation ran on memory that was freed meanwhile");
  return false;
}

void delay() {
  const std::uint64_t delay_us = fault_plan().next_delay_us();
  if (delay_us != 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
}

// An operation that is ready to run.
struct Work {
  std::optional<Touched> target;  // poisoned first
  std::optional<Touched> source;
  std::optional<HostMemory::Ticket> host;
  std::function<void()> run;
};

void forget(Driver& driver, const Work& work) {
  if (work.target) driver.memory(work.target->device).end(work.target->ticket);
  if (work.source) driver.memory(work.source->device).end(work.source->ticket);
  if (work.host) driver.host.end(*work.host);
}

void perform(Driver& driver, const std::shared_ptr<Context>& context, const std::optional<Fault>& fault, Work& work) {
  if (work.target && work.target->poison_later) driver.memory(work.target->device).poison(work.target->rows);
  delay();
  if (fault && fault->kind == Fault::Kind::kCuda) {
    fail(*context, static_cast<CuResult>(fault->code));
  } else if (fault) {
    fail(*context, CuResult::unknown);
  } else if (context->failed == CuResult::success) {
    const bool target_there = !work.target || still_there(driver, *work.target);
    if (target_there && (!work.source || still_there(driver, *work.source))) work.run();
  }
  forget(driver, work);
}

std::optional<Point> enqueue(const StreamEntry& stream, Work work) {
  Driver& driver = Driver::instance();
  if (work.source) begin(driver, *work.source);
  if (work.target) {
    begin(driver, *work.target);
    if (!work.target->poison_later) driver.memory(work.target->device).poison(work.target->rows);
  }
  auto shared = std::make_shared<Work>(std::move(work));
  auto point = driver.submit(stream, [&driver, context = stream.context, fault = fault_plan().on_async(), shared] {
    perform(driver, context, fault, *shared);
  });
  if (!point) forget(driver, *shared);
  return point;
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
  Work work;
  if (to.on_device) {
    work.target = touch(driver, to.address, to.pitch, width, height);
    if (!work.target || work.target->device != current->device) return CuResult::invalid_value;
  }
  if (from.on_device) {
    work.source = touch(driver, from.address, from.pitch, width, height);
    if (!work.source) return CuResult::invalid_value;
  }
  const std::size_t to_span = Rows{to.address, width, to.pitch, height}.span();
  const std::size_t from_span = Rows{from.address, width, from.pitch, height}.span();
  const bool target_pinned = is_pinned(*current, to, to_span);
  const bool source_pinned = is_pinned(*current, from, from_span);
  if (!target_pinned || !source_pinned) ++counters().pageable_copies;
  if (!to.on_device) work.host = driver.host.begin(to.address, to_span);
  std::shared_ptr<std::vector<char>> staged;
  if (!source_pinned) {
    staged = std::make_shared<std::vector<char>>(host_pointer(from.address), host_pointer(from.address) + from_span);
  } else if (!from.on_device) {
    work.host = driver.host.begin(from.address, from_span);
  }
  char* target = to.on_device ? driver.memory(work.target->device).bytes(to.address) : host_pointer(to.address);
  const char* source = host_pointer(from.address);
  if (staged != nullptr) source = staged->data();
  if (from.on_device) source = driver.memory(work.source->device).bytes(from.address);
  work.run = [target, source, staged = std::move(staged), to, from, width, height] {
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
  Work work;
  work.target = touch(driver, to, bytes, bytes, 1);
  if (!work.target || work.target->device != current->device) return CuResult::invalid_value;
  char* target = driver.memory(work.target->device).bytes(to);
  work.run = [=] {
    std::memset(target, value, bytes);
    ++counters().memsets;
  };
  return enqueue(stream, std::move(work)) ? CuResult::success : CuResult::invalid_handle;
}

}  // namespace infercluster::gpu_double
