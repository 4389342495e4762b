// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/units.h"
#include "initiator/host.h"

namespace infercluster::initiator {
namespace {

constexpr unsigned kReadsAtOnce = 256;  // of one call: the queues stay full

}  // namespace

Status Host::read(std::uint64_t offset, std::span<std::byte> into) {
  const std::uint64_t size = blocks() * block_bytes();
  if (offset > size || into.size() > size - offset) {
    return Error(ErrorCode::invalid_argument, url_.to_string() + ": the range ends beyond the namespace")
        .with_offset(offset);
  }
  struct Pending {
    std::mutex mutex;
    std::condition_variable changed;
    unsigned under_way = 0;
    Status first;
  } pending;
  const std::uint64_t block = block_bytes();
  struct Edge {  // blocks that are wanted in part
    std::vector<std::byte> bytes;
    std::uint64_t begin = 0;
    std::span<std::byte> wanted;
  };
  std::vector<Edge> edges;
  edges.reserve(2);
  Status started;
  while (!into.empty() && started.ok()) {
    const std::uint64_t within = offset % block;
    const bool partial = within != 0 || into.size() < block;
    BlockRead read{.first_block = offset / block, .blocks = 1, .memory = {}, .done = nullptr};
    std::uint64_t taken = 0;
    if (partial) {
      taken = std::min<std::uint64_t>(block - within, into.size());
      edges.push_back({.bytes = std::vector<std::byte>(block), .begin = within, .wanted = into.first(taken)});
      read.memory = edges.back().bytes;
    } else {
      taken = std::min<std::uint64_t>(align_down(into.size(), block), read_bytes_max());
      read.blocks = static_cast<std::uint32_t>(taken / block);
      read.memory = into.first(taken);
    }
    read.done = [&pending](const Status& status) {
      const std::lock_guard lock(pending.mutex);
      if (!status.ok() && pending.first.ok()) pending.first = status;
      --pending.under_way;
      pending.changed.notify_all();
    };
    {
      std::unique_lock lock(pending.mutex);
      pending.changed.wait(lock, [&] { return pending.under_way < kReadsAtOnce; });
      if (!pending.first.ok()) break;
      ++pending.under_way;
    }
    started = start(std::move(read));
    if (!started.ok()) {
      const std::lock_guard lock(pending.mutex);
      --pending.under_way;
    }
    offset += taken;
    into = into.subspan(taken);
  }
  std::unique_lock lock(pending.mutex);
  pending.changed.wait(lock, [&] { return pending.under_way == 0; });
  IC_CHECK(pending.first);
  IC_CHECK(started);
  for (const Edge& edge : edges) std::memcpy(edge.wanted.data(), edge.bytes.data() + edge.begin, edge.wanted.size());
  return {};
}

}  // namespace infercluster::initiator
