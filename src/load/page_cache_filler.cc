// SPDX-License-Identifier: Apache-2.0
#include "load/page_cache_filler.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "base/units.h"
#include "os/page_cache.h"

namespace infercluster::load {
namespace {

constexpr std::uint64_t kFillStep = 4 * kMiB;

}  // namespace

PageCacheFiller::PageCacheFiller(io::Governor* governor, std::function<void(std::uint64_t)> filled)
    : governor_(governor), filled_(std::move(filled)) {}

PageCacheFiller::~PageCacheFiller() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

PageCacheFiller::Ticket PageCacheFiller::add(std::vector<File> files) {
  const std::lock_guard lock(mutex_);
  const Ticket ticket = ++last_ticket_;
  for (File& file : files) queue_.emplace_back(ticket, std::move(file));
  if (!queue_.empty() && !thread_.joinable()) thread_ = start_thread("ic-fill", [this] { run(); });
  changed_.notify_all();
  return ticket;
}

bool PageCacheFiller::wait_for(Ticket ticket, std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return queue_.empty() || queue_.front().first > ticket; });
}

void PageCacheFiller::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const File& file = queue_.front().second;  // only this thread removes it
    lock.unlock();
    fill(file);
    lock.lock();
    if (stopping_) return;
    queue_.pop_front();
    changed_.notify_all();
  }
}

void PageCacheFiller::fill(const File& file) {
  const Result<Fd> fd = os::open_for_reading(file.path);
  if (const auto now = fd.ok() ? os::identity_of(*fd) : fd.error(); !now.ok() || *now != file.identity) {
    log_debug("the page cache is not filled with " + file.path + ": it is not what was loaded any more");
    return;
  }
  for (std::uint64_t at = 0; at < file.identity.size;) {
    const std::uint64_t length = std::min(kFillStep, file.identity.size - at);
    if (governor_ != nullptr) {
      const Clock::Duration pause = governor_->admit(file.identity.device, io::Priority::fill, length);
      std::unique_lock lock(mutex_);
      if (stopping_) return;
      if (pause > Clock::Duration{}) {
        changed_.wait_for(lock, pause, [this] { return stopping_; });
        continue;
      }
    }
    if (const Status filled = os::fill_page_cache(*fd, at, length); !filled.ok()) {
      log_debug("the page cache is not filled with " + file.path + ": " + filled.error().to_string());
      return;
    }
    at += length;
    if (filled_) filled_(length);
  }
}

}  // namespace infercluster::load
