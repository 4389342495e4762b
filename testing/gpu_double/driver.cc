// SPDX-License-Identifier: Apache-2.0
#include "testing/gpu_double/driver.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "testing/gpu_double/counters.h"

namespace infercluster::gpu_double {
namespace {

struct ContextStack {
  std::uint64_t generation = 0;
  std::vector<Handle> handles;
};

ContextStack& stack_of(std::uint64_t generation) {
  thread_local ContextStack stack;
  if (stack.generation != generation) stack = ContextStack{generation, {}};
  return stack;
}

constexpr Handle kStreamLegacy = 1;     // CU_STREAM_LEGACY
constexpr Handle kStreamPerThread = 2;  // CU_STREAM_PER_THREAD

}  // namespace

void fail(Context& context, CuResult error) {
  CuResult expected = CuResult::success;
  context.failed.compare_exchange_strong(expected, error, std::memory_order_relaxed);  // streams order, errors do not
}

PlanText Driver::plan_of_environment() {
  const char* text = std::getenv("INFERCLUSTER_GPU_DOUBLE");
  std::string error;
  auto plan = parse_plan(text == nullptr ? "" : text, error);
  if (plan) return std::move(*plan);
  std::fprintf(stderr, "%s (INFERCLUSTER_GPU_DOUBLE)\n", error.c_str());
  std::abort();
}

Driver* Driver::create() {
  auto* driver = new Driver;
  driver->reset(plan_of_environment());
  return driver;
}

Driver& Driver::instance() {
  static Driver& driver = *create();  // never destroyed: workers may outlive main()
  return driver;
}

std::optional<int> Driver::device_of(Address address) const {
  for (int device = 0; device < kDevicesMax; ++device) {
    if (memories_[static_cast<std::size_t>(device)].owns(address)) return device;
  }
  return std::nullopt;
}

std::shared_ptr<Context> Driver::retain_primary(int device) {
  const std::scoped_lock lock(mutex_);
  Primary& primary = primaries_[static_cast<std::size_t>(device)];
  if (primary.context == nullptr) {
    primary.context = std::make_shared<Context>();
    primary.context->handle = next_handle();
    primary.context->device = device;
    contexts_.push_back(primary.context);
    ++primary.created;
    ++counters().contexts_created;
  }
  ++primary.retained;
  ++counters().contexts_retained;
  return primary.context;
}

CuResult Driver::release_primary(int device) {
  std::shared_ptr<Context> last;
  {
    const std::scoped_lock lock(mutex_);
    Primary& primary = primaries_[static_cast<std::size_t>(device)];
    if (primary.context == nullptr) return CuResult::invalid_context;
    --counters().contexts_retained;
    if (--primary.retained == 0) last = std::exchange(primary.context, nullptr);
  }
  if (last != nullptr) destroy_context(last);
  return CuResult::success;
}

void Driver::destroy_context(const std::shared_ptr<Context>& context) {
  std::vector<std::shared_ptr<Stream>> closing = {context->legacy};
  std::size_t in_use = 0;
  {
    const std::scoped_lock lock(mutex_);
    in_use += std::erase_if(events_, [&](const auto& event) { return event.second.context == context; });
    counters().events -= in_use;
    for (const auto& [handle, entry] : streams_) {
      if (entry.context == context) closing.push_back(entry.stream);
    }
    const std::size_t streams = std::erase_if(streams_, [&](const auto& s) { return s.second.context == context; });
    counters().streams -= streams;
    in_use += streams;
  }
  for (const auto& stream : closing) stream->wait(stream->submitted());
  for (const auto& stream : closing) stream->close();
  in_use += memory(context->device).release_all_of(context->handle);
  in_use += host.remove_all_of(context->handle);
  counters().contexts_destroyed_in_use += in_use;
}

bool Driver::primary_active(int device) const {
  const std::scoped_lock lock(mutex_);
  return primaries_[static_cast<std::size_t>(device)].context != nullptr;
}

std::uint64_t Driver::contexts_created(int device) const {
  const std::scoped_lock lock(mutex_);
  return primaries_[static_cast<std::size_t>(device)].created;
}

std::uint64_t Driver::contexts_retained(int device) const {
  const std::scoped_lock lock(mutex_);
  return primaries_[static_cast<std::size_t>(device)].retained;
}

std::shared_ptr<Context> Driver::context(Handle handle) const {
  const std::scoped_lock lock(mutex_);
  for (const Primary& primary : primaries_) {
    if (primary.context != nullptr && primary.context->handle == handle) return primary.context;
  }
  return nullptr;
}

void Driver::push_current(Handle handle) {
  stack_of(generation_).handles.push_back(handle);
}

std::optional<Handle> Driver::pop_current() {
  std::vector<Handle>& handles = stack_of(generation_).handles;
  if (handles.empty()) return std::nullopt;
  const Handle top = handles.back();
  handles.pop_back();
  return top;
}

Handle Driver::current_handle() const {
  const std::vector<Handle>& handles = stack_of(generation_).handles;
  return handles.empty() ? 0 : handles.back();
}

CuResult Driver::current(std::shared_ptr<Context>& found) const {
  const Handle handle = current_handle();
  if (handle == 0) return CuResult::invalid_context;
  found = context(handle);
  if (found == nullptr) return CuResult::context_is_destroyed;
  return found->failed;
}

Handle Driver::add_stream(StreamEntry entry) {
  const std::scoped_lock lock(mutex_);
  const Handle handle = next_handle();
  streams_.emplace(handle, std::move(entry));
  ++counters().streams;
  return handle;
}

CuResult Driver::find_stream(Handle handle, const std::shared_ptr<Context>& current, StreamEntry& entry) const {
  if (handle == kStreamPerThread) return CuResult::not_supported;
  if (handle == 0 || handle == kStreamLegacy) {
    entry = StreamEntry{current, current->legacy, true};
    return CuResult::success;
  }
  const std::scoped_lock lock(mutex_);
  const auto found = streams_.find(handle);
  if (found == streams_.end() || found->second.context != current) return CuResult::invalid_handle;
  entry = found->second;
  return CuResult::success;
}

CuResult Driver::destroy_stream(Handle handle) {
  StreamEntry entry;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = streams_.find(handle);
    if (found == streams_.end()) return CuResult::invalid_handle;
    entry = std::move(found->second);
    streams_.erase(found);
    --counters().streams;
  }
  if (!entry.stream->close()) ++counters().streams_destroyed_in_flight;
  return entry.context->failed;
}

