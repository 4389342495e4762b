// SPDX-License-Identifier: Apache-2.0
#include "initiator/host.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "base/units.h"
#include "initiator/authenticate.h"

namespace infercluster::initiator {
namespace {

constexpr std::uint32_t kReadMax = kMiB;  // SPDK's default is 128 KiB and said by MDTS; nvmet refuses above 4 MiB
constexpr std::uint16_t kAdminEntries = 32;
constexpr std::uint8_t kSqEntryBits = 6;
constexpr std::uint8_t kCqEntryBits = 4;
constexpr std::uint32_t kDiscoveryPiece = 64 * kKiB;
constexpr int kDiscoveryTriesMax = 8;

Result<nvme::ConnectData> who_am_i(const HostOptions& options, std::string subsystem) {
  nvme::ConnectData self{.host_id = {},
                         .controller_id = nvme::kAnyController,
                         .subsystem_nqn = std::move(subsystem),
                         .host_nqn = options.host_nqn};
  if (getrandom(self.host_id.data(), self.host_id.size(), 0) != static_cast<ssize_t>(self.host_id.size())) {
    return Error::from_errno(errno, "cannot get random numbers");
  }
  if (self.host_nqn.empty()) self.host_nqn = "nqn.2014-08.org.nvmexpress:uuid:" + nvme::to_string(self.host_id);
  IC_CHECK(nvme::check_nqn(self.host_nqn));
  return self;
}

// Connects the admin queue and enables the controller: what both kinds of controllers want first.
struct Admin {
  std::unique_ptr<Channel> channel;
  std::uint16_t controller_id = 0;
  nvme::Capabilities capabilities;
};
Result<Admin> open_admin(const os::SocketAddress& address, const nvme::ConnectData& self, const HostOptions& options,
                         std::uint32_t keep_alive_ms) {
  Admin admin;
  IC_TRY(admin.channel, Channel::open(address, {.digests = options.digests, .timeout = options.connect_timeout}));
  Channel& channel = *admin.channel;
  IC_TRY(const nvme::Connected connected, channel.connect({.format = 0,
                                                           .queue_id = 0,
                                                           .queue_size = kAdminEntries - 1,
                                                           .attributes = 0,
                                                           .keep_alive_ms = keep_alive_ms},
                                                          self));
  IC_CHECK(authenticate(channel, connected, self, options.credentials));
  admin.controller_id = connected.controller_id;
  const auto get = [&](std::uint32_t offset, std::uint8_t bytes) {
    return channel.must(nvme::encode_property_get({.offset = offset, .bytes = bytes, .value = 0}), 0, "a property");
  };
  IC_TRY(const Channel::Reply capabilities, get(nvme::kPropertyCapabilities, 8));
  admin.capabilities = nvme::decode_capabilities(capabilities.result);
  if (!admin.capabilities.nvm_command_set || admin.capabilities.page_bits_min > 0) {
    return Error(ErrorCode::unsupported,
                 channel.peer() + ": the target does not speak the NVM command set with pages of 4 KiB");
  }
  const nvme::Configuration enable{.enable = true,
                                   .command_set = 0,
                                   .page_bits = 0,
                                   .arbitration = 0,
                                   .shutdown = 0,
                                   .sq_entry_bits = kSqEntryBits,
                                   .cq_entry_bits = kCqEntryBits};
  IC_TRY([[maybe_unused]] const Channel::Reply set,
         channel.must(nvme::encode_property_set(
                          {.offset = nvme::kPropertyConfiguration, .bytes = 4, .value = nvme::encode(enable)}),
                      0, "its enabling"));
  const Clock::TimePoint deadline =
      steady_clock().now() + std::chrono::milliseconds(500) * std::max<int>(1, admin.capabilities.timeout_500ms);
  for (;;) {
    IC_TRY(const Channel::Reply status, get(nvme::kPropertyStatus, 4));
    const nvme::ControllerStatus now = nvme::decode_controller_status(static_cast<std::uint32_t>(status.result));
    if (now.fatal) return Error(ErrorCode::io, channel.peer() + ": the target's controller reports a fatal status");
    if (now.ready) return admin;
    if (steady_clock().now() > deadline)
      return Error(ErrorCode::timed_out, channel.peer() + ": the target's controller does not become ready");
  }
}

void shut_down(Channel& channel) {
  const nvme::Configuration bye{.enable = true,
                                .command_set = 0,
                                .page_bits = 0,
                                .arbitration = 0,
                                .shutdown = static_cast<std::uint8_t>(nvme::Shutdown::normal),
                                .sq_entry_bits = kSqEntryBits,
                                .cq_entry_bits = kCqEntryBits};
  // The connection ends in any case.
  (void)channel.command(
      nvme::encode_property_set({.offset = nvme::kPropertyConfiguration, .bytes = 4, .value = nvme::encode(bye)}), {},
      0);
}

std::span<const std::byte, nvme::kIdentifyBytes> page(const Channel::Reply& reply) {
  return std::span<const std::byte, nvme::kIdentifyBytes>(reply.data.data(), nvme::kIdentifyBytes);
}

Result<std::vector<std::byte>> read_log(Channel& channel, std::uint64_t bytes) {
  std::vector<std::byte> log;
  while (log.size() < bytes) {
    const std::uint64_t piece = std::min<std::uint64_t>(kDiscoveryPiece, bytes - log.size());
    IC_TRY(const Channel::Reply reply,
           channel.must(nvme::encode_log_request(
                            {.page = nvme::kLogDiscovery, .retain_event = true, .offset = log.size(), .length = piece}),
                        static_cast<std::uint32_t>(piece), "its discovery log"));
    log.insert(log.end(), reply.data.begin(), reply.data.end());
  }
  return log;
}

}  // namespace

Result<nvme::DiscoveryLog> discover(const os::SocketAddress& address, const HostOptions& options) {
  IC_TRY(const nvme::ConnectData self, who_am_i(options, nvme::kDiscoveryNqn));
  IC_TRY(const Admin admin, open_admin(address, self, options, 0));
  // A log that changes while it is read in pieces is read again.
  for (int attempt = 0; attempt < kDiscoveryTriesMax; ++attempt) {
    IC_TRY(const std::vector<std::byte> head, read_log(*admin.channel, nvme::kDiscoveryHeaderBytes));
    IC_TRY(const nvme::DiscoveryHeader header, nvme::decode_discovery_header(head));
    IC_TRY(const std::vector<std::byte> bytes,
           read_log(*admin.channel, nvme::kDiscoveryHeaderBytes + header.entries * nvme::kDiscoveryEntryBytes));
    IC_TRY(nvme::DiscoveryLog log, nvme::decode_discovery_log(bytes));
    if (log.generation != header.generation) continue;
    shut_down(*admin.channel);
    return log;
  }
  return Error(ErrorCode::changed, address.to_string() + ": the discovery log changes faster than it can be read");
}

Result<std::unique_ptr<Host>> Host::connect(const Url& url, const HostOptions& options) {
  if (url.nqn.empty())
    return Error(ErrorCode::invalid_argument, url.to_string() + " names no subsystem")
        .with_hint("infercluster initiator discover lists them");
  std::unique_ptr<Host> host(new Host);
  host->url_ = url;
  host->options_ = options;
  IC_TRY(host->self_, who_am_i(options, url.nqn));
  IC_CHECK(host->open_controller());
  IC_CHECK(host->open_namespace());
  IC_CHECK(host->open_queues(host->controller_id_));
  host->keeper_ = start_thread("nvme-keeper", [raw = host.get()] { raw->keep_alive(); });
  return host;
}

Host::~Host() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ending_.notify_all();
  if (keeper_.joinable()) keeper_.join();
  queues_.clear();
  if (admin_) shut_down(*admin_);
}

