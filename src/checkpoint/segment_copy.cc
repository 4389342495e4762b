// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/segment_copy.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/thread.h"
#include "checkpoint/names.h"
#include "checksum/crc32c.h"
#include "os/file.h"

namespace infercluster::checkpoint {
namespace {

using manifest::kBlockBytes;

constexpr std::uint64_t kDirectAlignment = 4096;
struct alignas(kDirectAlignment) Page {
  std::byte bytes[kDirectAlignment];  // NOLINT(modernize-avoid-c-arrays)
};

bool refuses_direct(const Error& error) {
  return error.system_errno() == EINVAL || error.system_errno() == EOPNOTSUPP;
}

// A segment that is read: past the page cache where that can be.
class SegmentSource {
 public:
  static Result<SegmentSource> open(const std::string& path) {
    SegmentSource source;
    source.path_ = path;
    IC_TRY(source.buffered_, os::open_for_reading(path));
    auto direct = os::reopen_for_reading(source.buffered_, os::OpenMode::direct);
    if (!direct.ok() && !refuses_direct(direct.error())) return std::move(direct).error();
    if (direct.ok()) source.direct_ = std::move(direct).value();
    return source;
  }

  [[nodiscard]] bool is_direct() const { return direct_.valid(); }

  // `into` begins at a page.
  Status read(std::span<std::byte> into, std::uint64_t offset) const {
    if (!direct_.valid()) return os::read_exactly(buffered_, into, offset, path_);
    const std::uint64_t whole = into.size() / kDirectAlignment * kDirectAlignment;
    if (whole > 0) IC_CHECK(os::read_exactly(direct_, into.first(whole), offset, path_));
    if (whole == into.size()) return {};
    return os::read_exactly(buffered_, into.subspan(whole), offset + whole, path_);
  }

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  SegmentSource() = default;

  std::string path_;
  Fd buffered_;
  Fd direct_;
};

// One segment on its way; the threads that copy an extent share it.
class SegmentCopy {
 public:
  SegmentCopy(io::FileCalls& calls, const manifest::Segment& segment, const SegmentSource& source,
              const io::OutputFile& file, const CopyOptions& options)
      : calls_(calls), segment_(segment), source_(source), file_(file), options_(options) {}

  Status open() {
    IC_CHECK(calls_.reserve(file_, segment_.bytes));
    const Status direct = calls_.set_direct(file_, io::DirectIo::on);
    if (!direct.ok() && !refuses_direct(direct.error())) return direct.error();
    direct_ = direct.ok();
    was_direct_ = direct.ok();
    const std::uint64_t pages = options_.write.request_bytes / kDirectAlignment;
    for (unsigned i = 0; i < options_.write.threads; ++i) {
      buffers_.emplace_back(new (std::nothrow) Page[pages]);
      if (buffers_.back() == nullptr)
        return Error(ErrorCode::out_of_memory, "there is no memory for the buffers of a copy").with_path(file_.path);
    }
    return {};
  }

  // Writes the bytes from `begin` to `end`, and brings them to storage.
  Status copy(std::uint64_t begin, std::uint64_t end) {
    next_ = begin;
    end_ = end;
    const std::uint64_t request = options_.write.request_bytes;
    const std::uint64_t requests = (end - begin + request - 1) / request;
    const std::uint64_t threads = std::min<std::uint64_t>(buffers_.size(), requests);
    std::vector<std::thread> helpers;
    for (std::uint64_t i = 1; i < threads; ++i)
      helpers.push_back(start_thread("ic-drain", [this, i] { work(buffers_[i].get()); }));
    work(buffers_[0].get());
    for (std::thread& helper : helpers) helper.join();
    if (error_) return *error_;
    if (end == segment_.bytes) IC_CHECK(copy_tail());
    return calls_.sync(file_);
  }

  [[nodiscard]] bool was_direct() const { return was_direct_; }

 private:
  static std::span<std::byte> bytes_of(Page* buffer, std::uint64_t length) {
    return {reinterpret_cast<std::byte*>(buffer), length};
  }

  void work(Page* buffer) {
    while (true) {
      const std::uint64_t begin = next_.fetch_add(options_.write.request_bytes);
      if (begin >= end_ || failed_) return;
      const Status done = copy_request(buffer, begin, std::min(options_.write.request_bytes, end_ - begin));
      if (done.ok()) continue;
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = done.error();
      failed_ = true;
    }
  }

  Status copy_request(Page* buffer, std::uint64_t begin, std::uint64_t length) {
    while (length > 0 && !failed_) {
      const std::uint64_t piece = wait_for_turn(options_.write, length, failed_);
      IC_CHECK(read_block_range(buffer, begin, piece));
      IC_CHECK(write_range(buffer, begin, piece / kDirectAlignment * kDirectAlignment));
      begin += piece;
      length -= piece;
    }
    return {};
  }

