// SPDX-License-Identifier: Apache-2.0
#include "os/limits.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <thread>
#include <vector>

#include "base/units.h"
#include "os/cgroup.h"
#include "os/file.h"
#include "os/text.h"

namespace infercluster::os {
namespace {

std::string read_text(const std::string& path) {
  auto text = read_small_file(path, kMiB);
  return text ? std::move(text).value() : std::string();
}

// A line of /proc/meminfo or /proc/self/status, which count in KiB.
std::uint64_t bytes_of_key(std::string_view text, std::string_view key) {
  return number_of_key(text, key).value_or(0) * kKiB;
}

unsigned processors_by_affinity() {
  // The kernel refuses a mask that is smaller than its own: grow up to a limit beyond any machine.
  for (std::size_t count = 1024; count <= (std::size_t{1} << 20); count *= 4) {
    std::vector<cpu_set_t> mask(CPU_ALLOC_SIZE(count) / sizeof(cpu_set_t));
    const std::size_t bytes = mask.size() * sizeof(cpu_set_t);
    if (::sched_getaffinity(0, bytes, mask.data()) == 0) return static_cast<unsigned>(CPU_COUNT_S(bytes, mask.data()));
  }
  return std::thread::hardware_concurrency();
}

}  // namespace

std::uint64_t MemoryLimits::free() const {
  if (!cgroup_limit) return available;
  return std::min(available, *cgroup_limit > cgroup_used ? *cgroup_limit - cgroup_used : 0);
}

MemoryLimits memory_limits(const std::string& root) {
  const std::string meminfo = read_text(root + "/proc/meminfo");
  MemoryLimits limits;
  limits.total = bytes_of_key(meminfo, "MemTotal:");
  limits.available = bytes_of_key(meminfo, "MemAvailable:");
  if (const auto cgroup = cgroup_memory(root)) {
    limits.cgroup_limit = cgroup->limit;
    limits.cgroup_used = cgroup->used;
  }
  return limits;
}

std::optional<std::uint64_t> locked_memory_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 0;
  if (limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

HugePages transparent_huge_pages() {
  const std::string text = read_text("/sys/kernel/mm/transparent_hugepage/enabled");  // "always [madvise] never"
  if (text.find("[always]") != std::string::npos) return HugePages::always;
  if (text.find("[madvise]") != std::string::npos) return HugePages::on_request;
  return HugePages::never;
}

std::uint64_t free_explicit_huge_pages() {
  const std::string folder = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  const std::uint64_t free = leading_number(read_text(folder + "free_hugepages")).value_or(0);
  const std::uint64_t promised = leading_number(read_text(folder + "resv_hugepages")).value_or(0);
  return free > promised ? (free - promised) * 2 * kMiB : 0;
}

unsigned usable_processors() {
  const unsigned allowed = std::max(1U, processors_by_affinity());
  const auto quota = cgroup_processors("/");
  if (!quota || *quota >= static_cast<double>(allowed)) return allowed;
  return std::max(1U, static_cast<unsigned>(std::ceil(*quota)));
}

std::uint64_t peak_resident_bytes() {
  return bytes_of_key(read_text("/proc/self/status"), "VmHWM:");
}
std::uint64_t resident_bytes() {
  return bytes_of_key(read_text("/proc/self/status"), "VmRSS:");
}

}  // namespace infercluster::os
