// SPDX-License-Identifier: Apache-2.0
#include "initiator/remote_source.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/units.h"

namespace infercluster::initiator {
namespace {

// The parts of one attempt, each a command. It reports once, when the last of them is at rest.
struct Parts {
  std::uint64_t token = 0;
  io::AttemptDone done;
  std::uint32_t bytes = 0;
  std::atomic<unsigned> left{1};  // and one for whoever starts them
  std::atomic<int> failure{0};    // errno of the first that failed
  std::vector<std::byte> tail;    // the last block, where it is wanted in part
  std::byte* tail_to = nullptr;
  std::size_t tail_bytes = 0;

  void finish(int system_errno) {
    int none = 0;
    if (system_errno != 0) failure.compare_exchange_strong(none, system_errno);
    if (left.fetch_sub(1) != 1) return;
    const int first = failure.load();
    if (first == 0 && tail_bytes > 0) std::memcpy(tail_to, tail.data(), tail_bytes);
    done(token, first == 0 ? std::int64_t{bytes} : -std::int64_t{first});
  }
};

int errno_of(const Status& status) {
  if (status.ok()) return 0;
  return status.error().system_errno() != 0 ? status.error().system_errno() : EIO;
}

}  // namespace

Result<std::unique_ptr<RemoteSource>> RemoteSource::open(std::shared_ptr<Host> host, const RemoteRange& range) {
  const std::uint64_t needed = (range.bytes + host->block_bytes() - 1) / host->block_bytes();
  if (range.bytes == 0 || range.first_block > host->blocks() || needed > host->blocks() - range.first_block) {
    return Error(ErrorCode::invalid_argument, host->url().to_string() + ": " + std::to_string(range.bytes) +
                                                  " bytes from block " + std::to_string(range.first_block) +
                                                  " are not within the namespace");
  }
  return std::unique_ptr<RemoteSource>(new RemoteSource(std::move(host), range));
}

RemoteSource::RemoteSource(std::shared_ptr<Host> host, const RemoteRange& range)
    : host_(std::move(host)),
      range_(range),
      name_(host_->url().to_string() + "#" + std::to_string(range.first_block)) {}

void RemoteSource::start(const io::Attempt& attempt, const io::AttemptDone& done) {
  const std::uint64_t block = host_->block_bytes();
  const std::uint64_t end = std::min<std::uint64_t>(range_.bytes, attempt.offset + attempt.length);
  if (attempt.offset % block != 0 || attempt.offset >= range_.bytes) {
    done(attempt.token, attempt.offset >= range_.bytes ? 0 : -EINVAL);
    return;
  }
  auto parts = std::make_shared<Parts>();
  parts->token = attempt.token;
  parts->done = done;
  parts->bytes = static_cast<std::uint32_t>(end - attempt.offset);
  std::uint64_t at = attempt.offset;
  while (at < end && parts->failure.load() == 0) {
    std::uint64_t taken = std::min<std::uint64_t>(align_down(end - at, block), host_->read_bytes_max());
    std::span<std::byte> memory(attempt.memory + (at - attempt.offset), taken);
    if (taken == 0) {
      taken = end - at;
      parts->tail.resize(block);
      parts->tail_to = memory.data();
      parts->tail_bytes = taken;
      memory = parts->tail;
    }
    parts->left.fetch_add(1);
    const Status started = host_->start({.first_block = range_.first_block + at / block,
                                         .blocks = static_cast<std::uint32_t>(memory.size() / block),
                                         .memory = memory,
                                         .done = [parts](const Status& status) { parts->finish(errno_of(status)); }});
    if (!started.ok()) parts->finish(errno_of(started));
    at += taken;
  }
  parts->finish(0);
}

io::ErrorAction RemoteSource::on_error(int) {
  return io::ErrorAction::fail;
}

std::string RemoteSource::hint_for(int system_errno) const {
  switch (system_errno) {
    case ENODATA:
      return "The target has lost these blocks, or found them damaged: read another copy";
    case EBADMSG:
      return "Data was damaged on its way or on the target's disk: read another copy";
    case ETIMEDOUT:
    case ECONNRESET:
    case ECANCELED:
      return "The target is gone or does not answer: read another copy, or connect anew";
    default:
      return "";
  }
}

}  // namespace infercluster::initiator
