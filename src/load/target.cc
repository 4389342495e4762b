// SPDX-License-Identifier: Apache-2.0
#include "load/target.h"

#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "load/device_target.h"
#include "os/limits.h"

namespace infercluster::load {
namespace {

Status check_host_memory(std::uint64_t bytes) {
  const os::MemoryLimits limits = os::memory_limits();
  std::uint64_t ceiling = limits.total;
  std::string what = "this machine has";
  if (limits.cgroup_limit) {
    const std::uint64_t left = *limits.cgroup_limit - std::min(*limits.cgroup_limit, limits.cgroup_used);
    if (left < ceiling) {
      ceiling = left;
      what = "this process's cgroup leaves";
    }
  }
  if (ceiling == 0 || bytes <= ceiling) return {};
  return Error(ErrorCode::out_of_memory,
               "the tensors need " + format_bytes(bytes) + " of memory, and " + what + " " + format_bytes(ceiling))
      .with_hint("Load fewer tensors or slices of them, stream them, or raise the limit");
}

class HostTarget final : public Target {
 public:
  [[nodiscard]] memory::Kind kind() const override { return memory::Kind::host; }
  [[nodiscard]] int device() const override { return -1; }
  Result<memory::Block> allocate(std::uint64_t bytes) override { return memory::allocate_on_host(bytes); }
  [[nodiscard]] std::uint64_t free_bytes() const override { return os::memory_limits().free(); }
  [[nodiscard]] Status check_free(std::uint64_t bytes) const override { return check_host_memory(bytes); }
  Result<memory::Ring> make_ring(std::uint64_t slot_bytes, unsigned slots) override {
    return memory::Ring::create(slot_bytes, slots);
  }
  Result<std::unique_ptr<memory::Copier>> make_copier() override { return memory::make_host_copier(); }
  Result<std::shared_ptr<const memory::Mark>> mark() override { return std::shared_ptr<const memory::Mark>(); }
  Status read(const memory::Span& from, std::byte* to) override {
    std::memcpy(to, from.host(), from.bytes);
    return {};
  }
};

}  // namespace

std::shared_ptr<Target> make_host_target() {
  return std::make_shared<HostTarget>();
}

Result<std::shared_ptr<Target>> open_target(const Options& options) {
  if (!options.device) return make_host_target();
  return open_device_target(*options.device);
}

}  // namespace infercluster::load
