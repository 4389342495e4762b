// SPDX-License-Identifier: Apache-2.0
// Any bytes as what hosts do to a live target, over sockets: they open queues, initialize, connect, read, send what is
// wrong, leave in the middle, while objects come and go. What must hold: no fault of memory; no wait without an end;
// queues that keep to the protocol get right bytes or the definite error (fuzz/live_host.h), and so does a host that
// was there before all of it, when all is over.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/log.h"
#include "fuzz/live_host.h"
#include "nvme/auth_test_helpers.h"
#include "target/target.h"
#include "testing/temp_dir.h"

namespace infercluster::target {
namespace {

constexpr const char* kWitnessNqn = "nqn.2026-01.io.test:witness";
constexpr std::size_t kQueuesMax = 6;
constexpr unsigned kStepsMax = 64;
constexpr std::uint32_t kEnable = 0x460001;
constexpr std::array<std::size_t, 4> kObjectBytes = {1, 3 * kBlockBytes, 70 * kBlockBytes + 5, 9000};

class Input {
 public:
  explicit Input(std::span<const std::byte> bytes) : bytes_(bytes) {}
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const auto value = std::to_integer<std::uint8_t>(bytes_.front());
    bytes_ = bytes_.subspan(1);
    return value;
  }
  std::uint32_t word() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | byte();
    return value;
  }
  Bytes some(std::size_t most) {
    const std::size_t count = std::min(most, bytes_.size());
    Bytes taken(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(count));
    bytes_ = bytes_.subspan(count);
    return taken;
  }

 private:
  std::span<const std::byte> bytes_;
};

// The files, which outlive the targets.
struct Files {
  testing::TempDir directory;
  std::array<Bytes, kObjectBytes.size()> contents;
  std::array<std::string, kObjectBytes.size()> paths;

  Files() {
    set_log_sink([](LogLevel, std::string_view) {});
    for (std::size_t i = 0; i < contents.size(); ++i) {
      std::string content(kObjectBytes[i], '\0');
      for (std::size_t at = 0; at < content.size(); ++at) content[at] = static_cast<char>(at * 37 + at / 4096 + i + 1);
      const auto bytes = std::as_bytes(std::span(content));
      contents[i].assign(bytes.begin(), bytes.end());
      paths[i] = directory.write("object-" + std::to_string(i), content);
    }
  }
};

const Files& files() {
  static const Files made;
  return made;
}

class Play {
 public:
  Play(std::uint8_t choice, Input input) : input_(input) {
    TargetOptions options{.listen = *os::parse_socket_address("127.0.0.1:0"),
                          .nqn = kTestNqn,
                          .shards = 1U + (choice & 1U),
                          .shard = {.connections_max = 64, .buffers = 1U + (choice >> 1 & 3U), .zero_copy_from = 8192}};
    if ((choice & 8U) != 0) {
      options.admission.hosts = {kWitnessNqn};
      options.admission.secrets.emplace(
          kTestHostNqn, nvme::Credentials{.host = *nvme::Secret::parse(nvme::kHostSecret00), .controller = {}});
    }
    target_ = *Target::start(options);
    for (std::size_t i = 0; i + 1 < kObjectBytes.size(); ++i) add(i);
    bring_up_witness();
  }

  void run() {
    for (unsigned step = 0; step < kStepsMax && !input_.empty(); ++step) act();
    const bool ends_first = input_.byte() % 2 == 1;
    if (!ends_first) {
      for (const auto& queue : queues_) queue->drain();
      queues_.clear();
    }
    check_with_witness();
    // The target ends with queues in any state, when they are still there.
    witness_admin_->break_the_law();
    witness_->break_the_law();
    for (const auto& queue : queues_) queue->break_the_law();
    target_.reset();
  }

 private:
  void bring_up_witness() {
    witness_admin_ = std::make_unique<LiveQueue>(target_->address(), space_);
    witness_ = std::make_unique<LiveQueue>(target_->address(), space_);
    ConnectTo to;
    to.host_nqn = kWitnessNqn;
    witness_admin_->initialize({}, 0);
    witness_admin_->connect(to, nullptr);
    enable(*witness_admin_);
    witness_->initialize({.header = false, .data = true}, 0);
    to.connect.queue_id = 1;
    to.controller_id = witness_admin_->controller()->id;
    witness_->connect(to, witness_admin_->controller());
    IC_ASSERT(witness_->controller() && !witness_->controller()->proof_wanted);
  }
  void check_with_witness() {
    for (const std::uint64_t first_block : addresses_) witness_->read(first_block, 2);
    witness_->read(0, 1);
    witness_->drain();
    witness_admin_->drain();
    IC_ASSERT(witness_->lawful() && !witness_->over() && !witness_admin_->over());
  }

  void enable(LiveQueue& queue) {
    queue.command(nvme::encode_property_set({.offset = nvme::kPropertyConfiguration, .bytes = 4, .value = kEnable}), 0,
                  {});
    queue.drain();
    if (queue.admin() && !queue.controller()->proof_wanted) queue.controller()->enabled = true;
  }

