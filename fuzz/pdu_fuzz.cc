// SPDX-License-Identifier: Apache-2.0
// Any bytes as what a peer sends over NVMe/TCP: the first says which side reads, which digests were agreed on, and the
// size of the pieces. What must hold: no fault of memory; a stream ends at its first fault; a header that is taken is
// written again to the same bytes as far as we know them; an in-memory controller answers every command with one reply.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/assert.h"
#include "nvme/controller.h"
#include "nvme/pdu_reader.h"

namespace infercluster::nvme {
namespace {

constexpr PduReader::Limits kLimits{.data_max = 1U << 16, .in_capsule_max = 8192, .data_alignment = 4};

void check_round_trip(const Pdu& pdu) {
  std::array<std::byte, kHeaderBytesMax> bytes{};
  const std::size_t length = encode_header(pdu, {}, bytes);
  IC_ASSERT(decode_header(std::span(bytes).first(length)) == pdu);
}

class Session {
 public:
  Session() : controllers_{Controller(subsystem_, {}), Controller(subsystem_, {.type = ControllerType::discovery})} {}

  void take(const Pdu& pdu) {
    if (const auto* command = std::get_if<Command>(&pdu.body)) {
      const ReadCommand read = decode_read(*command);
      IC_ASSERT(read.blocks >= 1 && read.blocks <= 65536);
      for (Controller& controller : controllers_) {
        const Reply reply = controller.admin(*command, log_);
        IC_ASSERT(reply.data.empty() || reply.data.size() == command->sgl.length);
        IC_ASSERT(reply.data.empty() || reply.status.ok());
        const std::variant<ReadCommand, Reply> answer = controller.io(*command);
        if (const auto* blocks = std::get_if<ReadCommand>(&answer)) {
          IC_ASSERT(blocks->first_block < subsystem_.blocks &&
                    blocks->blocks <= subsystem_.blocks - blocks->first_block);
          IC_ASSERT(std::uint64_t{blocks->blocks} << kBlockBits == command->sgl.length);
        }
      }
    }
  }

 private:
  Subsystem subsystem_{
      .nqn = "nqn.2026-01.io.test:fuzz", .uuid = {}, .serial = "1", .firmware = "1", .blocks = 1ULL << 50};
  DiscoveryLog log_{.generation = 1, .entries = {DiscoveryEntry{}}};
  std::array<Controller, 2> controllers_;
};

void check(std::span<const std::byte> input) {
  if (input.empty()) return;
  const auto choice = std::to_integer<unsigned>(input[0]);
  input = input.subspan(1);
  const Side side = (choice & 1U) != 0 ? Side::host : Side::target;
  const Digests digests{.header = (choice & 2U) != 0, .data = (choice & 4U) != 0};
  const std::size_t piece = 1 + (choice >> 3);
  PduReader reader(side, kLimits);
  Session session;
  std::vector<std::byte> data;
  bool headed = false;
  while (!input.empty()) {
    const std::span<std::byte> room = reader.room();
    IC_ASSERT(!room.empty());
    const std::size_t count = std::min({room.size(), piece, input.size()});
    std::copy_n(input.begin(), count, room.begin());
    input = input.subspan(count);
    switch (reader.filled(count)) {
      case PduReader::Progress::more:
        break;
      case PduReader::Progress::header:
        IC_ASSERT(reader.data_length() > 0 && reader.data_length() <= kLimits.data_max);
        data.assign(reader.data_length(), std::byte{0});
        reader.place(data);
        headed = true;
        break;
      case PduReader::Progress::whole:
        IC_ASSERT(headed == (reader.data_length() > 0));
        headed = false;
        check_round_trip(reader.pdu());
        if (reader.pdu().type == PduType::initialize_request || reader.pdu().type == PduType::initialize_response)
          reader.use(digests);
        session.take(reader.pdu());
        break;
      case PduReader::Progress::fault:
        IC_ASSERT(!reader.fault().message.empty());
        return;
    }
  }
}

}  // namespace
}  // namespace infercluster::nvme

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  infercluster::nvme::check(std::as_bytes(std::span(data, size)));
  return 0;
}
