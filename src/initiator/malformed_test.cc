// SPDX-License-Identifier: Apache-2.0
// PDUs that break the rules, in both directions: they end the connection that they come on, and nothing else.
#include <array>

#include "initiator/fault_test_helpers.h"
#include "nvme/bytes.h"

namespace infercluster::initiator {
namespace {

using testing::Direction;
using testing::PduFate;
using testing::PduUnderWay;

constexpr std::uint8_t kInitializeRequest = 0x00;
constexpr std::uint8_t kInitializeResponse = 0x01;
constexpr std::uint8_t kHostTerminate = 0x02;
constexpr std::uint8_t kCommand = 0x04;
constexpr std::uint8_t kResponse = 0x05;

using Bytes = std::vector<std::byte>;

struct Malformed {
  const char* what;
  std::uint8_t of_type;  // the PDU that is spoiled
  void (*spoil)(Bytes&);
};

template <std::size_t at, unsigned value>
void set_byte(Bytes& bytes) {
  bytes[at] = std::byte{value};
}
template <std::size_t at, std::uint32_t value>
void set_word(Bytes& bytes) {
  nvme::store<std::uint32_t>(bytes, at, value);
}
void twice(Bytes& bytes) {
  const Bytes copy = bytes;
  bytes.insert(bytes.end(), copy.begin(), copy.end());
}
void noise(Bytes& bytes) {
  std::minstd_rand random(3);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
}
void becomes_termination(Bytes& bytes) {
  bytes[0] = std::byte{0x03};
  nvme::store<std::uint32_t>(bytes, 4, 24);
  bytes.resize(24);
}
void long_termination(Bytes& bytes) {
  bytes.assign(24 + 129, std::byte{0});
  bytes[0] = std::byte{0x03};
  bytes[2] = std::byte{24};
  nvme::store<std::uint32_t>(bytes, 4, 24 + 129);
}
void asks_for_data(Bytes& bytes) {
  bytes.assign(24, std::byte{0});
  bytes[0] = std::byte{0x09};
  bytes[2] = std::byte{24};
  nvme::store<std::uint32_t>(bytes, 4, 24);
  nvme::store<std::uint32_t>(bytes, 16, 4096);
}
void unasked_data(Bytes& bytes) {
  bytes.assign(24 + 8, std::byte{0});
  bytes[0] = std::byte{0x06};
  bytes[2] = std::byte{24};
  bytes[3] = std::byte{24};
  nvme::store<std::uint32_t>(bytes, 4, 24 + 8);
  nvme::store<std::uint32_t>(bytes, 16, 8);
}

// What a target could send. 0: type, 2: HLEN, 3: PDO, 4: PLEN, 8: of the rest.
constexpr std::array kFromTarget{
    Malformed{"ICResp of another type", kInitializeResponse, set_byte<0, 0x05>},
    Malformed{"ICResp that is an ICReq", kInitializeResponse, set_byte<0, 0x00>},
    Malformed{"ICResp with a short header", kInitializeResponse, set_byte<2, 24>},
    Malformed{"ICResp with PLEN 127", kInitializeResponse, set_word<4, 127>},
    Malformed{"ICResp with digests nobody asked for", kInitializeResponse, set_byte<11, 3>},
    Malformed{"ICResp twice", kInitializeResponse, twice},
    Malformed{"C2HData of no known type", kTargetDataType, set_byte<0, 0x5A>},
    Malformed{"C2HData that is a command", kTargetDataType, set_byte<0, kCommand>},
    Malformed{"C2HData with HLEN 8", kTargetDataType, set_byte<2, 8>},
    Malformed{"C2HData with HLEN 255", kTargetDataType, set_byte<2, 255>},
    Malformed{"C2HData with PDO within its header", kTargetDataType, set_byte<3, 8>},
    Malformed{"C2HData with an odd PDO", kTargetDataType, set_byte<3, 25>},
    Malformed{"C2HData with PDO 0", kTargetDataType, set_byte<3, 0>},
    Malformed{"C2HData with PLEN 0", kTargetDataType, set_word<4, 0>},
    Malformed{"C2HData with PLEN 24", kTargetDataType, set_word<4, 24>},
    Malformed{"C2HData with PLEN 2^32 - 1", kTargetDataType, set_word<4, UINT32_MAX>},
    Malformed{"C2HData of no command", kTargetDataType, set_byte<8, 0xFE>},
    Malformed{"C2HData of an earlier command", kTargetDataType, set_byte<9, 0x7F>},
    Malformed{"C2HData from offset 4096", kTargetDataType, set_word<12, 4096>},
    Malformed{"C2HData from offset 2^32 - 4", kTargetDataType, set_word<12, UINT32_MAX - 3>},
    Malformed{"C2HData of length 0", kTargetDataType, set_word<16, 0>},
    Malformed{"C2HData of length 2^31", kTargetDataType, set_word<16, 1U << 31>},
    Malformed{"C2HData of length 2^32 - 1", kTargetDataType, set_word<16, UINT32_MAX>},
    Malformed{"C2HData twice", kTargetDataType, twice},
    Malformed{"C2HData that is noise", kTargetDataType, noise},
    Malformed{"R2T for a read", kTargetDataType, asks_for_data},
    Malformed{"C2HTermReq", kTargetDataType, becomes_termination},
    Malformed{"C2HTermReq with 129 bytes", kTargetDataType, long_termination},
    Malformed{"a response of no command", kResponse, set_byte<8 + 12, 0xFE>},
    Malformed{"a response twice", kResponse, twice},
    Malformed{"a response with PLEN 28", kResponse, set_word<4, 28>},
    Malformed{"a response with PDO 24", kResponse, set_byte<3, 24>},
    Malformed{"a response that is noise", kResponse, noise},
};

constexpr std::array kFromHost{
    Malformed{"ICReq with format 1", kInitializeRequest, set_byte<8, 1>},
    Malformed{"ICReq with HPDA 32", kInitializeRequest, set_byte<10, 32>},
    Malformed{"ICReq with PLEN 120", kInitializeRequest, set_word<4, 120>},
    Malformed{"ICReq of another type", kInitializeRequest, set_byte<0, kCommand>},
    Malformed{"ICReq twice", kInitializeRequest, twice},
    Malformed{"a command of no known type", kCommand, set_byte<0, 0xEE>},
    Malformed{"a command that is data to a host", kCommand, set_byte<0, kTargetDataType>},
    Malformed{"a command with HLEN 64", kCommand, set_byte<2, 64>},
    Malformed{"a command with PDO 8", kCommand, set_byte<3, 8>},
    Malformed{"a command with PLEN 0", kCommand, set_word<4, 0>},
    Malformed{"a command with PLEN 71", kCommand, set_word<4, 71>},
    Malformed{"a command with PLEN 2^32 - 1", kCommand, set_word<4, UINT32_MAX>},
    Malformed{"a command with 1 MiB behind it", kCommand, set_word<4, 1U << 20>},
    Malformed{"data that nobody asked for", kCommand, unasked_data},
    Malformed{"a command that is noise", kCommand, noise},
};

class MalformedTest : public FaultTest {
 protected:
  // Spoils the next such PDU of an I/O queue, of the association that is made next.
  void expect_one_connection_ends(const Malformed& malformed, Direction direction) {
    SCOPED_TRACE(malformed.what);
    auto spoiled = std::make_shared<std::atomic<bool>>(false);
    const unsigned io_queue = proxy_->connections() + 1;
    const unsigned read_from =
        malformed.of_type == kInitializeRequest || malformed.of_type == kInitializeResponse ? 0 : 2;
    proxy_->plan([&malformed, direction, spoiled, io_queue, read_from](PduUnderWay& pdu) {
      const bool here = pdu.connection == io_queue && pdu.direction == direction && pdu.index >= read_from &&
                        pdu.type() == malformed.of_type;
      if (here && !spoiled->exchange(true)) malformed.spoil(pdu.bytes);
      return PduFate{};
    });
    const double lost = host_->counters().connections_lost.value();
    const double others = other_->counters().connections_lost.value();
    proxy_->cut_all();
    expect_reads_right(4, 2);
    EXPECT_TRUE(spoiled->load());
    EXPECT_GE(host_->counters().connections_lost.value(), lost + 1);
    // The neighbour, on the same target.
    std::vector<std::byte> bytes(content_.size());
    const Status read = other_->read(mapping_.first_block * target::kBlockBytes, bytes);
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), std::as_bytes(std::span(content_)).begin()));
    EXPECT_EQ(other_->counters().connections_lost.value(), others);
  }
  void start_both() {
    // What waits for bytes that never come ends by this.
    options_.silence_max = std::chrono::milliseconds(200);
    connect();
    other_ = *Host::connect({.address = target_->address(), .nqn = target_->subsystem().nqn, .nsid = 1}, {});
  }

  std::unique_ptr<Host> other_;
};

