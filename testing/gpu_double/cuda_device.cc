// SPDX-License-Identifier: Apache-2.0
// libcuda.so.1: the driver, devices, primary contexts and the stack of current ones.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "gpu/cuda_api.h"
#include "testing/gpu_double/copies.h"
#include "testing/gpu_double/exported.h"
#include "testing/gpu_double/guard.h"

namespace infercluster::gpu_double {
namespace {

using namespace infercluster::gpu;  // NOLINT(google-build-using-namespace): the API that this file implements

bool is_device(CuDevice device) {
  return device >= 0 && device < fault_plan().settings().devices;
}

template <typename Body>
CuResult call_on_device(std::string_view name, CuDevice device, Body body) {
  return call(name, [&](Driver& driver) { return is_device(device) ? body(driver) : CuResult::invalid_device; });
}

CuResult put_text(const std::string& text, char* target, int length) {
  if (target == nullptr || length <= 0) return CuResult::invalid_value;
  const std::size_t count = std::min(text.size(), static_cast<std::size_t>(length) - 1);
  std::memcpy(target, text.data(), count);
  target[count] = '\0';
  return CuResult::success;
}

constexpr std::array<std::pair<CuDeviceAttribute, int>, 8> kAttributes = {{
    {CuDeviceAttribute::max_pitch, kPitchMax},
    {CuDeviceAttribute::integrated, 0},
    {CuDeviceAttribute::async_engine_count, 3},
    {CuDeviceAttribute::unified_addressing, 1},
    {CuDeviceAttribute::compute_capability_major, 9},
    {CuDeviceAttribute::compute_capability_minor, 0},
    {CuDeviceAttribute::host_register_supported, 1},
    {CuDeviceAttribute::gpu_direct_rdma_supported, 1},
}};

std::optional<int> attribute_value(CuDeviceAttribute attribute) {
  const Settings settings = fault_plan().settings();
  const auto planned = settings.attributes.find(static_cast<int>(attribute));
  if (planned != settings.attributes.end()) return planned->second;
  const auto found = std::find_if(kAttributes.begin(), kAttributes.end(),
                                  [attribute](const auto& known) { return known.first == attribute; });
  return found == kAttributes.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

IC_EXPORT CuResult cuInit(unsigned flags) {
  Driver& driver = Driver::instance();
  if (const auto error = injected("cuInit")) return *error;
  if (flags != 0) return CuResult::invalid_value;
  if (fault_plan().settings().devices == 0) return CuResult::no_device;
  driver.initialized = true;
  return CuResult::success;
}

IC_EXPORT CuResult cuDriverGetVersion(int* version) {
  Driver::instance();
  if (const auto error = injected("cuDriverGetVersion")) return *error;
  if (version == nullptr) return CuResult::invalid_value;
  *version = fault_plan().settings().driver_version;
  return CuResult::success;
}

IC_EXPORT CuResult cuGetErrorName(CuResult result, const char** text) {
  Driver::instance();
  if (const auto error = injected("cuGetErrorName")) return *error;
  if (text == nullptr) return CuResult::invalid_value;
  *text = cuda_error_name(static_cast<int>(result));
  return *text == nullptr ? CuResult::invalid_value : CuResult::success;
}

IC_EXPORT CuResult cuGetErrorString(CuResult result, const char** text) {
  Driver::instance();
  if (const auto error = injected("cuGetErrorString")) return *error;
  if (text == nullptr) return CuResult::invalid_value;
  *text =
      cuda_error_name(static_cast<int>(result)) == nullptr ? nullptr : "as the gpu double was told, or what it found";
  return *text == nullptr ? CuResult::invalid_value : CuResult::success;
}

IC_EXPORT CuResult cuDeviceGetCount(int* count) {
  return call("cuDeviceGetCount", [&](Driver&) {
    if (count == nullptr) return CuResult::invalid_value;
    *count = fault_plan().settings().devices;
    return CuResult::success;
  });
}

IC_EXPORT CuResult cuDeviceGet(CuDevice* device, int ordinal) {
  return call_on_device("cuDeviceGet", ordinal, [&](Driver&) {
    if (device == nullptr) return CuResult::invalid_value;
    *device = ordinal;
    return CuResult::success;
  });
}

IC_EXPORT CuResult cuDeviceGetName(char* name, int length, CuDevice device) {
  return call_on_device("cuDeviceGetName", device,
                        [&](Driver&) { return put_text("GPU double " + std::to_string(device), name, length); });
}

IC_EXPORT CuResult cuDeviceGetPCIBusId(char* id, int length, CuDevice device) {
  return call_on_device("cuDeviceGetPCIBusId", device, [&](Driver&) {
    return put_text("fffe:0" + std::to_string(device) + ":00.0", id, length);  // a domain that no machine has
  });
}

IC_EXPORT CuResult cuDeviceGetAttribute(int* value, CuDeviceAttribute attribute, CuDevice device) {
  return call_on_device("cuDeviceGetAttribute", device, [&](Driver&) {
    const auto found = attribute_value(attribute);
    if (value == nullptr || !found) return CuResult::invalid_value;
    *value = *found;
    return CuResult::success;
  });
}

IC_EXPORT CuResult cuDeviceTotalMem_v2(std::size_t* bytes, CuDevice device) {
  return call_on_device("cuDeviceTotalMem", device, [&](Driver&) {
    if (bytes == nullptr) return CuResult::invalid_value;
    *bytes = fault_plan().settings().memory_bytes;
    return CuResult::success;
  });
}

IC_EXPORT CuResult cuDevicePrimaryCtxRetain(CuContext* context, CuDevice device) {
  return call_on_device("cuDevicePrimaryCtxRetain", device, [&](Driver& driver) {
    if (context == nullptr) return CuResult::invalid_value;
    *context = std::bit_cast<CuContext>(driver.retain_primary(device)->handle);
    return CuResult::success;
  });
}

IC_EXPORT CuResult cuDevicePrimaryCtxRelease_v2(CuDevice device) {
  return call_regardless("cuDevicePrimaryCtxRelease", [&](Driver& driver) {
    return is_device(device) ? driver.release_primary(device) : CuResult::invalid_device;
  });
}

IC_EXPORT CuResult cuDevicePrimaryCtxGetState(CuDevice device, unsigned* flags, int* active) {
  return call_on_device("cuDevicePrimaryCtxGetState", device, [&](Driver& driver) {
    if (flags == nullptr || active == nullptr) return CuResult::invalid_value;
    *flags = 0;
    *active = driver.primary_active(device) ? 1 : 0;
    return CuResult::success;
  });
}

IC_EXPORT CuResult cuCtxPushCurrent_v2(CuContext context) {
  return call("cuCtxPushCurrent", [&](Driver& driver) {
    const auto handle = std::bit_cast<Handle>(context);
    if (driver.context(handle) == nullptr) return CuResult::invalid_context;
    driver.push_current(handle);
    return CuResult::success;
  });
}

IC_EXPORT CuResult cuCtxPopCurrent_v2(CuContext* context) {
  return call_regardless("cuCtxPopCurrent", [&](Driver& driver) {
    const auto popped = driver.pop_current();
    if (!popped) return CuResult::invalid_context;
    if (context != nullptr) *context = std::bit_cast<CuContext>(*popped);
    return CuResult::success;
  });
}

IC_EXPORT CuResult cuCtxGetCurrent(CuContext* context) {
  return call("cuCtxGetCurrent", [&](Driver& driver) {
    if (context == nullptr) return CuResult::invalid_value;
    *context = std::bit_cast<CuContext>(driver.current_handle());
    return CuResult::success;
  });
}

}  // namespace infercluster::gpu_double
