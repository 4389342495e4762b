// SPDX-License-Identifier: Apache-2.0
#include "testing/gpu_double/control.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "testing/gpu_double/counters.h"
#include "testing/gpu_double/driver.h"
#include "testing/gpu_double/exported.h"
#include "testing/gpu_double/stream.h"

namespace infercluster::gpu_double {
namespace {

std::optional<std::uint64_t> counter_of_device(std::string_view name, int device) {
  if (device < 0 || device >= kDevicesMax) return std::nullopt;
  Driver& driver = Driver::instance();
  if (name == "contexts_created") return driver.contexts_created(device);
  if (name == "contexts_retained") return driver.contexts_retained(device);
  if (name == "allocated_bytes") return driver.memory(device).allocated_bytes();
  return std::nullopt;
}

std::optional<std::uint64_t> value_of(std::string_view name) {
  const auto colon = name.find(':');
  if (colon == std::string_view::npos) return counters().value(name);
  const std::string_view detail = name.substr(colon + 1);
  if (name.substr(0, colon) == "calls") return fault_plan().count(detail);
  int device = -1;
  std::from_chars(detail.data(), detail.data() + detail.size(), device);
  return counter_of_device(name.substr(0, colon), device);
}

// Past ThreadSanitizer, as DeviceMemory::is_poison: the caller says that the time is right, or wants to see a race.
__attribute__((no_sanitize("thread"))) void copy_unseen(const volatile char* from, volatile char* to,
                                                        std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
}

}  // namespace

IC_EXPORT const char* ic_gpu_double_set_plan(const char* text) {
  thread_local std::string error;
  auto plan = parse_plan(text, error);
  if (!plan) return error.c_str();
  Driver::instance();
  fault_plan().set(std::move(*plan));
  return nullptr;
}

IC_EXPORT std::uint64_t ic_gpu_double_counter(const char* name) {
  Driver::instance();
  const auto value = value_of(name);
  if (value) return *value;
  std::fprintf(stderr, "gpu double: there is no counter '%s'\n", name);
  std::abort();
}

IC_EXPORT void ic_gpu_double_reset() {
  Driver::instance().reset(Driver::plan_of_environment());
}

IC_EXPORT void ic_gpu_double_hold() {
  gate().shut();
}

IC_EXPORT void ic_gpu_double_release() {
  gate().open();
}

IC_EXPORT void ic_gpu_double_finish() {
  for (int device = 0; device < kDevicesMax; ++device) Driver::instance().wait_for_device(device);
}

IC_EXPORT int ic_gpu_double_read(std::uint64_t address, void* to, std::size_t bytes) {
  Driver& driver = Driver::instance();
  const auto device = driver.device_of(address);
  if (!device || !driver.memory(*device).find(address, bytes)) return 0;
  copy_unseen(driver.memory(*device).bytes(address), static_cast<char*>(to), bytes);
  return 1;
}

IC_EXPORT int ic_gpu_double_is_poison(std::uint64_t address, std::size_t bytes) {
  Driver& driver = Driver::instance();
  const auto device = driver.device_of(address);
  if (!device || !driver.memory(*device).find(address, bytes)) return 0;
  return driver.memory(*device).is_poison(address, bytes) ? 1 : 0;
}

}  // namespace infercluster::gpu_double