Handle Driver::add_event(std::shared_ptr<Context> context) {
  const std::scoped_lock lock(mutex_);
  const Handle handle = next_handle();
  events_.emplace(handle, EventEntry{std::move(context), {}});
  ++counters().events;
  return handle;
}

std::optional<EventEntry> Driver::find_event(Handle handle) const {
  const std::scoped_lock lock(mutex_);
  const auto found = events_.find(handle);
  return found == events_.end() ? std::nullopt : std::optional(found->second);
}

bool Driver::set_event(Handle handle, Point point) {
  const std::scoped_lock lock(mutex_);
  const auto found = events_.find(handle);
  if (found == events_.end()) return false;
  found->second.point = std::move(point);
  return true;
}

bool Driver::destroy_event(Handle handle) {
  const std::scoped_lock lock(mutex_);
  if (events_.erase(handle) == 0) return false;
  --counters().events;
  return true;
}

std::vector<Point> Driver::predecessors(const StreamEntry& entry) const {
  std::vector<Point> points;
  if (!entry.blocking) return points;
  const std::shared_ptr<Stream>& legacy = entry.context->legacy;
  if (entry.stream != legacy) {
    points.push_back(Point{legacy, legacy->submitted()});
    return points;
  }
  const std::scoped_lock lock(mutex_);
  for (const auto& [handle, other] : streams_) {
    if (other.blocking && other.context == entry.context) points.push_back({other.stream, other.stream->submitted()});
  }
  return points;
}

std::optional<Point> Driver::submit(const StreamEntry& entry, std::function<void()> operation) {
  std::vector<Point> first = predecessors(entry);
  std::erase_if(first, [](const Point& point) { return point.sequence == 0; });
  if (!first.empty()) {
    operation = [first = std::move(first), operation = std::move(operation)] {
      for (const Point& point : first) point.wait();
      operation();
    };
  }
  const auto sequence = entry.stream->submit(std::move(operation));
  if (!sequence) return std::nullopt;
  return Point{entry.stream, *sequence};
}

std::vector<Point> Driver::points_of(int device) const {
  const std::scoped_lock lock(mutex_);
  std::vector<Point> points;
  for (const auto& [handle, entry] : streams_) {
    if (entry.context->device == device) points.push_back({entry.stream, entry.stream->submitted()});
  }
  const Primary& primary = primaries_[static_cast<std::size_t>(device)];
  if (primary.context != nullptr) points.push_back({primary.context->legacy, primary.context->legacy->submitted()});
  return points;
}

void Driver::wait_for_device(int device) const {
  for (const Point& point : points_of(device)) point.wait();
}

void Driver::reset(PlanText plan) {
  gate().open();
  for (int device = 0; device < kDevicesMax; ++device) {
    while (release_primary(device) == CuResult::success) {
    }
  }
  wait_for_no_threads();
  const std::uint64_t seed = plan.settings.seed;
  fault_plan().set(std::move(plan));
  for (DeviceMemory& memory : memories_) memory.reset(seed);
  host.reset();
  {
    const std::scoped_lock lock(cufile.mutex);
    cufile.driver_opens = 0;
    cufile.retained_device.reset();
    cufile.files.clear();
    cufile.buffers.clear();
  }
  const std::scoped_lock lock(mutex_);
  for (Primary& primary : primaries_) primary.created = 0;
  contexts_.clear();
  ++generation_;
  counters().clear();
}

}  // namespace infercluster::gpu_double