  void add(std::size_t index) {
    const Result<Mapping> mapping = target_->add(files().paths[index]);
    IC_ASSERT(mapping.ok() != mapped_[index]);
    if (!mapping.ok()) return;
    mapped_[index] = true;
    addresses_[index] = mapping->first_block;
    space_.map(mapping->first_block, files().contents[index]);
  }
  void unmap(std::size_t index) {
    IC_ASSERT(*target_->unmap(addresses_[index]) == mapped_[index]);
    if (mapped_[index]) space_.unmap(addresses_[index]);
    mapped_[index] = false;
  }

  LiveQueue& queue() {
    const std::size_t index = input_.byte() % kQueuesMax;
    while (queues_.size() <= index) queues_.push_back(std::make_unique<LiveQueue>(target_->address(), space_));
    if (queues_[index]->over()) queues_[index] = std::make_unique<LiveQueue>(target_->address(), space_);
    return *queues_[index];
  }

  void act() {
    switch (input_.byte() % 16) {
      case 0:
        return initialize(queue());
      case 1:
        return connect(queue(), ConnectTo(), nullptr);
      case 2:
        return enable(queue());
      case 3:
        return connect_io(queue());
      case 4:
      case 5:
        return read(queue());
      case 6:
        return ask(queue());
      case 7:
        return any_command(queue());
      case 8:
        return queue().drain();
      case 9:
        return send_raw(queue());
      case 10:
        return send_damaged(queue());
      case 11:
        return send_fault(queue());
      case 12:
        return leave(queue());
      case 13:
        return unmap(input_.byte() % kObjectBytes.size());
      case 14:
        return add(input_.byte() % kObjectBytes.size());
      default:
        return cut_up(queue());
    }
  }

  void initialize(LiveQueue& queue) {
    const std::uint8_t how = input_.byte();
    const auto alignment = static_cast<std::uint8_t>((how >> 2) % 40);
    if (alignment > 31) queue.break_the_law();
    queue.initialize({.header = (how & 1U) != 0, .data = (how & 2U) != 0}, alignment);
  }
  void connect(LiveQueue& queue, ConnectTo to, const std::shared_ptr<KnownController>& joined) {
    const std::uint8_t how = input_.byte();
    if ((how & 1U) != 0) to.connect.attributes = nvme::kConnectNoFlowControl;
    if ((how & 2U) != 0) to.connect.keep_alive_ms = how;
    if ((how & 0x0CU) == 4) to.connect.queue_size = how >> 4;
    if ((how & 0x0CU) == 8) to.nqn = nvme::kDiscoveryNqn;
    if ((how & 0x1CU) == 12) to.connect.queue_id = how;
    if ((how & 0x1CU) == 28) to.host_nqn = "not an NQN";
    queue.connect(to, joined);
  }
  void connect_io(LiveQueue& queue) {
    ConnectTo to;
    to.connect.queue_id = input_.byte() % 10;
    std::shared_ptr<KnownController> joined;
    for (const auto& each : queues_) {
      if (each->admin() && !each->over()) joined = each->controller();
    }
    to.controller_id = joined ? joined->id : 1;
    connect(queue, to, joined);
  }
  void read(LiveQueue& queue) {
    const std::uint8_t where = input_.byte();
    const std::uint32_t offset = input_.byte();
    const std::uint32_t blocks = 1U + input_.byte();
    std::uint64_t first = addresses_[where % addresses_.size()];
    if (where >= 240) first = (where & 1U) != 0 ? kSpaceBlocks - 300 : 0;
    if (where >= 220 && where < 240) first = space_.last_block() + kGuardBlocks - 20;
    if (where >= 200 && where < 220) first = first < 20 ? 0 : first - 20;
    queue.read(first + offset, blocks);
  }
  // A command that asks for something that there is.
  void ask(LiveQueue& queue) {
    const std::uint8_t what = input_.byte();
    const std::uint8_t which = input_.byte();
    switch (what % 6) {
      case 0:
        return queue.command(nvme::encode_identify(which % 5, which / 5 % 3), nvme::kIdentifyBytes, {});
      case 1: {
        constexpr std::array<std::uint8_t, 5> kPages = {nvme::kLogErrors, nvme::kLogHealth, nvme::kLogFirmware,
                                                        nvme::kLogDiscovery, nvme::kLogChangedNamespaces};
        const std::uint32_t length = (which + 1U) * 16;
        return queue.command(nvme::encode_log_request({.page = kPages[which % kPages.size()],
                                                       .retain_event = true,
                                                       .offset = which / 8U * 4,
                                                       .length = length}),
                             length, {});
      }
      case 2:
        return queue.command(nvme::encode_set_features(nvme::kFeatureQueues, which * 0x10001U), 0, {});
      case 3:
        return queue.command(nvme::encode_property_get({.offset = which % 4U * 8, .bytes = 4, .value = 0}), 0, {});
      case 4:
        return queue.command({.opcode = nvme::kAsyncEventRequest}, 0, {.may_be_held = true});
      default:
        return queue.command({.opcode = which % 2 == 0 ? nvme::kKeepAlive : nvme::kFlush, .nsid = 1}, 0, {});
    }
  }
  // Any command at all, after which the controller may be in any state.
  void any_command(LiveQueue& queue) {
    nvme::Command command{.opcode = input_.byte(), .nsid = input_.byte()};
    const std::uint8_t how = input_.byte();
    if (command.opcode < 16) command.nsid = 1 + command.nsid % 2;
    for (std::size_t i = 0; i < how % 7U && i < command.dwords.size(); ++i) command.dwords[i] = input_.word();
    if (queue.controller()) queue.controller()->uncertain = true;
    const Awaited awaited{.may_be_held = command.opcode == nvme::kAsyncEventRequest};
    if ((how & 0x80U) != 0) return queue.capsule(command, input_.some(1U + input_.byte() * 8U), awaited);
    queue.command(command, (how & 0x40U) != 0 ? input_.word() % (1U << 21) : how * 16U, awaited);
  }

