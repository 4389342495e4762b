// SPDX-License-Identifier: Apache-2.0
// Bits that flip on the way.
#include <atomic>

#include "initiator/fault_test_helpers.h"
#include "load/seal.h"

namespace infercluster::initiator {
namespace {

enum class Place : std::uint8_t { header, header_digest, first_of_data, amid_data, last_of_data, data_digest };

std::size_t offset_of(Place place, std::size_t pdu_bytes, const nvme::Digests& digests) {
  const std::size_t header = 24 + (digests.header ? 4U : 0U);
  const std::size_t end = pdu_bytes - (digests.data ? 4U : 0U);
  switch (place) {
    case Place::header:
      return 8;  // the command's identifier
    case Place::header_digest:
      return 25;
    case Place::first_of_data:
      return header;
    case Place::amid_data:
      return (header + end) / 2;
    case Place::last_of_data:
      return end - 1;
    case Place::data_digest:
      return pdu_bytes - 2;
  }
  return 0;
}

class DigestFaultTest : public FaultTest {
 protected:
  // Flips a bit in the `nth` PDU of data that comes on an I/O queue, counted from now, and in no other.
  void flip(Place place, unsigned nth = 0) {
    auto left = std::make_shared<std::atomic<int>>(static_cast<int>(nth));
    proxy_->plan([this, place, left](testing::PduUnderWay& pdu) {
      if (pdu.direction == testing::Direction::to_host && pdu.type() == kTargetDataType && left->fetch_sub(1) == 0)
        pdu.bytes[offset_of(place, pdu.bytes.size(), options_.digests)] ^= std::byte{0x10};
      return testing::PduFate{};
    });
  }
};

TEST_F(DigestFaultTest, IsATransportErrorThatIsRetriedOnAFreshConnection) {
  options_.digests = {.header = true, .data = true};
  options_.queue_entries = 128;
  for (const std::uint32_t blocks : {1U, 2U, 32U, 256U}) {
    for (const unsigned depth : {1U, 128U}) {
      for (const Place place : {Place::header, Place::header_digest, Place::first_of_data, Place::amid_data,
                                Place::last_of_data, Place::data_digest}) {
        if (depth > 1 && blocks > 32 && place != Place::amid_data) continue;  // 128 MiB each
        connect();
        flip(place, depth / 2);
        expect_reads_right(depth, blocks);
        const HostCounters& counters = host_->counters();
        EXPECT_EQ(counters.digest_errors.value(), 1) << blocks << " " << depth << " " << static_cast<int>(place);
        EXPECT_EQ(counters.reconnects.value(), 1);
        EXPECT_EQ(counters.connections_lost.value(), 1);
        EXPECT_GE(counters.retries.value(), 1);
        EXPECT_EQ(counters.reads.value(), depth);
      }
    }
  }
}

TEST_F(DigestFaultTest, APartOfABlockIsCheckedAsWell) {
  options_.digests = {.header = false, .data = true};
  connect();
  flip(Place::amid_data);
  std::vector<std::byte> bytes(512);
  ASSERT_TRUE(host_->read(mapping_.first_block * target::kBlockBytes + 1024, bytes).ok());
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), std::as_bytes(std::span(content_)).begin() + 1024));
  EXPECT_EQ(host_->counters().digest_errors.value(), 1);
}

TEST_F(DigestFaultTest, ABlockThatIsAlwaysDamagedFailsWithoutItsNeighbours) {
  options_.digests = {.header = false, .data = true};
  {
    // On the target's disk: what it sends does not match the checksum that it took before.
    std::fstream file(mapping_.object->path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5 * 4096 + 17);
    file.put(static_cast<char>(content_[5 * 4096 + 17] ^ 1));
  }
  connect();
  Reads reads;
  for (std::uint64_t block = 0; block < 64; ++block) reads.start(*host_, mapping_.first_block + block, 1);
  ASSERT_TRUE(reads.wait_for_all());
  for (const auto& read : reads.all()) {
    if (read->first_block == mapping_.first_block + 5) {
      ASSERT_FALSE(read->status->ok());
      EXPECT_EQ(read->status->error().code(), ErrorCode::corrupt);
      EXPECT_EQ(read->status->error().system_errno(), EBADMSG);
      EXPECT_FALSE(read->status->error().hint().empty());
    } else {
      ASSERT_TRUE(read->status->ok()) << read->status->error().to_string();
      EXPECT_TRUE(right(*read));
    }
  }
  EXPECT_EQ(host_->counters().digest_errors.value(), options_.retries_max + 1);
}

// Nothing on the way finds it then; whoever checks what is read against the object's own checksums does.
TEST_F(DigestFaultTest, WithoutDigestsTheSealStillFindsIt) {
  load::SealBuilder builder;
  builder.add(std::as_bytes(std::span(content_)));
  const load::Seal seal = builder.finish();
  constexpr auto kBlocks = static_cast<std::uint32_t>(load::kSealBlockBytes / target::kBlockBytes);
  options_.queue_entries = 128;
  for (const unsigned depth : {1U, 64U}) {
    for (const Place place : {Place::header, Place::first_of_data, Place::amid_data, Place::last_of_data}) {
      connect();
      flip(place, depth / 2);
      Reads reads;
      start(reads, depth, kBlocks);
      ASSERT_TRUE(reads.wait_for_all());
      unsigned wrong = 0;
      for (const auto& read : reads.all()) {
        ASSERT_TRUE(read->status->ok()) << read->status->error().to_string();
        const std::uint64_t block = (read->first_block - mapping_.first_block) / kBlocks;
        EXPECT_EQ(seal.check_block(block, read->memory), right(*read));
        wrong += right(*read) ? 0U : 1U;
      }
      // A wrong header is found by the protocol's own rules, and the read is tried again.
      EXPECT_EQ(wrong, place == Place::header ? 0U : 1U);
    }
  }
}

}  // namespace
}  // namespace infercluster::initiator
