// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/segment_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/thread.h"
#include "base/units.h"
#include "checksum/crc32c.h"
#include "manifest/index.h"
#include "pfs/layout.h"

namespace infercluster::checkpoint {
namespace {

using manifest::kBlockBytes;

constexpr std::uint64_t kDirectAlignment = 4096;

bool refuses_direct(const Error& error) {
  return error.system_errno() == EINVAL || error.system_errno() == EOPNOTSUPP;
}

// One segment on its way; the threads that write a window share it.
class SegmentWrite {
 public:
  SegmentWrite(io::FileCalls& calls, const io::OutputFile& file, std::uint64_t bytes, const WriteOptions& options,
               std::atomic<std::uint64_t>& written)
      : calls_(calls), file_(file), bytes_(bytes), options_(options), written_(written) {
    crcs_.resize(bytes / kBlockBytes + (bytes % kBlockBytes != 0 ? 1 : 0));
  }

  Result<WrittenSegment> run(const NextWindow& next) {
    const Status direct = calls_.set_direct(file_, io::DirectIo::on);
    if (!direct.ok() && !refuses_direct(direct.error())) return direct.error();
    direct_ = direct.ok();
    std::uint64_t done = 0;
    while (done < bytes_) {
      IC_TRY(const std::optional<ImageWindow> window, next());
      IC_ASSERT(window && window->begin == done && window->bytes > 0 && window->bytes <= bytes_ - done);
      IC_CHECK(write_window(*window));
      done += window->bytes;
    }
    return WrittenSegment{std::move(crcs_), direct_, {}};
  }

 private:
  Status write_window(const ImageWindow& window) {
    const bool last = window.begin + window.bytes == bytes_;
    const std::uint64_t padded = align_up(window.bytes, kDirectAlignment);
    IC_ASSERT(window.begin % kBlockBytes == 0 && (last || window.bytes % kBlockBytes == 0));
    image_ = window.snapshot.memory();
    IC_ASSERT(image_.size() >= padded);
    std::memset(image_.data() + window.bytes, 0, padded - window.bytes);
    window_ = &window;
    next_ = 0;
    const std::uint64_t requests = (window.bytes + options_.request_bytes - 1) / options_.request_bytes;
    const std::uint64_t threads = std::min<std::uint64_t>(options_.threads, requests);
    std::vector<std::thread> helpers;
    for (std::uint64_t i = 1; i < threads; ++i) helpers.push_back(start_thread("ic-write", [this] { work(); }));
    work();
    for (std::thread& helper : helpers) helper.join();
    if (error_) return *error_;
    return {};
  }

  void work() {
    while (true) {
      const std::uint64_t begin = next_.fetch_add(options_.request_bytes);
      if (begin >= window_->bytes || failed_) return;
      const Status done = write(begin, std::min(options_.request_bytes, window_->bytes - begin));
      if (done.ok()) continue;
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = done.error();
      failed_ = true;
    }
  }

  // `begin` counts from the window's.
  Status write(std::uint64_t begin, std::uint64_t length) {
    while (length > 0 && !failed_) {
      const std::uint64_t piece = wait_for_turn(options_, length, failed_);
      for (std::uint64_t at = begin; at < begin + piece; at += kBlockBytes) {
        const std::uint64_t block = (window_->begin + at) / kBlockBytes;
        crcs_[block] = checksum::crc32c(image_.subspan(at, std::min(kBlockBytes, begin + piece - at)));
      }
      // The tail is written whole; set_size cuts it.
      IC_CHECK(write_range(begin, align_up(piece, kDirectAlignment)));
      written_ += piece;
      begin += piece;
      length -= piece;
    }
    return {};
  }

  Status write_range(std::uint64_t begin, std::uint64_t length) {
    while (length > 0) {
      const auto count = calls_.write(file_, image_.subspan(begin, length), window_->begin + begin);
      if (!count.ok()) {
        if (!direct_ || !refuses_direct(count.error())) return count.error();
        IC_CHECK(give_up_direct());
        continue;
      }
      if (*count % kDirectAlignment != 0 && *count < length) IC_CHECK(give_up_direct());
      begin += *count;
      length -= *count;
    }
    return {};
  }

