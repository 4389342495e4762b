// SPDX-License-Identifier: Apache-2.0
#include "target/controllers.h"

#include <algorithm>

namespace infercluster::target {
namespace {

// Identifiers from FFF0h on are reserved.
constexpr std::uint16_t kControllerIdMax = 0xFFEF;

nvme::Reply refuse(nvme::CommandStatus status, std::uint64_t result = 0) {
  return {.status = status, .result = result, .data = {}, .held = false};
}

}  // namespace

nvme::Reply ControllerSlot::admin(const nvme::Command& command, const nvme::DiscoveryLog& log) {
  const std::lock_guard lock(mutex_);
  nvme::Reply reply = controller_.admin(command, log);
  stopped_.store(controller_.stopped(), std::memory_order_release);
  return reply;
}

std::variant<nvme::ReadCommand, nvme::Reply> ControllerSlot::io(const nvme::Command& command) {
  const std::lock_guard lock(mutex_);
  return controller_.io(command);
}

bool ControllerSlot::silent(Clock::TimePoint now) const {
  std::uint32_t timeout_ms = 0;
  {
    const std::lock_guard lock(mutex_);
    timeout_ms = controller_.keep_alive_ms();
  }
  if (timeout_ms == 0) return false;
  const Clock::Duration since = now.time_since_epoch() - Clock::Duration(heard_ns_.load(std::memory_order_relaxed));
  return since > std::chrono::milliseconds(timeout_ms);
}

bool Controllers::admitted(const nvme::ConnectData& data, const Peer& peer) const {
  if (credentials_of(data.host_nqn) != nullptr) return true;
  if (peer.loopback && admission_.any_from_loopback && admission_.secrets.empty()) return true;
  return std::find(admission_.hosts.begin(), admission_.hosts.end(), data.host_nqn) != admission_.hosts.end();
}

const nvme::Credentials* Controllers::credentials_of(const std::string& host_nqn) const {
  if (const auto own = admission_.secrets.find(host_nqn); own != admission_.secrets.end()) return &own->second;
  return admission_.secret_of_others ? &*admission_.secret_of_others : nullptr;
}

Controllers::Opened Controllers::open(const nvme::Connect& connect, const nvme::ConnectData& data, const Peer& peer,
                                      Clock::TimePoint now) {
  if (std::optional<nvme::Reply> wrong = nvme::check_connect(connect, data, subsystem_)) return *std::move(wrong);
  if (!admitted(data, peer)) return refuse(nvme::kConnectInvalidHost);
  const std::lock_guard lock(mutex_);
  Opened opened = connect.queue_id == 0 ? open_admin(connect, data) : open_io(connect, data);
  if (const auto* slot = std::get_if<std::shared_ptr<ControllerSlot>>(&opened)) (*slot)->heard(now);
  return opened;
}

Controllers::Opened Controllers::open_admin(const nvme::Connect& connect, const nvme::ConnectData& data) {
  const auto of_this_host = std::count_if(slots_.begin(), slots_.end(), [&](const auto& entry) {
    return entry.second->host().host_nqn == data.host_nqn && entry.second->host().host_id == data.host_id;
  });
  if (slots_.size() >= limits_.controllers_max || of_this_host >= limits_.controllers_per_host)
    return refuse(nvme::kConnectControllerBusy);
  do {
    last_id_ = last_id_ == kControllerIdMax ? 1 : static_cast<std::uint16_t>(last_id_ + 1);
  } while (slots_.contains(last_id_));
  const bool discovery = data.subsystem_nqn == nvme::kDiscoveryNqn;
  const nvme::Controller::Options options{
      .type = discovery ? nvme::ControllerType::discovery : nvme::ControllerType::io,
      .id = last_id_,
      .keep_alive_ms = connect.keep_alive_ms};
  const nvme::Credentials* const credentials = discovery ? nullptr : credentials_of(data.host_nqn);
  auto slot = std::make_shared<ControllerSlot>(subsystem_, options, data, credentials);
  slots_.emplace(last_id_, slot);
  return slot;
}

Controllers::Opened Controllers::open_io(const nvme::Connect& connect, const nvme::ConnectData& data) {
  constexpr std::uint16_t kControllerIdAt = 16;
  constexpr std::uint16_t kHostNqnAt = 512;
  const auto found = slots_.find(data.controller_id);
  if (found == slots_.end() || found->second->closed()) {
    return refuse(nvme::kConnectInvalidParameters,
                  nvme::encode_refused_parameter(nvme::ConnectPart::data, kControllerIdAt));
  }
  ControllerSlot& slot = *found->second;
  if (slot.host().host_nqn != data.host_nqn || slot.host().host_id != data.host_id ||
      slot.host().subsystem_nqn != data.subsystem_nqn) {
    return refuse(nvme::kConnectInvalidParameters, nvme::encode_refused_parameter(nvme::ConnectPart::data, kHostNqnAt));
  }
  {
    const std::lock_guard lock(slot.mutex_);
    if (!slot.controller_.ready()) return refuse(nvme::kCommandSequenceError);
  }
  if (!slot.queues_.insert(connect.queue_id).second) return refuse(nvme::kCommandSequenceError);
  return found->second;
}

void Controllers::queue_closed(const std::shared_ptr<ControllerSlot>& slot, std::uint16_t queue_id) {
  const std::lock_guard lock(mutex_);
  if (queue_id != 0) {
    slot->queues_.erase(queue_id);
    return;
  }
  slot->close();
  slots_.erase(slot->id());
}

void Controllers::close_silent(Clock::TimePoint now) {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, slot] : slots_) {
    if (slot->silent(now)) slot->close();
  }
}

std::size_t Controllers::count() const {
  const std::lock_guard lock(mutex_);
  return slots_.size();
}

}  // namespace infercluster::target
