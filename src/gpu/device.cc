// SPDX-License-Identifier: Apache-2.0
#include "gpu/device.h"

#include <array>
#include <cctype>
#include <map>
#include <mutex>

#include "base/log.h"
#include "os/file.h"
#include "os/text.h"

namespace infercluster::gpu {
namespace {

// Devices that are open in this process, so that two jobs share one. Never destroyed: destructors of others may run
// later.
struct OpenDevices {
  std::mutex mutex;
  std::map<int, std::weak_ptr<Device>> by_ordinal;  // guarded by mutex
};

OpenDevices& open_devices() {
  static auto* const devices = new OpenDevices();  // NOLINT(cppcoreguidelines-owning-memory): see above
  return *devices;
}

}  // namespace

Result<int> device_count() {
  IC_TRY(const Driver* loaded, driver());
  int count = 0;
  const CuResult result = loaded->api().cuDeviceGetCount(&count);
  if (result != CuResult::success) return loaded->error(result, "cuDeviceGetCount", "count the GPUs");
  return count;
}

Result<std::string> pci_bus_id_of(const Driver& driver, CuDevice device) {
  std::array<char, 64> text{};
  const CuResult result = driver.api().cuDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()) - 1, device);
  if (result != CuResult::success) return driver.error(result, "cuDeviceGetPCIBusId", "get a GPU's PCI address");
  std::string id = text.data();
  for (char& digit : id) digit = static_cast<char>(std::tolower(static_cast<unsigned char>(digit)));
  return id;
}

std::optional<int> numa_node_of_pci_device(const std::string& pci_bus_id, const std::string& root) {
  const auto text = os::read_small_file(root + "sys/bus/pci/devices/" + pci_bus_id + "/numa_node", 64);
  if (!text.ok()) return std::nullopt;
  const auto node = os::leading_number(*text);  // "-1": the firmware does not say
  if (!node || *node > 1023) return std::nullopt;
  return static_cast<int>(*node);
}

Result<std::shared_ptr<Device>> Device::open(int ordinal) {
  IC_TRY(const Driver* loaded, gpu::driver());
  OpenDevices& devices = open_devices();
  // Held while the context is made: two openers get one device, and one reference to its context.
  const std::scoped_lock lock(devices.mutex);
  std::weak_ptr<Device>& known = devices.by_ordinal[ordinal];
  if (auto device = known.lock()) return device;
  auto made = make(*loaded, ordinal);
  if (!made.ok()) {
    devices.by_ordinal.erase(ordinal);
    return made;
  }
  known = *made;
  return made;
}

Result<std::shared_ptr<Device>> Device::make(const Driver& driver, int ordinal) {
  IC_TRY(const int count, device_count());
  if (ordinal < 0 || ordinal >= count) {
    const std::string there = count == 0   ? "there is none"
                              : count == 1 ? "there is one, 0"
                                           : "there are " + std::to_string(count) + ", from 0 on";
    return Error(ErrorCode::invalid_argument, "there is no GPU " + std::to_string(ordinal) + ": " + there)
        .with_hint("CUDA_VISIBLE_DEVICES may hide GPUs: nvidia-smi lists them all");
  }
  std::shared_ptr<Device> device(new Device(driver, ordinal));  // NOLINT: the constructor is private
  IC_CHECK(device->find());
  return device;
}

Status Device::find() {
  const CudaApi& api = driver_.api();
  CuResult result = api.cuDeviceGet(&handle_, ordinal_);
  if (result != CuResult::success) return error(result, "cuDeviceGet", "find");
  std::array<char, 256> text{};
  result = api.cuDeviceGetName(text.data(), static_cast<int>(text.size()) - 1, handle_);
  if (result != CuResult::success) return error(result, "cuDeviceGetName", "get the name");
  name_ = text.data();
  IC_TRY(pci_bus_id_, pci_bus_id_of(driver_, handle_));
  numa_node_ = numa_node_of_pci_device(pci_bus_id_, "/");
  CuContext context = nullptr;
  result = api.cuDevicePrimaryCtxRetain(&context, handle_);
  if (result != CuResult::success) return error(result, "cuDevicePrimaryCtxRetain", "make a context");
  context_ = context;
  return {};
}

Device::~Device() {
  if (context_ == nullptr || !may_call_driver()) return;
  release_ended(api().cuDevicePrimaryCtxRelease_v2(handle_), "cuDevicePrimaryCtxRelease", "release the context");
}

std::string Device::text() const {
  return "GPU " + std::to_string(ordinal_) + (name_.empty() ? std::string() : " (" + name_ + ")");
}

Result<Device::Memory> Device::memory() const {
  IC_TRY(const Current current, Current::make(*this));
  std::size_t free = 0;
  std::size_t total = 0;
  const CuResult result = api().cuMemGetInfo_v2(&free, &total);
  if (result != CuResult::success) return error(result, "cuMemGetInfo", "ask for free memory");
  return Memory{free, total};
}

std::optional<memory::Span> Device::allocation_around(const memory::Span& span) const {
  CuDevicePtr start = 0;
  std::size_t bytes = 0;
  if (api().cuPointerGetAttribute(&start, CuPointerAttribute::range_start, span.address) != CuResult::success ||
      api().cuPointerGetAttribute(&bytes, CuPointerAttribute::range_size, span.address) != CuResult::success) {
    return std::nullopt;
  }
  return memory::Span{span.kind, span.device, static_cast<std::uintptr_t>(start), bytes};
}

Error Device::error(CuResult result, std::string_view call, std::string_view action) const {
  return driver_.error(result, call, std::string(action) + " on " + text());
}

void Device::release_ended(CuResult result, std::string_view call, std::string_view action) const {
  if (result == CuResult::success || result == CuResult::deinitialized) return;
  const std::string text = error(result, call, action).to_string();
  log(is_lost(result) ? LogLevel::debug : LogLevel::warning, text);  // a lost context was an error before
}

Result<Device::Current> Device::Current::make(const Device& device) {
  IC_CHECK(gpu::driver());  // not in a forked child
  const CuResult result = device.api().cuCtxPushCurrent_v2(device.context_);
  if (result != CuResult::success) return device.error(result, "cuCtxPushCurrent", "use the context");
  return Current(&device);
}

std::optional<Device::Current> Device::Current::for_release(const Device& device) {
  if (!may_call_driver()) return std::nullopt;
  auto first = make(device);
  if (first.ok()) return std::move(first).value();
  auto second = make(device);
  if (second.ok()) return std::move(second).value();
  log_warning(second.error().to_string());
  return std::nullopt;
}

Device::Current::~Current() {
  if (device_ == nullptr || !may_call_driver()) return;
  // Not twice: a pop that fails reports what came before it and has popped, and the next context is the caller's.
  CuContext popped = nullptr;
  device_->release_ended(device_->api().cuCtxPopCurrent_v2(&popped), "cuCtxPopCurrent", "leave the context");
}

}  // namespace infercluster::gpu