  Status give_up_direct() {
    const std::lock_guard lock(mutex_);
    if (!direct_) return {};
    IC_CHECK(calls_.set_direct(file_, io::DirectIo::off));
    direct_ = false;
    return {};
  }

  io::FileCalls& calls_;
  const io::OutputFile& file_;
  const std::uint64_t bytes_;
  const WriteOptions& options_;
  std::atomic<std::uint64_t>& written_;
  std::vector<std::uint32_t> crcs_;      // each entry belongs to the thread that writes its request
  const ImageWindow* window_ = nullptr;  // set while no thread writes
  std::span<std::byte> image_;           // of window_
  std::atomic<std::uint64_t> next_{0};   // of window_
  std::atomic<bool> failed_{false};
  std::atomic<bool> direct_{false};
  std::mutex mutex_;
  std::optional<Error> error_;  // the first; guarded by mutex_
};

bool is_parallel(pfs::Kind kind) {
  return kind == pfs::Kind::lustre || kind == pfs::Kind::gpfs || kind == pfs::Kind::cephfs;
}

}  // namespace

std::uint64_t wait_for_turn(const WriteOptions& options, std::uint64_t length, const std::atomic<bool>& stop) {
  while (options.drain != nullptr && !stop) {
    const io::DrainGovernor::Turn turn = options.drain->ask(length);
    length = turn.request_bytes;
    if (turn.wait == Clock::Duration::zero()) break;
    std::this_thread::sleep_for(turn.wait);
  }
  while (options.governor != nullptr && !stop) {
    const auto wait = options.governor->admit(options.device, io::Priority::drain, length);
    if (wait == Clock::Duration::zero()) break;
    std::this_thread::sleep_for(wait);
  }
  return length;
}

Result<io::OutputFile> create_segment(io::FileCalls& calls, const io::Directory& directory, const std::string& name,
                                      std::uint64_t bytes, const WriteOptions& options, std::string& layout) {
  if (options.layouts == nullptr) return calls.create(directory, name);
  std::string path = directory.path + "/" + name;
  auto created = pfs::create(directory.fd, name, {.file_bytes = bytes, .files_at_once = options.files_at_once}, 0,
                             *options.layouts);
  if (!created.ok()) return std::move(created).error().with_path(std::move(path));
  if (is_parallel(created->layout.kind)) layout = pfs::describe(created->layout);
  return io::OutputFile{std::move(created->fd), std::move(path)};
}

Result<WrittenSegment> write_segment(io::FileCalls& calls, const io::Directory& directory, const std::string& name,
                                     std::uint64_t bytes, const NextWindow& next, const WriteOptions& options,
                                     std::atomic<std::uint64_t>& written) {
  IC_ASSERT(options.request_bytes % kBlockBytes == 0 && options.request_bytes > 0);
  const std::uint64_t padded = align_up(bytes, kDirectAlignment);
  std::string layout;
  IC_TRY(io::OutputFile file, create_segment(calls, directory, name, padded, options, layout));
  IC_CHECK(calls.reserve(file, padded));
  IC_TRY(WrittenSegment segment, SegmentWrite(calls, file, bytes, options, written).run(next));
  segment.layout = std::move(layout);
  if (padded != bytes) IC_CHECK(calls.set_size(file, bytes));
  IC_CHECK(calls.sync(file));
  IC_CHECK(calls.close(std::move(file)));
  return segment;
}

Status write_small_file(io::FileCalls& calls, const io::Directory& directory, const std::string& name,
                        const std::string& text) {
  IC_TRY(io::OutputFile file, calls.create(directory, name));
  IC_CHECK(io::write_fully(calls, file, std::as_bytes(std::span(text)), 0));
  IC_CHECK(calls.sync(file));
  return calls.close(std::move(file));
}

}  // namespace infercluster::checkpoint
