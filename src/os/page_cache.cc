// SPDX-License-Identifier: Apache-2.0
#include "os/page_cache.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <random>

#include "base/units.h"
#include "os/file.h"

namespace infercluster::os {
namespace {

constexpr std::uint64_t kProbesMax = 64;
// readahead(2) takes no more than the device's readahead window per call (mm/readahead.c, force_page_cache_ra), and
// says nothing of the rest: 128 KiB is the kernel's default window.
constexpr std::uint64_t kReadaheadStep = 128 * kKiB;

std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// What of the range lies within the file.
std::uint64_t length_within_file(const Fd& fd, std::uint64_t offset, std::uint64_t length) {
  const auto identity = identity_of(fd);
  if (!identity || identity->size <= offset) return 0;
  return std::min(length, identity->size - offset);
}

// cachestat(2), Linux 6.5; without a wrapper in the C library. Its number is the same on all architectures.
constexpr long kCachestatNumber = 451;
struct CachestatRange {
  std::uint64_t offset;
  std::uint64_t length;
};
struct CachestatAnswer {
  std::uint64_t cached;
  std::uint64_t dirty;
  std::uint64_t writeback;
  std::uint64_t evicted;
  std::uint64_t recently_evicted;
};

// Pages of the range in the page cache; nullopt where the kernel lacks the call or refuses it.
std::optional<std::uint64_t> cached_pages(const Fd& fd, std::uint64_t offset, std::uint64_t length) {
  CachestatRange range{offset, length};
  CachestatAnswer answer{};
  if (::syscall(kCachestatNumber, fd.get(), &range, &answer, 0U) != 0) return std::nullopt;
  return answer.cached;
}

}  // namespace

Residency residency_of(const Fd& fd, std::uint64_t offset, std::uint64_t length) {
  const std::uint64_t within = length_within_file(fd, offset, length);
  if (within == 0) return {0, "unknown"};
  const std::optional<std::uint64_t> cached = cached_pages(fd, offset, within);
  if (!cached) return residency_by_probing(fd, offset, within);
  const std::uint64_t pages = (offset + within - 1) / page_bytes() - offset / page_bytes() + 1;
  return {std::min(1.0, static_cast<double>(*cached) / static_cast<double>(pages)), "cachestat"};
}

Residency residency_by_probing(const Fd& fd, std::uint64_t offset, std::uint64_t length) {
  const std::uint64_t within = length_within_file(fd, offset, length);
  // A descriptor of our own: the caller's may be O_DIRECT, and its readahead state is the caller's business.
  const auto own = reopen_for_reading(fd, OpenMode::buffered);
  if (within == 0 || !own) return {0, "unknown"};
  // Kernels since 5.16 start readahead even for RWF_NOWAIT; with FADV_RANDOM that is the one page that was probed. Each
  // call probes other places, so that it does not find what the call before it brought in.
  (void)::posix_fadvise(own->get(), 0, 0, POSIX_FADV_RANDOM);
  std::mt19937_64 generator(static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
  const std::uint64_t pages = (within - 1) / page_bytes() + 1;
  const std::uint64_t probes = std::min(pages, kProbesMax);
  std::uint64_t resident = 0;
  for (std::uint64_t i = 0; i < probes; ++i) {
    // One probe in each of `probes` equal strata; products cannot wrap, since pages < 2^52 and probes <= 64.
    const std::uint64_t first = pages * i / probes;
    const std::uint64_t last = pages * (i + 1) / probes - 1;
    const std::uint64_t page = std::uniform_int_distribution<std::uint64_t>(first, last)(generator);
    std::byte byte{};
    const iovec vector{&byte, 1};
    const auto place = static_cast<off_t>(offset + page * page_bytes());
    const ssize_t count = ::preadv2(own->get(), &vector, 1, place, RWF_NOWAIT);
    if (count == 1) ++resident;
    if (count < 0 && errno != EAGAIN && errno != EINTR)
      return {0, "unknown"};  // EOPNOTSUPP: this file system cannot tell
  }
  return {static_cast<double>(resident) / static_cast<double>(probes), "nowait probe"};
}

Status drop_page_cache(const Fd& fd) {
  const int failed = ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  if (failed != 0) return Error::from_errno(failed, "cannot drop the file from the page cache");
  return {};
}

Status fill_page_cache(const Fd& fd, std::uint64_t offset, std::uint64_t length) {
  for (std::uint64_t left = length_within_file(fd, offset, length); left > 0;) {
    // Steps end at multiples of the step size, so that no page is asked for twice.
    const std::uint64_t count = std::min(left, kReadaheadStep - offset % kReadaheadStep);
    if (::readahead(fd.get(), static_cast<off_t>(offset), static_cast<std::size_t>(count)) != 0) {
      return Error::from_errno(errno, "cannot read ahead into the page cache").with_offset(offset);
    }
    offset += count;
    left -= count;
  }
  return {};
}

}  // namespace infercluster::os
