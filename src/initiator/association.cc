// SPDX-License-Identifier: Apache-2.0
#include "initiator/association.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/units.h"
#include "initiator/authenticate.h"

namespace infercluster::initiator {
namespace {

constexpr std::uint32_t kReadMax = kMiB;  // SPDK's default is 128 KiB and said by MDTS; nvmet refuses above 4 MiB
constexpr auto kGoodbyeMax = std::chrono::milliseconds(500);

}  // namespace

Result<std::shared_ptr<Association>> Association::connect(const Url& url, const nvme::ConnectData& self,
                                                          const HostOptions& options, Queue::Owner& owner,
                                                          const std::atomic<bool>& cancelled) {
  std::shared_ptr<Association> association(new Association);
  ChannelOptions bounds = bounded(options);
  bounds.cancelled = &cancelled;
  IC_CHECK(association->open_controller(url, self, options, bounds));
  IC_CHECK(association->open_namespace(url));
  IC_CHECK(association->open_queues(url, self, options, bounds, owner));
  association->admin_->unbound(std::chrono::ceil<std::chrono::milliseconds>(options.silence_max));
  return association;
}

void Association::end() {
  for (const auto& queue : queues_) queue->end();
  for (const auto& queue : queues_) queue->join();
}

void Association::say_goodbye() {
  admin_->unbound(kGoodbyeMax);
  shut_down(*admin_);
}

Queue::Start Association::try_start(const QueuedRead& read) {
  const unsigned first = next_queue_.fetch_add(1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    const Queue::Start start = queues_[(first + i) % queues_.size()]->try_start(read);
    if (start != Queue::Start::full) return start;
  }
  return Queue::Start::full;
}

bool Association::has_room() const {
  return std::any_of(queues_.begin(), queues_.end(), [](const auto& queue) { return queue->has_room(); });
}

Status Association::keep_alive() {
  IC_CHECK(admin_->command({.opcode = nvme::kKeepAlive}, {}, 0));
  return {};
}

Status Association::open_controller(const Url& url, const nvme::ConnectData& self, const HostOptions& options,
                                    const ChannelOptions& bounds) {
  const auto keep_alive_ms = static_cast<std::uint32_t>(options.keep_alive.count());
  IC_TRY(Admin admin, open_admin(url.address, self, options, bounds, keep_alive_ms));
  admin_ = std::move(admin.channel);
  controller_id_ = admin.controller_id;
  queue_entries_ =
      static_cast<std::uint16_t>(std::min<unsigned>(options.queue_entries, admin.capabilities.queue_entries_max + 1U));
  IC_TRY(const Channel::Reply reply,
         admin_->must(nvme::encode_identify(nvme::kCnsController, 0), nvme::kIdentifyBytes, "to identify itself"));
  controller_ = nvme::decode_identify_controller(identify_page(reply));
  const std::uint64_t most = controller_.transfer_bits == 0 || controller_.transfer_bits > 8
                                 ? kReadMax
                                 : std::uint64_t{4096} << controller_.transfer_bits;
  namespace_.read_bytes_max = static_cast<std::uint32_t>(std::min<std::uint64_t>(most, kReadMax));
  return {};
}

Status Association::open_namespace(const Url& url) {
  const std::string what = "namespace " + std::to_string(url.nsid);
  IC_TRY(const Channel::Reply reply,
         admin_->must(nvme::encode_identify(nvme::kCnsNamespace, url.nsid), nvme::kIdentifyBytes, what));
  const nvme::IdentifyNamespace found = nvme::decode_identify_namespace(identify_page(reply));
  if (found.blocks == 0) {
    return Error(ErrorCode::not_found, url.to_string() + ": there is no " + what)
        .with_hint("Is the nsid right? This program's targets have namespace 1 alone");
  }
  if (found.metadata_bytes != 0 || found.protection != 0 || found.block_bits < 9 || found.block_bits > 12) {
    return Error(ErrorCode::unsupported, url.to_string() + ": its blocks have 2^" + std::to_string(found.block_bits) +
                                             " bytes and " + std::to_string(found.metadata_bytes) + " of metadata")
        .with_hint("Give the namespace blocks of 512 to 4,096 bytes without metadata");
  }
  namespace_.blocks = found.blocks;
  namespace_.block_bits = found.block_bits;
  IC_TRY(const Channel::Reply descriptors, admin_->must(nvme::encode_identify(nvme::kCnsNamespaceDescriptors, url.nsid),
                                                        nvme::kIdentifyBytes, "the descriptors of " + what));
  namespace_.uuid = nvme::decode_namespace_descriptors(identify_page(descriptors));
  return {};
}

Status Association::open_queues(const Url& url, const nvme::ConnectData& self, const HostOptions& options,
                                const ChannelOptions& bounds, Queue::Owner& owner) {
  const std::uint32_t wanted = std::max(1U, options.queues);
  IC_TRY(const Channel::Reply reply,
         admin_->must(nvme::encode_set_features(nvme::kFeatureQueues, (wanted - 1) << 16 | (wanted - 1)), 0,
                      "I/O queues"));
  const auto granted = static_cast<std::uint32_t>(std::min(reply.result & 0xFFFFU, reply.result >> 16 & 0xFFFFU) + 1);
  nvme::ConnectData data = self;
  data.controller_id = controller_id_;
  ChannelOptions as_admin = bounds;
  as_admin.sending = admin_->sending();
  for (std::uint32_t i = 1; i <= std::min(wanted, granted); ++i) {
    IC_TRY(Channel::Opened opened, Channel::open_queue(url.address, as_admin,
                                                       {.format = 0,
                                                        .queue_id = static_cast<std::uint16_t>(i),
                                                        .queue_size = static_cast<std::uint16_t>(queue_entries_ - 1),
                                                        .attributes = 0,
                                                        .keep_alive_ms = 0},
                                                       data));
    IC_CHECK(authenticate(*opened.channel, opened.connected, data, options.credentials));
    opened.channel->unbound(options.connect_timeout);
    queues_.push_back(std::make_unique<Queue>(std::move(opened.channel),
                                              Queue::Options{.nsid = url.nsid,
                                                             .block_bits = namespace_.block_bits,
                                                             .entries = queue_entries_,
                                                             .silence_max = options.silence_max},
                                              owner));
  }
  return {};
}

}  // namespace infercluster::initiator