  // The last bytes, where they are no whole page. They are written alone, and exactly, so that the file is never longer
  // than it will be: another copy of the same save may have ended already.
  Status copy_tail() {
    const std::uint64_t tail = segment_.bytes % kDirectAlignment;
    if (tail == 0) return {};
    IC_CHECK(give_up_direct());
    const std::uint64_t block = segment_.bytes / kBlockBytes * kBlockBytes;
    const std::uint64_t length = segment_.bytes - block;
    IC_CHECK(read_block_range(buffers_[0].get(), block, length));
    return io::write_fully(calls_, file_, bytes_of(buffers_[0].get(), length).last(tail), segment_.bytes - tail);
  }

  // From a block's begin on; checked.
  Status read_block_range(Page* buffer, std::uint64_t begin, std::uint64_t length) {
    const std::span<std::byte> bytes = bytes_of(buffer, length);
    IC_CHECK(source_.read(bytes, begin));
    for (std::uint64_t at = 0; at < length; at += kBlockBytes) {
      const std::uint32_t crc = checksum::crc32c(bytes.subspan(at, std::min(kBlockBytes, length - at)));
      if (crc == segment_.block_crcs[(begin + at) / kBlockBytes]) continue;
      return Error(ErrorCode::corrupt, "these are not the bytes that were saved: their checksum differs")
          .with_path(source_.path())
          .with_offset(begin + at)
          .with_hint(
              "Nothing of this block was copied. `infercluster checkpoint verify` names what is bad; drain "
              "another step, and check the device");
    }
    return {};
  }

