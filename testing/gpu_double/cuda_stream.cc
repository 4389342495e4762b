// SPDX-License-Identifier: Apache-2.0
// libcuda.so.1: streams and events.
#include <bit>

#include "gpu/cuda_api.h"
#include "testing/gpu_double/exported.h"
#include "testing/gpu_double/guard.h"

namespace infercluster::gpu_double {
namespace {

using namespace infercluster::gpu;  // NOLINT(google-build-using-namespace): the API that this file implements

constexpr unsigned kEventFlagsKnown = 0x07;

// What a finished point means: success, or the error that its context failed with.
CuResult outcome(const Context& context) {
  return context.failed;
}

}  // namespace

IC_EXPORT CuResult cuStreamCreate(CuStream* stream, unsigned flags) {
  return call_in_context("cuStreamCreate", [&](Driver& driver, const std::shared_ptr<Context>& context) {
    if (stream == nullptr || (flags & ~kCuStreamNonBlocking) != 0) return CuResult::invalid_value;
    const bool blocking = (flags & kCuStreamNonBlocking) == 0;
    *stream = std::bit_cast<CuStream>(driver.add_stream({context, Stream::create(), blocking}));
    return CuResult::success;
  });
}

IC_EXPORT CuResult cuStreamDestroy_v2(CuStream stream) {
  return release("cuStreamDestroy",
                 [&](Driver& driver) { return driver.destroy_stream(std::bit_cast<Handle>(stream)); });
}

IC_EXPORT CuResult cuStreamSynchronize(CuStream stream) {
  return wait_in_context("cuStreamSynchronize", [&](Driver& driver, const std::shared_ptr<Context>& context) {
    StreamEntry entry;
    const CuResult found = driver.find_stream(std::bit_cast<Handle>(stream), context, entry);
    if (found != CuResult::success) return found;
    entry.stream->wait(entry.stream->submitted());
    return outcome(*entry.context);
  });
}

IC_EXPORT CuResult cuStreamQuery(CuStream stream) {
  return call_in_context("cuStreamQuery", [&](Driver& driver, const std::shared_ptr<Context>& context) {
    StreamEntry entry;
    const CuResult found = driver.find_stream(std::bit_cast<Handle>(stream), context, entry);
    if (found != CuResult::success) return found;
    if (!entry.stream->reached(entry.stream->submitted())) return CuResult::not_ready;
    return outcome(*entry.context);
  });
}

IC_EXPORT CuResult cuStreamWaitEvent(CuStream stream, CuEvent event, unsigned flags) {
  return call_in_context("cuStreamWaitEvent", [&](Driver& driver, const std::shared_ptr<Context>& context) {
    if (flags > 1) return CuResult::invalid_value;  // CU_EVENT_WAIT_EXTERNAL is the only one
    StreamEntry entry;
    const CuResult found = driver.find_stream(std::bit_cast<Handle>(stream), context, entry);
    if (found != CuResult::success) return found;
    const auto recorded = driver.find_event(std::bit_cast<Handle>(event));
    if (!recorded) return CuResult::invalid_handle;
    const Point point = recorded->point;
    if (point.stream == nullptr || point.stream == entry.stream) return CuResult::success;
    return driver.submit(entry, [point] { point.wait(); }) ? CuResult::success : CuResult::invalid_handle;
  });
}

IC_EXPORT CuResult cuEventCreate(CuEvent* event, unsigned flags) {
  return call_in_context("cuEventCreate", [&](Driver& driver, const std::shared_ptr<Context>& context) {
    if (event == nullptr || (flags & ~kEventFlagsKnown) != 0) return CuResult::invalid_value;
    *event = std::bit_cast<CuEvent>(driver.add_event(context));
    return CuResult::success;
  });
}

IC_EXPORT CuResult cuEventDestroy_v2(CuEvent event) {
  return release("cuEventDestroy", [&](Driver& driver) {
    return driver.destroy_event(std::bit_cast<Handle>(event)) ? CuResult::success : CuResult::invalid_handle;
  });
}

IC_EXPORT CuResult cuEventRecord(CuEvent event, CuStream stream) {
  return call_in_context("cuEventRecord", [&](Driver& driver, const std::shared_ptr<Context>& context) {
    StreamEntry entry;
    const CuResult found = driver.find_stream(std::bit_cast<Handle>(stream), context, entry);
    if (found != CuResult::success) return found;
    const auto known = driver.find_event(std::bit_cast<Handle>(event));
    if (!known || known->context != context) return CuResult::invalid_handle;
    auto point = driver.submit(entry, [] {});
    if (!point || !driver.set_event(std::bit_cast<Handle>(event), std::move(*point))) return CuResult::invalid_handle;
    return CuResult::success;
  });
}

IC_EXPORT CuResult cuEventQuery(CuEvent event) {
  return call("cuEventQuery", [&](Driver& driver) {
    const auto known = driver.find_event(std::bit_cast<Handle>(event));
    if (!known) return CuResult::invalid_handle;
    if (outcome(*known->context) != CuResult::success) return outcome(*known->context);
    return known->point.reached() ? outcome(*known->context) : CuResult::not_ready;
  });
}

IC_EXPORT CuResult cuEventSynchronize(CuEvent event) {
  return call_regardless("cuEventSynchronize", [&](Driver& driver) {
    const auto known = driver.find_event(std::bit_cast<Handle>(event));
    if (!known) return CuResult::invalid_handle;
    known->point.wait();
    return outcome(*known->context);
  });
}

}  // namespace infercluster::gpu_double
