// SPDX-License-Identifier: Apache-2.0
// A host that knows what a live target must answer, for the fuzzer of the target. Each queue is *lawful* as long as it
// sent nothing that a host may not send: until then every command is answered once, and rightly; afterwards the target
// may end the connection, and what it still sends must be well formed. Every wait ends after 9 s, as a finding.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "nvme/pdu_reader.h"
#include "os/socket.h"
#include "target/address_space.h"
#include "target/host_test_helpers.h"

namespace infercluster::target {

inline constexpr int kPatienceMs = 9000;

// What the namespace holds, as the host knows it.
class KnownSpace {
 public:
  void map(std::uint64_t first_block, Bytes content) {
    ++changes_;
    IC_ASSERT(objects_.empty() || first_block > last_block_);
    last_block_ = first_block;
    content.resize((content.size() + kBlockBytes - 1) / kBlockBytes * kBlockBytes);
    objects_[first_block] = std::move(content);
  }
  void unmap(std::uint64_t first_block) {
    ++changes_;
    objects_.erase(first_block);
  }
  [[nodiscard]] std::uint64_t changes() const { return changes_; }
  [[nodiscard]] std::uint64_t last_block() const { return last_block_; }

  // nullopt: some of the blocks belong to nobody, and the answer is refusal().
  [[nodiscard]] std::optional<Bytes> read(std::uint64_t first_block, std::uint32_t blocks) const {
    if (ends_beyond(first_block, blocks)) return std::nullopt;
    Bytes bytes(blocks * kBlockBytes);
    for (std::uint32_t i = 0; i < blocks; ++i) {
      const std::uint64_t block = first_block + i;
      if (block < kEdgeBlocks || block >= kSpaceBlocks - kEdgeBlocks) continue;
      auto object = objects_.upper_bound(block);
      if (object == objects_.begin()) return std::nullopt;
      --object;
      const std::uint64_t within = (block - object->first) * kBlockBytes;
      const Bytes& content = object->second;
      if (within >= content.size() + kGuardBlocks * kBlockBytes) return std::nullopt;
      if (within >= content.size()) continue;
      std::copy_n(content.begin() + static_cast<std::ptrdiff_t>(within), kBlockBytes,
                  bytes.begin() + static_cast<std::ptrdiff_t>(i * kBlockBytes));
    }
    return bytes;
  }
  [[nodiscard]] static nvme::CommandStatus refusal(std::uint64_t first_block, std::uint32_t blocks) {
    return ends_beyond(first_block, blocks) ? nvme::kLbaOutOfRange : nvme::kExtentGone;
  }

 private:
  static bool ends_beyond(std::uint64_t first_block, std::uint32_t blocks) {
    return first_block >= kSpaceBlocks || blocks > kSpaceBlocks - first_block;
  }

  std::map<std::uint64_t, Bytes> objects_;
  std::uint64_t changes_ = 0;
  std::uint64_t last_block_ = 0;
};

// A controller, as its queues know it.
struct KnownController {
  std::uint16_t id = 0;
  bool discovery = false;
  bool enabled = false;
  bool proof_wanted = false;  // its queues are refused until they authenticate
  bool uncertain = false;     // it was told something after which it may refuse commands, or end its queues
  bool admin_gone = false;
};

// What the answer to a command has to be.
struct Awaited {
  bool may_be_held = false;  // an event that may never come
  bool read = false;
  std::optional<Bytes> bytes{};  // of a read; nullopt: it is refused
  nvme::CommandStatus refusal{};
  std::uint64_t changes = 0;  // of the namespace, when it was sent
  Bytes came{};
};

class LiveQueue {
 public:
  static constexpr std::size_t kAwaitedMax = 8;

  LiveQueue(const os::SocketAddress& address, const KnownSpace& space)
      : space_(space), socket_(*os::connect_tcp(address, std::chrono::milliseconds(kPatienceMs))) {}
  LiveQueue(const LiveQueue&) = delete;
  LiveQueue& operator=(const LiveQueue&) = delete;
  ~LiveQueue() { leave(SHUT_RDWR); }

  [[nodiscard]] bool lawful() const { return lawful_; }
  [[nodiscard]] bool over() const { return over_; }
  [[nodiscard]] bool initialized() const { return initialized_; }
  [[nodiscard]] nvme::Digests digests() const { return digests_; }
  [[nodiscard]] const std::shared_ptr<KnownController>& controller() const { return controller_; }
  [[nodiscard]] bool admin() const { return controller_ && queue_id_ == 0; }
  // From now on it may be ended, and with an admin queue its controller's other queues: they may see that first.
  void break_the_law() {
    lawful_ = false;
    if (admin()) controller_->uncertain = true;
  }
  // Bytes in one send; 0: all.
  void set_piece(std::size_t bytes) { piece_ = bytes; }