  Status write_range(Page* buffer, std::uint64_t offset, std::uint64_t length) {
    std::span<std::byte> bytes = bytes_of(buffer, length);
    while (!bytes.empty()) {
      const auto count = calls_.write(file_, bytes, offset);
      if (!count.ok()) {
        if (!refuses_direct(count.error()) || !direct_) return count.error();
        IC_CHECK(give_up_direct());
        was_direct_ = false;
        continue;
      }
      if (*count % kDirectAlignment != 0 && *count < bytes.size()) IC_CHECK(give_up_direct());
      bytes = bytes.subspan(*count);
      offset += *count;
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
  const manifest::Segment& segment_;
  const SegmentSource& source_;
  const io::OutputFile& file_;
  const CopyOptions& options_;
  std::vector<std::unique_ptr<Page[]>> buffers_;  // NOLINT(modernize-avoid-c-arrays); one per thread
  std::atomic<std::uint64_t> next_{0};
  std::uint64_t end_ = 0;  // set while no thread copies
  std::atomic<bool> failed_{false};
  std::atomic<bool> direct_{false};
  std::atomic<bool> was_direct_{false};
  std::mutex mutex_;
  std::optional<Error> error_;  // the first; guarded by mutex_
};

struct Noted {
  std::uint64_t bytes = 0;
  std::vector<std::string> names;  // of the notes that are there
};

Result<Noted> find_notes(io::FileCalls& calls, const Begun& to, const WriterFile& writer, std::uint64_t number) {
  Noted noted;
  IC_TRY(const std::vector<io::Entry> entries, calls.list(to.directory));
  for (const io::Entry& entry : entries) {
    const auto bytes = parse_progress_name(entry.name, writer, number);
    if (!bytes) continue;
    noted.bytes = std::max(noted.bytes, *bytes);
    noted.names.push_back(entry.name);
  }
  return noted;
}

// Notes that `bytes` bytes are durable, and takes the older notes away.
Status note(io::FileCalls& calls, const Begun& to, const WriterFile& writer, std::uint64_t number, std::uint64_t bytes,
            std::vector<std::string>& older) {
  const std::string name = progress_name(writer, number, bytes);
  auto file = calls.create(to.directory, name);
  if (file.ok()) {
    IC_CHECK(calls.close(std::move(file).value()));
  } else if (file.error().system_errno() != EEXIST) {
    return std::move(file).error();
  }
  IC_CHECK(calls.sync_directory(to.directory));
  for (const std::string& old : older) {
    Status removed = old == name ? Status() : calls.remove(to.directory, old);
    if (!removed.ok() && removed.error().system_errno() != ENOENT) return removed;
  }
  older = {name};
  return {};
}

// Before a segment is begun anew: else a crash soon after would leave them beside it, and the next try believed them.
Status forget_notes(io::FileCalls& calls, const Begun& to, Noted& noted) {
  for (const std::string& name : noted.names) {
    Status removed = calls.remove(to.directory, name);
    if (!removed.ok() && removed.error().system_errno() != ENOENT) return removed;
  }
  noted = {};
  return calls.sync_directory(to.directory);
}

bool may_go_on(const CopyOptions& options, std::uint64_t bytes) {
  return !options.progress || options.progress(bytes);
}

Error interrupted(const std::string& path) {
  return Error(ErrorCode::cancelled, "the drain was interrupted")
      .with_path(path)
      .with_hint("Drain again: it goes on where it stopped");
}

// What was made under this name before is gone on with: the name stands for the same bytes.
Result<io::OutputFile> create_or_open(io::FileCalls& calls, const Begun& to, const std::string& name,
                                      std::uint64_t bytes, const WriteOptions& options) {
  std::string layout;
  auto file = create_segment(calls, to.directory, name, bytes, options, layout);
  if (file.ok() || file.error().system_errno() != EEXIST) return file;
  return calls.open_to_write(to.directory, name);
}

Status copy_segment(io::FileCalls& calls, const io::Directory& from, const manifest::Segment& segment, const Begun& to,
                    const WriterFile& writer, std::uint64_t number, const CopyOptions& options, CopyReport& report) {
  const std::string name = segment_name(writer, number);
  IC_TRY(Noted noted, find_notes(calls, to, writer, number));
  const auto there = calls.size_of(to.directory, name);
  if (!there.ok() && there.error().system_errno() != ENOENT) return there.error();
  // A note that the file does not bear out is not believed.
  const std::uint64_t bytes_there = there.ok() ? *there : 0;
  const bool believed = noted.bytes <= bytes_there && bytes_there <= segment.bytes;
  std::uint64_t done = believed ? noted.bytes : 0;
  const std::uint64_t before = report.bytes;
  report.bytes += segment.bytes;
  report.bytes_resumed += done;
  if (done == segment.bytes && bytes_there == segment.bytes) return {};
  if (!believed) IC_CHECK(forget_notes(calls, to, noted));
  IC_TRY(const SegmentSource source, SegmentSource::open(from.path + "/" + segment.name));
  IC_TRY(io::OutputFile file, create_or_open(calls, to, name, segment.bytes, options.write));
  SegmentCopy copy(calls, segment, source, file, options);
  IC_CHECK(copy.open());
  while (done < segment.bytes) {
    if (!may_go_on(options, before + done)) return interrupted(file.path);
    const std::uint64_t end = done + std::min(options.extent_bytes, segment.bytes - done);
    IC_CHECK(copy.copy(done, end));
    IC_CHECK(note(calls, to, writer, number, end, noted.names));
    done = end;
  }
  report.read_direct = report.read_direct && source.is_direct();
  report.write_direct = report.write_direct && copy.was_direct();
  return calls.close(std::move(file));
}

// A small file of just this text, durable, whether or not an earlier copy had begun it.
Status write_again(io::FileCalls& calls, const io::Directory& directory, const std::string& name,
                   const std::string& text) {
  auto created = calls.create(directory, name);
  if (!created.ok() && created.error().system_errno() == EEXIST) created = calls.open_to_write(directory, name);
  if (!created.ok()) return std::move(created).error();
  io::OutputFile file = std::move(created).value();
  IC_CHECK(io::write_fully(calls, file, std::as_bytes(std::span(text)), 0));
  IC_CHECK(calls.set_size(file, text.size()));
  IC_CHECK(calls.sync(file));
  return calls.close(std::move(file));
}

}  // namespace

Result<manifest::IndexReference> copy_part(io::FileCalls& calls, const io::Directory& from,
                                           const manifest::Index& index, const Begun& to, const CopyOptions& options,
                                           CopyReport& report) {
  IC_ASSERT(options.extent_bytes > 0 && options.extent_bytes % kBlockBytes == 0);
  IC_ASSERT(options.write.request_bytes > 0 && options.write.request_bytes % kBlockBytes == 0);
  IC_ASSERT(options.write.threads > 0 && index.save_id == to.save_id && index.step == to.step);
  const WriterFile writer{index.node, to.epoch};
  manifest::Index copied = index;
  copied.epoch = to.epoch;
  for (std::size_t i = 0; i < index.segments.size(); ++i) {
    IC_CHECK(copy_segment(calls, from, index.segments[i], to, writer, i, options, report));
    copied.segments[i].name = segment_name(writer, i);
  }
  if (!may_go_on(options, report.bytes)) return interrupted(to.directory.path);
  IC_TRY(const std::string text, manifest::build_index(copied));
  const std::string name = index_name(writer);
  IC_CHECK(write_again(calls, to.directory, name, text));
  IC_CHECK(calls.sync_directory(to.directory));
  return manifest::IndexReference{name, text.size(), checksum::crc32c(std::as_bytes(std::span(text)))};
}

}  // namespace infercluster::checkpoint