TEST_F(MalformedTest, PdusOfATargetEndThatConnectionOfTheHost) {
  start_both();
  for (const Malformed& malformed : kFromTarget) expect_one_connection_ends(malformed, Direction::to_host);
}

TEST_F(MalformedTest, PdusOfAHostEndThatConnectionOfTheTarget) {
  start_both();
  for (const Malformed& malformed : kFromHost) expect_one_connection_ends(malformed, Direction::to_target);
}

TEST_F(MalformedTest, AHostSaysWhyItEndsAConnection) {
  connect();
  struct Case {
    void (*spoil)(Bytes&);
    nvme::FatalStatus status;
  };
  for (const Case& c : {Case{asks_for_data, nvme::FatalStatus::sequence_error},
                        Case{set_byte<2, 8>, nvme::FatalStatus::invalid_header_field},
                        Case{set_byte<8, 0xFE>, nvme::FatalStatus::invalid_header_field},
                        Case{set_word<12, 4096>, nvme::FatalStatus::data_out_of_range}}) {
    auto spoiled = std::make_shared<std::atomic<bool>>(false);
    auto said = std::make_shared<std::atomic<unsigned>>(0);
    proxy_->plan([spoil = c.spoil, spoiled, said](PduUnderWay& pdu) {
      const bool data = pdu.direction == Direction::to_host && pdu.index >= 2 && pdu.type() == kTargetDataType;
      if (data && pdu.bytes.size() > 8192 && !spoiled->exchange(true)) spoil(pdu.bytes);
      if (pdu.direction == Direction::to_target && pdu.type() == kHostTerminate) {
        const nvme::Pdu terminate = nvme::decode_header(pdu.bytes);
        said->store(static_cast<unsigned>(std::get<nvme::Terminate>(terminate.body).status));
      }
      return PduFate{};
    });
    expect_reads_right(1, 4);
    proxy_->cut_all();  // what the host sent has passed then
    EXPECT_EQ(said->load(), static_cast<unsigned>(c.status));
    expect_reads_right();
  }
}

}  // namespace
}  // namespace infercluster::initiator