  void initialize(nvme::Digests digests, std::uint8_t alignment) {
    if (initialized_) break_the_law();
    if (lawful_) reader_.limit({.data_max = kDataMax, .in_capsule_max = 0, .data_alignment = 4U * (alignment + 1U)});
    send(initialize_bytes(digests, alignment));
    wait([&] { return initialized_; });
  }

  // Sends a command under a fresh identifier, once there is an entry for it.
  void command(const nvme::Command& command, std::uint32_t length, Awaited awaited) {
    if (!initialized_) break_the_law();
    if (awaited_count() >= std::min(kAwaitedMax, entries_)) drain();
    const std::uint16_t cid = ++last_cid_;
    awaited.changes = space_.changes();
    if (lawful_) awaited_[cid] = std::move(awaited);
    send(command_bytes(command, cid, length, digests_));
  }
  void capsule(nvme::Command command, const Bytes& data, Awaited awaited) {
    if (!initialized_) break_the_law();
    if (awaited_count() >= std::min(kAwaitedMax, entries_)) drain();
    command.cid = ++last_cid_;
    command.sgl = {.address = 0, .length = static_cast<std::uint32_t>(data.size()), .identifier = nvme::kSglInCapsule};
    if (lawful_) awaited_[command.cid] = std::move(awaited);
    send(wire({.type = nvme::PduType::command, .flags = 0, .body = command}, digests_, data));
  }
  void read(std::uint64_t first_block, std::uint32_t blocks) {
    Awaited awaited{.read = true, .refusal = KnownSpace::refusal(first_block, blocks)};
    if (lawful_) awaited.bytes = space_.read(first_block, blocks);
    command(nvme::encode_read({.first_block = first_block, .blocks = blocks}, 1),
            static_cast<std::uint32_t>(blocks * kBlockBytes), std::move(awaited));
  }

  // Connect; what came of it is in controller().
  void connect(const ConnectTo& to, const std::shared_ptr<KnownController>& joined) {
    if (!initialized_) break_the_law();
    drain();
    const bool fresh = !controller_;
    if (lawful_) awaited_[0] = {};
    send(connect_bytes(to, 0, digests_));
    drain();
    if (!lawful_ || over_ || !fresh || !last_.status.ok()) return;
    const nvme::Connected connected = nvme::decode_connected(last_.result);
    if (to.connect.queue_id == 0) {
      controller_ = std::make_shared<KnownController>();
      controller_->id = connected.controller_id;
      controller_->discovery = to.nqn == nvme::kDiscoveryNqn;
      controller_->uncertain = to.connect.keep_alive_ms != 0;
    } else {
      IC_ASSERT(joined && connected.controller_id == joined->id);
      controller_ = joined;
    }
    if (connected.authentication_required) controller_->proof_wanted = true;
    queue_id_ = to.connect.queue_id;
    entries_ = to.connect.queue_size;
  }

  // The first half of what is sent next goes now, the rest with what is sent after it.
  void halve_next() { halve_ = true; }
  void send(const Bytes& bytes) {
    if (over_) return;
    Bytes all = std::exchange(unsent_, {});
    all.insert(all.end(), bytes.begin(), bytes.end());
    if (std::exchange(halve_, false)) {
      const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
      unsent_.assign(middle, all.end());
      all.erase(middle, all.end());
    }
    // A long PDU in single bytes says nothing that a short one does not.
    const std::size_t step = piece_ == 0 ? all.size() : std::max(piece_, all.size() / 64);
    for (std::size_t at = 0; at < all.size() && !over_;) {
      if (!ready(POLLIN | POLLOUT)) continue;
      const ssize_t sent = ::send(socket_.get(), all.data() + at, std::min(step, all.size() - at), MSG_NOSIGNAL);
      if (sent > 0) at += static_cast<std::size_t>(sent);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) ended();
    }
  }

  // Takes all that is due: the answers of a lawful queue, what has come already of another.
  void drain() {
    if (lawful_) return wait([&] { return awaited_count() == 0; });
    flush();
    while (!over_ && readable()) receive();
  }
  // After a PDU that no host may send: the target says so, and ends the connection.
  void must_be_ended() {
    const bool told = piece_ == 0 && unsent_.empty();
    while (!over_) {
      ready(POLLIN);
    }
    IC_ASSERT(terminated_ || !told);
  }
  // Goes away: how as in shutdown(), or with a reset.
  void leave(int how) {
    if (over_) return;
    if (how == SHUT_RDWR) {
      const linger at_once{.l_onoff = 1, .l_linger = 0};
      setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    } else {
      shutdown(socket_.get(), how);
    }
    lawful_ = false;
    ended();
    if (how == SHUT_RDWR) socket_.reset();
  }

 private:
  static constexpr std::uint32_t kDataMax = 1U << 20;