Status Host::open_controller() {
  const auto keep_alive_ms = static_cast<std::uint32_t>(options_.keep_alive.count());
  IC_TRY(Admin admin, open_admin(url_.address, self_, options_, keep_alive_ms));
  admin_ = std::move(admin.channel);
  controller_id_ = admin.controller_id;
  queue_entries_ =
      static_cast<std::uint16_t>(std::min<unsigned>(options_.queue_entries, admin.capabilities.queue_entries_max + 1U));
  IC_TRY(const Channel::Reply reply,
         admin_->must(nvme::encode_identify(nvme::kCnsController, 0), nvme::kIdentifyBytes, "to identify itself"));
  controller_ = nvme::decode_identify_controller(page(reply));
  const std::uint64_t most = controller_.transfer_bits == 0 || controller_.transfer_bits > 8
                                 ? kReadMax
                                 : std::uint64_t{4096} << controller_.transfer_bits;
  read_bytes_max_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(most, kReadMax));
  return {};
}

Status Host::open_namespace() {
  const std::string what = "namespace " + std::to_string(url_.nsid);
  IC_TRY(const Channel::Reply reply,
         admin_->must(nvme::encode_identify(nvme::kCnsNamespace, url_.nsid), nvme::kIdentifyBytes, what));
  const nvme::IdentifyNamespace name_space = nvme::decode_identify_namespace(page(reply));
  if (name_space.blocks == 0) return Error(ErrorCode::not_found, url_.to_string() + ": there is no " + what);
  if (name_space.metadata_bytes != 0 || name_space.protection != 0 || name_space.block_bits < 9 ||
      name_space.block_bits > 12) {
    return Error(ErrorCode::unsupported, url_.to_string() + ": its blocks have 2^" +
                                             std::to_string(name_space.block_bits) + " bytes and " +
                                             std::to_string(name_space.metadata_bytes) + " of metadata");
  }
  blocks_ = name_space.blocks;
  block_bits_ = name_space.block_bits;
  IC_TRY(const Channel::Reply descriptors,
         admin_->must(nvme::encode_identify(nvme::kCnsNamespaceDescriptors, url_.nsid), nvme::kIdentifyBytes,
                      "the descriptors of " + what));
  uuid_ = nvme::decode_namespace_descriptors(page(descriptors));
  return {};
}