  void send_raw(LiveQueue& queue) {
    queue.break_the_law();
    queue.send(input_.some(input_.byte()));
  }
  // A PDU of a kind that hosts send, with some of its bytes changed.
  void send_damaged(LiveQueue& queue) {
    queue.break_the_law();
    Bytes bytes;
    switch (input_.byte() % 4) {
      case 0:
        bytes = initialize_bytes(queue.digests());
        break;
      case 1:
        bytes = connect_bytes(ConnectTo(), 1, queue.digests());
        break;
      case 2:
        bytes =
            command_bytes(nvme::encode_read({.first_block = addresses_[1], .blocks = 2}, 1), 3, 8192, queue.digests());
        break;
      default:
        bytes = command_bytes(nvme::encode_identify(nvme::kCnsController, 0), 4, nvme::kIdentifyBytes, queue.digests());
        break;
    }
    for (unsigned count = 1U + input_.byte() % 4U; count > 0; --count) {
      const std::size_t at =
          (std::size_t{input_.byte()} << 8 | input_.byte()) % std::min<std::size_t>(bytes.size(), 200);
      bytes[at] ^= std::byte{input_.byte()};
    }
    queue.send(bytes);
    if (input_.byte() % 2 == 0) queue.drain();
  }
  // What surely ends a queue.
  void send_fault(LiveQueue& queue) {
    const bool known = queue.lawful() && !queue.over();
    queue.drain();
    const bool initialized = queue.initialized();
    queue.break_the_law();
    const std::uint8_t kind = input_.byte();
    Bytes bytes = initialized ? command_bytes({.opcode = nvme::kFlush}, 9, 0, queue.digests()) : initialize_bytes();
    switch (kind % 5) {
      case 0:  // a type that there is not
        bytes[0] = std::byte{0x0A};
        break;
      case 1:  // a header of another length
        bytes[2] ^= std::byte{8};
        break;
      case 2:  // an endless PDU
        bytes[7] = std::byte{0x7F};
        break;
      case 3:  // what only targets send
        bytes = wire({.type = nvme::PduType::response, .flags = 0, .body = nvme::Completion{}}, queue.digests());
        break;
      default:  // what may come only in the other state
        bytes = initialized ? initialize_bytes() : command_bytes({.opcode = nvme::kFlush}, 9);
        break;
    }
    queue.send(bytes);
    if (known && !queue.over()) queue.must_be_ended();
  }
  void leave(LiveQueue& queue) {
    const std::uint8_t how = input_.byte();
    if (queue.lawful() && how % 2 == 0) queue.drain();
    queue.leave(how % 3 == 0 ? SHUT_WR : SHUT_RDWR);
  }
  void cut_up(LiveQueue& queue) {
    const std::uint8_t how = input_.byte();
    if (how % 4 == 0) return queue.halve_next();
    queue.set_piece(how % 4 == 1 ? 0 : how / 4U);
  }

  Input input_;
  KnownSpace space_;
  std::unique_ptr<Target> target_;
  std::array<bool, kObjectBytes.size()> mapped_{};
  std::array<std::uint64_t, kObjectBytes.size()> addresses_{};  // that each object has, or had last; 0: none yet
  std::unique_ptr<LiveQueue> witness_admin_;
  std::unique_ptr<LiveQueue> witness_;
  std::vector<std::unique_ptr<LiveQueue>> queues_;
};

void play(std::span<const std::byte> bytes) {
  Play(std::to_integer<std::uint8_t>(bytes[0]), Input(bytes.subspan(1))).run();
}

}  // namespace
}  // namespace infercluster::target

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  infercluster::target::play(std::as_bytes(std::span(data, size)));
  return 0;
}
