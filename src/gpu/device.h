// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/result.h"
#include "gpu/driver.h"
#include "memory/span.h"

namespace infercluster::gpu {

// How many devices the driver shows this process. Makes no context.
Result<int> device_count();

// A device's address as sysfs spells it, "0000:0b:00.0". Makes no context.
Result<std::string> pci_bus_id_of(const Driver& driver, CuDevice device);

// The NUMA node that a PCI device hangs on; nullopt where the system does not say. `root` is "/" outside of tests.
std::optional<int> numa_node_of_pci_device(const std::string& pci_bus_id, const std::string& root);

// One GPU in use: holds a reference to its primary context, the one that PyTorch and the CUDA runtime use too. No other
// device gets a context. Thread-safe. Owners share it; the last one releases the context.
class Device {
 public:
  // The device of that ordinal, which may be open already. Errors: those of driver(); invalid_argument for an ordinal
  // that is not there; out_of_memory or io when the context cannot be made.
  static Result<std::shared_ptr<Device>> open(int ordinal);

  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] int ordinal() const { return ordinal_; }
  [[nodiscard]] const std::string& name() const { return name_; }              // "NVIDIA H200"
  [[nodiscard]] const std::string& pci_bus_id() const { return pci_bus_id_; }  // "0000:0b:00.0", as sysfs spells it
  [[nodiscard]] std::optional<int> numa_node() const { return numa_node_; }
  // A stand-in for tests, which calls itself "GPU double N": what it takes is no speed, and is not shown as one.
  [[nodiscard]] bool is_double() const { return name_.starts_with("GPU double"); }
  // "GPU 0 (NVIDIA H200)", for messages.
  [[nodiscard]] std::string text() const;
  [[nodiscard]] CuDevice handle() const { return handle_; }
  [[nodiscard]] const Driver& driver() const { return driver_; }
  [[nodiscard]] const CudaApi& api() const { return driver_.api(); }

  struct Memory {
    std::uint64_t free = 0;   // bytes
    std::uint64_t total = 0;  // bytes
  };
  [[nodiscard]] Result<Memory> memory() const;

  // The allocation that holds the start of a span of this device; nullopt where the driver does not say.
  [[nodiscard]] std::optional<memory::Span> allocation_around(const memory::Span& span) const;

  // The error of a call that failed on this device: "cannot ACTION on GPU 0 (NVIDIA H200): CALL failed with ...".
  [[nodiscard]] Error error(CuResult result, std::string_view call, std::string_view action) const;

  // For destructors, which have nobody to give an error to: logs it, unless it is success or the driver has shut down
  // before us at the end of the process.
  void release_ended(CuResult result, std::string_view call, std::string_view action) const;

  // While it lives, the device's context is current on the thread that made it; then the one before it is again. Of
  // one thread, and nested like scopes.
  class Current {
   public:
    static Result<Current> make(const Device& device);
    // For waits and destructors, which go on without: tries twice, and logs what kept the context away.
    static std::optional<Current> for_release(const Device& device);
    Current(Current&& other) noexcept : device_(std::exchange(other.device_, nullptr)) {}
    Current& operator=(Current&&) = delete;
    ~Current();

   private:
    explicit Current(const Device* device) : device_(device) {}
    const Device* device_;
  };

 private:
  Device(const Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  Status find();
  static Result<std::shared_ptr<Device>> make(const Driver& driver, int ordinal);

  const Driver& driver_;  // lives as long as the process
  const int ordinal_;
  CuDevice handle_ = 0;
  CuContext context_ = nullptr;
  std::string name_;
  std::string pci_bus_id_;
  std::optional<int> numa_node_;
};

}  // namespace infercluster::gpu