Status Host::open_queues(std::uint16_t controller) {
  const std::uint32_t wanted = std::max(1U, options_.queues);
  IC_TRY(const Channel::Reply reply,
         admin_->must(nvme::encode_set_features(nvme::kFeatureQueues, (wanted - 1) << 16 | (wanted - 1)), 0,
                      "I/O queues"));
  const auto granted = static_cast<std::uint32_t>(std::min(reply.result & 0xFFFFU, reply.result >> 16 & 0xFFFFU) + 1);
  for (std::uint32_t i = 1; i <= std::min(wanted, granted); ++i) {
    IC_TRY(std::unique_ptr<Channel> channel,
           Channel::open(url_.address, {.digests = options_.digests, .timeout = options_.connect_timeout}));
    nvme::ConnectData data = self_;
    data.controller_id = controller;
    IC_TRY(const nvme::Connected connected,
           channel->connect({.format = 0,
                             .queue_id = static_cast<std::uint16_t>(i),
                             .queue_size = static_cast<std::uint16_t>(queue_entries_ - 1),
                             .attributes = 0,
                             .keep_alive_ms = 0},
                            data));
    IC_CHECK(authenticate(*channel, connected, data, options_.credentials));
    queues_.push_back(std::make_unique<Queue>(std::move(channel), Queue::Options{.nsid = url_.nsid,
                                                                                 .block_bits = block_bits_,
                                                                                 .entries = queue_entries_,
                                                                                 .deadline = options_.read_deadline}));
  }
  return {};
}

void Host::keep_alive() {
  std::unique_lock lock(mutex_);
  while (!ending_.wait_for(lock, options_.keep_alive / 2, [&] { return end_; })) {
    lock.unlock();
    const Result<Channel::Reply> reply = admin_->command({.opcode = nvme::kKeepAlive}, {}, 0);
    if (!reply.ok()) {
      // Without its controller the queues are of no use either: their reads end now, not at their deadlines.
      log_warning(reply.error().to_string());
      for (const auto& queue : queues_) queue->end();
      return;
    }
    lock.lock();
  }
}

Status Host::start(BlockRead read) {
  return queues_[next_queue_.fetch_add(1, std::memory_order_relaxed) % queues_.size()]->start(std::move(read));
}

Status Host::read(std::uint64_t offset, std::span<std::byte> into) {
  const std::uint64_t size = blocks_ << block_bits_;
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
    BlockRead read{.first_block = offset >> block_bits_, .blocks = 1, .memory = {}, .done = nullptr};
    std::uint64_t taken = 0;
    if (partial) {
      taken = std::min<std::uint64_t>(block - within, into.size());
      edges.push_back({.bytes = std::vector<std::byte>(block), .begin = within, .wanted = into.first(taken)});
      read.memory = edges.back().bytes;
    } else {
      taken = std::min<std::uint64_t>(align_down(into.size(), block), read_bytes_max_);
      read.blocks = static_cast<std::uint32_t>(taken >> block_bits_);
      read.memory = into.first(taken);
    }
    read.done = [&pending](const Status& status) {
      const std::lock_guard lock(pending.mutex);
      if (!status.ok() && pending.first.ok()) pending.first = status;
      --pending.under_way;
      pending.changed.notify_all();
    };
    {
      const std::lock_guard lock(pending.mutex);
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