  [[nodiscard]] std::size_t awaited_count() const {
    return static_cast<std::size_t>(
        std::count_if(awaited_.begin(), awaited_.end(), [](const auto& each) { return !each.second.may_be_held; }));
  }
  void flush() {
    halve_ = false;
    if (!unsent_.empty()) send({});
  }
  template <typename Done>
  void wait(const Done& done) {
    flush();
    while (!over_ && lawful_ && !done()) ready(POLLIN);
    if (!over_ && !lawful_) drain();
  }
  [[nodiscard]] bool readable() const {
    pollfd waited{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    return poll(&waited, 1, 0) > 0;
  }
  // Takes what comes meanwhile. True: it can be written to.
  bool ready(short events) {
    pollfd waited{.fd = socket_.get(), .events = events, .revents = 0};
    int count = 0;
    do {  // the fuzzer's own alarm may interrupt it
      count = poll(&waited, 1, kPatienceMs);
    } while (count < 0 && errno == EINTR);
    IC_ASSERT(count > 0);
    if ((waited.revents & ~POLLOUT) != 0) receive();
    return (waited.revents & POLLOUT) != 0;
  }
  void receive() {
    std::array<std::byte, 65536> buffer;
    const ssize_t got = recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return ended();
    std::span<const std::byte> bytes = std::span(buffer).first(static_cast<std::size_t>(got));
    while (!bytes.empty()) {
      const std::span<std::byte> room = reader_.room();
      const std::size_t count = std::min(room.size(), bytes.size());
      std::copy_n(bytes.begin(), count, room.begin());
      bytes = bytes.subspan(count);
      const nvme::PduReader::Progress progress = reader_.filled(count);
      IC_ASSERT(progress != nvme::PduReader::Progress::fault);
      if (progress == nvme::PduReader::Progress::header) {
        data_.assign(reader_.data_length(), std::byte{0});
        reader_.place(data_);
      }
      if (progress == nvme::PduReader::Progress::whole) on_pdu(reader_.pdu());
    }
  }
  void on_pdu(const nvme::Pdu& pdu) {
    IC_ASSERT(!terminated_);
    IC_ASSERT(reader_.data_intact());
    if (const auto* response = std::get_if<nvme::InitializeResponse>(&pdu.body)) {
      digests_ = response->digests;
      reader_.use(digests_);
      initialized_ = true;
    } else if (pdu.type == nvme::PduType::target_terminate) {
      IC_ASSERT(!lawful_);
      terminated_ = true;
    } else if (const auto* header = std::get_if<nvme::DataHeader>(&pdu.body)) {
      if (lawful_) on_data(*header, pdu.flags);
    } else if (const auto* completion = std::get_if<nvme::Completion>(&pdu.body)) {
      if (lawful_) complete(*completion);
    } else {
      IC_FAIL("the target sent what only hosts send");
    }
  }
  void on_data(const nvme::DataHeader& header, std::uint8_t flags) {
    const auto found = awaited_.find(header.cid);
    IC_ASSERT(found != awaited_.end() && header.offset == found->second.came.size());
    found->second.came.insert(found->second.came.end(), data_.begin(), data_.end());
    if ((flags & nvme::kSuccessFlag) != 0)
      complete({.result = 0, .sq_head = 0, .sq_id = 0, .cid = header.cid, .status = nvme::kSuccess});
  }
  void complete(const nvme::Completion& completion) {
    const auto found = awaited_.find(completion.cid);
    IC_ASSERT(found != awaited_.end());
    const Awaited awaited = std::move(found->second);
    awaited_.erase(found);
    last_ = completion;
    if (!completion.status.ok()) IC_ASSERT(awaited.came.empty());
    if (!awaited.read) return;
    if (completion.status.ok()) {
      const bool appeared = !awaited.bytes && awaited.changes != space_.changes();
      IC_ASSERT(controller_ && !controller_->discovery && queue_id_ != 0);
      IC_ASSERT(appeared || (awaited.bytes && *awaited.bytes == awaited.came));
      return;
    }
    const bool certain = controller_ && controller_->enabled && !controller_->proof_wanted && !controller_->uncertain &&
                         queue_id_ != 0 && awaited.changes == space_.changes();
    if (certain) IC_ASSERT(!awaited.bytes && completion.status == awaited.refusal);
  }
  void ended() {
    over_ = true;
    const bool by_controller = controller_ && (controller_->uncertain || controller_->admin_gone);
    IC_ASSERT(!lawful_ || by_controller);
    if (admin()) controller_->admin_gone = true;
  }

  const KnownSpace& space_;
  Fd socket_;
  nvme::PduReader reader_{nvme::Side::host, {.data_max = kDataMax, .in_capsule_max = 0, .data_alignment = 4}};
  nvme::Digests digests_;
  std::size_t piece_ = 0;
  bool halve_ = false;
  Bytes unsent_;
  Bytes data_;
  bool lawful_ = true;
  bool over_ = false;
  bool initialized_ = false;
  bool terminated_ = false;
  std::shared_ptr<KnownController> controller_;
  std::uint16_t queue_id_ = 0;
  std::size_t entries_ = kAwaitedMax;
  std::uint16_t last_cid_ = 0;
  std::map<std::uint16_t, Awaited> awaited_;
  nvme::Completion last_;
};

}  // namespace infercluster::target
