// SPDX-License-Identifier: Apache-2.0
#include "load/gds.h"

#include <algorithm>
#include <cerrno>

#include "base/assert.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/units.h"
#include "os/file.h"

namespace infercluster::load {

void GdsSource::start(const io::Attempt& attempt, const io::AttemptDone& done) {
  gds_.add({this, attempt, done});
}

std::string GdsSource::refusal() const {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

void GdsSource::refuse(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!refusal_.empty()) return;
  refusal_ = error.message();
  refused_.store(true);
  log_warning(name() + ": the rest is read through host memory: " + refusal_);
}

std::int64_t GdsSource::read(const io::Attempt& attempt) {
  if (attempt.offset >= size()) return 0;
  const std::uint64_t there = std::min<std::uint64_t>(attempt.length, size() - attempt.offset);
  const std::uint64_t whole_blocks = align_down(there, kAlignment);
  if (whole_blocks == 0 || refused_.load()) return read_through_host(attempt, there);
  const auto got = read_by_cufile(attempt, whole_blocks);
  if (!got.ok()) {
    refuse(got.error());
    return read_through_host(attempt, there);
  }
  // The rest of a short read is asked for again; the last bytes of the file follow in the same way.
  return static_cast<std::int64_t>(*got);
}

Result<std::uint64_t> GdsSource::read_by_cufile(const io::Attempt& attempt, std::uint64_t length) {
  const memory::Span ring = gds_.memory_->span();
  const auto address = reinterpret_cast<std::uintptr_t>(attempt.memory);
  IC_ASSERT(address >= ring.address && address - ring.address + length <= ring.bytes);
  IC_TRY(const std::uint64_t got,
         gds_.cufile_->read(*handle_, {ring.address, address - ring.address, length, attempt.offset}));
  gds_.direct_bytes_ += got;
  return got;
}

std::int64_t GdsSource::read_through_host(const io::Attempt& attempt, std::uint64_t length) {
  std::vector<std::byte> buffer(length);
  const Status read = os::read_exactly(file_.buffered_fd(), buffer, attempt.offset, name());
  if (!read.ok()) return read.error().system_errno() != 0 ? -read.error().system_errno() : 0;  // 0: cut short
  const memory::Span to{memory::Kind::cuda, gds_.cufile_->device()->ordinal(),
                        reinterpret_cast<std::uintptr_t>(attempt.memory), length};
  const Status copied = gpu::copy_to_device(gds_.cufile_->device(), buffer.data(), to);
  if (!copied.ok()) {
    refuse(copied.error());
    return -EIO;
  }
  gds_.host_bytes_ += length;
  return static_cast<std::int64_t>(length);
}

Result<std::unique_ptr<GdsReader>> GdsReader::open(std::shared_ptr<gpu::CuFile> cufile, const Options& options) {
  IC_ASSERT(options.threads > 0 && options.slot_bytes <= gpu::kCuFileReadMax);
  std::unique_ptr<GdsReader> gds(new GdsReader(std::move(cufile), options));  // NOLINT: the constructor is private
  IC_TRY(gds->memory_, gpu::DeviceMemory::allocate(gds->cufile_->device(), options.slot_bytes * options.slots));
  auto buffer = gds->cufile_->register_buffer(gds->memory_);
  if (buffer.ok()) {
    gds->buffer_ = std::move(*buffer);
  } else {
    gds->unregistered_ = buffer.error().message();
  }
  for (unsigned i = 0; i < options.threads; ++i) {
    gds->threads_.push_back(start_thread("ic-gds", [self = gds.get()] { self->run(); }));
  }
  return gds;
}

GdsReader::~GdsReader() {
  {
    const std::lock_guard lock(mutex_);
    IC_ASSERT(work_.empty());
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

memory::Ring GdsReader::take_ring() {
  return {memory::Block{memory_->span(), memory_, nullptr}, options_.slot_bytes};
}

Result<std::unique_ptr<GdsSource>> GdsReader::open_source(const io::FileSource& file) {
  IC_TRY(Fd direct, os::reopen_for_reading(file.buffered_fd(), os::OpenMode::direct));
  IC_TRY(std::unique_ptr<gpu::CuFileFile> handle, cufile_->register_file(direct));
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): the constructor is private
  return std::unique_ptr<GdsSource>(new GdsSource(*this, file, std::move(direct), std::move(handle)));
}

void GdsReader::add(Work work) {
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  changed_.notify_one();
}

void GdsReader::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !work_.empty(); });
    if (work_.empty()) return;
    const Work work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    work.done(work.attempt.token, work.source->read(work.attempt));
    lock.lock();
  }
}

}  // namespace infercluster::load
