// SPDX-License-Identifier: Apache-2.0
#include "os/memory_map.h"

#include <linux/mman.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

#include "base/units.h"
#include "os/limits.h"

namespace infercluster::os {
namespace {

constexpr std::uint64_t kHugePage = 2 * kMiB;
constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 46;  // below half of what 47-bit address spaces have
constexpr int kPopulateWrite = 23;                           // MADV_POPULATE_WRITE, Linux 5.14
constexpr int kTriesMax = 1000;

std::uint64_t system_page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

Error out_of_memory(int system_errno, std::uint64_t bytes, PageKind pages) {
  const bool huge = pages == PageKind::explicit_huge;
  const std::string free = format_bytes(huge ? free_explicit_huge_pages() : memory_limits().free());
  Error error = Error::from_errno(system_errno, "cannot get " + format_bytes(bytes) + " of memory" +
                                                    (huge ? " in reserved huge pages (" : " (") + free + " free)");
  if (system_errno != ENOMEM) return error;
  return std::move(error).with_hint(huge ? "Reserve more with sysctl vm.nr_hugepages, or use transparent huge pages"
                                         : "Load less at once, or see the limits: ulimit -v, vm.overcommit_memory");
}

void* map_anonymous(std::uint64_t bytes, int extra_flags) {
  return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | extra_flags, -1, 0);
}

// For kernels without MADV_POPULATE_WRITE. An atomic "or" with nothing makes the page writable and loses no byte that
// another thread puts there meanwhile.
void touch_pages(std::byte* first, std::uint64_t bytes, std::uint64_t page) {
  for (std::uint64_t at = 0; at < bytes; at += page) {
    std::atomic_ref<unsigned char>(*reinterpret_cast<unsigned char*>(first + at))
        .fetch_or(0, std::memory_order_relaxed);
  }
}

}  // namespace

Result<Mapping> Mapping::create(std::uint64_t bytes, Options options) {
  if (bytes == 0 || bytes > kBytesMax) {
    return Error(ErrorCode::invalid_argument, "a mapping of " + std::to_string(bytes) + " bytes was asked for")
        .with_hint("Expected 1 to " + std::to_string(kBytesMax));
  }
  const bool huge = options.pages != PageKind::plain;
  const bool reserved = options.pages == PageKind::explicit_huge;
  const std::uint64_t page = huge ? kHugePage : system_page_bytes();
  const std::uint64_t mapped = align_up(bytes, page);
  // mmap aligns to system pages only: for transparent huge ones take a page more, and cut both ends off.
  const std::uint64_t extra = options.pages == PageKind::transparent_huge ? page : 0;
  void* const raw = map_anonymous(mapped + extra, reserved ? MAP_HUGETLB | MAP_HUGE_2MB : 0);
  if (raw == MAP_FAILED) return out_of_memory(errno, bytes, options.pages);
  auto* start = static_cast<std::byte*>(raw);
  if (extra != 0) {
    const std::uint64_t address = reinterpret_cast<std::uintptr_t>(raw);
    const std::uint64_t before = align_up(address, page) - address;
    if (before != 0) ::munmap(start, before);
    start += before;
    if (extra != before) ::munmap(start + mapped, extra - before);
    (void)::madvise(start, mapped, MADV_HUGEPAGE);  // refused where the kernel has none: plain pages then
  }
  Mapping mapping;
  mapping.data_ = {start, bytes};
  mapping.mapped_bytes_ = mapped;
  mapping.page_bytes_ = page;
  return mapping;
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, {})),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      page_bytes_(std::exchange(other.page_bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    unmap();
    data_ = std::exchange(other.data_, {});
    mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
    page_bytes_ = std::exchange(other.page_bytes_, 0);
  }
  return *this;
}

Mapping::~Mapping() {
  unmap();
}

void Mapping::unmap() noexcept {
  if (mapped_bytes_ != 0) ::munmap(data_.data(), mapped_bytes_);
  mapped_bytes_ = 0;
}

Status Mapping::check_range(std::uint64_t offset, std::uint64_t length) const {
  if (offset <= data_.size() && length <= data_.size() - offset) return {};
  return Error(ErrorCode::invalid_argument, "bytes " + std::to_string(offset) + " and " + std::to_string(length) +
                                                " more lie outside of a mapping of " + std::to_string(data_.size()));
}

Status Mapping::populate(std::uint64_t offset, std::uint64_t length) const {
  IC_CHECK(check_range(offset, length));
  if (length == 0) return {};
  const std::uint64_t step =
      page_bytes_ == kHugePage ? system_page_bytes() : page_bytes_;  // THP may come as plain pages
  const std::uint64_t first = align_down(offset, step);
  const std::uint64_t bytes = align_up(offset + length, step) - first;
  for (int attempt = 0; attempt < kTriesMax; ++attempt) {
    if (::madvise(data_.data() + first, bytes, kPopulateWrite) == 0) return {};
    if (errno == EINVAL) {
      touch_pages(data_.data() + first, bytes, step);
      return {};
    }
    if (errno != EAGAIN && errno != EINTR) break;
  }
  return out_of_memory(errno, length, PageKind::plain);
}

Status Mapping::release(std::uint64_t offset, std::uint64_t length) const {
  IC_CHECK(check_range(offset, length));
  // The last page belongs to the mapping as a whole, also where the caller's bytes end within it.
  const std::uint64_t end = offset + length == data_.size() ? mapped_bytes_ : align_down(offset + length, page_bytes_);
  const std::uint64_t first = align_up(offset, page_bytes_);
  if (first >= end) return {};
  if (::madvise(data_.data() + first, end - first, MADV_DONTNEED) != 0) {
    return Error::from_errno(errno, "cannot give memory back");
  }
  return {};
}

Status Mapping::set_on_fork(OnFork behaviour) const {
  if (mapped_bytes_ == 0) return {};
  if (::madvise(data_.data(), mapped_bytes_, behaviour == OnFork::exclude ? MADV_DONTFORK : MADV_DOFORK) != 0) {
    return Error::from_errno(errno, "cannot set what a fork does with memory");
  }
  return {};
}

}  // namespace infercluster::os
