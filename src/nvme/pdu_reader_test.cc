// SPDX-License-Identifier: Apache-2.0
#include "nvme/pdu_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

using Bytes = std::vector<std::byte>;
using Progress = PduReader::Progress;

constexpr PduReader::Limits kLimits{.data_max = 1U << 20, .in_capsule_max = 8192, .data_alignment = 4};

Bytes pattern(std::size_t length) {
  Bytes bytes(length);
  for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

Bytes wire(const Pdu& pdu, Digests digests = {}, const Bytes& data = {}, std::uint32_t alignment = 4) {
  return encode_pdu(pdu, digests, data, alignment);
}

struct Received {
  Pdu pdu;
  Bytes data;
  bool intact = true;
};

// Feeds a stream in pieces of a size; what came whole, until the stream's end or its fault.
struct Reading {
  std::vector<Received> pdus;
  bool faulty = false;
  Fault fault;
  bool at_boundary = false;
};
using AfterEach = std::function<void(PduReader&)>;

Reading read_all(PduReader& reader, const Bytes& stream, std::size_t piece, const AfterEach& after_each = {}) {
  Reading reading;
  Bytes data;
  std::size_t at = 0;
  while (at < stream.size()) {
    const std::span<std::byte> room = reader.room();
    EXPECT_FALSE(room.empty());
    const std::size_t count = std::min({room.size(), piece, stream.size() - at});
    std::copy_n(stream.begin() + static_cast<std::ptrdiff_t>(at), count, room.begin());
    at += count;
    switch (reader.filled(count)) {
      case Progress::more:
        break;
      case Progress::header:
        data.assign(reader.data_length(), std::byte{0});
        reader.place(data);
        break;
      case Progress::whole:
        reading.pdus.push_back({.pdu = reader.pdu(), .data = std::exchange(data, {}), .intact = reader.data_intact()});
        if (after_each) after_each(reader);
        break;
      case Progress::fault:
        reading.faulty = true;
        reading.fault = reader.fault();
        return reading;
    }
  }
  reading.at_boundary = reader.at_boundary();
  return reading;
}

Pdu ic_request(Digests digests = {}) {
  return {.type = PduType::initialize_request, .body = InitializeRequest{.digests = digests}};
}
Pdu ic_response(Digests digests = {}) {
  return {.type = PduType::initialize_response, .body = InitializeResponse{.digests = digests, .host_data_max = 4096}};
}
Pdu data_pdu(PduType type, std::uint32_t length) {
  return {.type = type, .flags = kLastFlag, .body = DataHeader{.cid = 3, .offset = 0, .length = length}};
}
Pdu command_pdu() {
  return {.type = PduType::command, .body = encode_read({.first_block = 1, .blocks = 2}, 1)};
}

// A reader that is past its initialization.
PduReader initialized(Side side, Digests digests = {}, const PduReader::Limits& limits = kLimits) {
  PduReader reader(side, limits);
  const Reading reading =
      read_all(reader, wire(side == Side::target ? ic_request(digests) : ic_response(digests)), 4096);
  EXPECT_EQ(reading.pdus.size(), 1U);
  reader.use(digests);
  return reader;
}

constexpr std::array<Digests, 4> kDigests{Digests{}, Digests{.header = true}, Digests{.data = true},
                                          Digests{.header = true, .data = true}};

TEST(PduReader, AHostsStreamIsReadInPiecesOfAnySize) {
  const Bytes capsule_data = pattern(1024);
  const Bytes host_data = pattern(5000);
  for (const Digests digests : kDigests) {
    for (const std::size_t piece :
         {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{7}, std::size_t{4096}, std::size_t{1} << 20}) {
      PduReader reader(Side::target, kLimits);
      Bytes stream = wire(ic_request(digests));
      for (const Bytes& part : {wire(command_pdu(), digests, capsule_data), wire(command_pdu(), digests),
                                wire(data_pdu(PduType::host_data, 5000), digests, host_data, 64)}) {
        stream.insert(stream.end(), part.begin(), part.end());
      }
      const Reading reading = read_all(reader, stream, piece, [&](PduReader& each) { each.use(digests); });
      ASSERT_FALSE(reading.faulty) << reading.fault.message << " at pieces of " << piece;
      ASSERT_EQ(reading.pdus.size(), 4U);
      EXPECT_TRUE(reading.at_boundary);
      EXPECT_EQ(reading.pdus[0].pdu, ic_request(digests));
      EXPECT_EQ(reading.pdus[1].pdu, command_pdu());
      EXPECT_EQ(reading.pdus[1].data, capsule_data);
      EXPECT_EQ(reading.pdus[2].pdu, command_pdu());
      EXPECT_EQ(reading.pdus[3].pdu, data_pdu(PduType::host_data, 5000));
      EXPECT_EQ(reading.pdus[3].data, host_data);
      EXPECT_TRUE(reading.pdus[3].intact);
    }
  }
}

TEST(PduReader, ATargetsStreamIsReadInPiecesOfAnySize) {
  const Bytes data = pattern(4096);
  for (const Digests digests : kDigests) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{5}, std::size_t{1} << 20}) {
      PduReader reader(Side::host, kLimits);
      Bytes stream = wire(ic_response(digests));
      const Pdu response{.type = PduType::response, .body = Completion{.cid = 3}};
      const Pdu ready{.type = PduType::ready, .body = ReadyToTransfer{.cid = 3, .length = 8}};
      for (const Bytes& part :
           {wire(data_pdu(PduType::target_data, 4096), digests, data), wire(response, digests), wire(ready, digests)}) {
        stream.insert(stream.end(), part.begin(), part.end());
      }
      const Reading reading = read_all(reader, stream, piece, [&](PduReader& each) { each.use(digests); });
      ASSERT_FALSE(reading.faulty) << reading.fault.message;
      ASSERT_EQ(reading.pdus.size(), 4U);
      EXPECT_EQ(reading.pdus[1].data, data);
      EXPECT_EQ(reading.pdus[2].pdu, response);
      EXPECT_EQ(reading.pdus[3].pdu, ready);
    }
  }
}

// Whatever bit of a PDU with both digests is flipped, no wrong byte is taken for a right one.
TEST(PduReader, NoFlippedBitGoesUnseen) {
  constexpr Digests kBoth{.header = true, .data = true};
  const Bytes data = pattern(64);
  const Bytes intact = wire(data_pdu(PduType::target_data, 64), kBoth, data);
  for (std::size_t bit = 0; bit < intact.size() * 8; ++bit) {
    Bytes stream = intact;
    stream[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    PduReader reader = initialized(Side::host, kBoth);
    const Reading reading = read_all(reader, stream, 11);
    const bool unfinished = reading.pdus.empty() && !reading.faulty;  // its length grew: more would have to come
    const bool refused = reading.faulty || (!reading.pdus.empty() && !reading.pdus[0].intact);
    EXPECT_TRUE(unfinished || refused) << "bit " << bit;
    if (bit / 8 >= 28) {
      EXPECT_FALSE(reading.faulty) << "of the data and its digest, a flipped bit harms this command alone: " << bit;
    }
  }
}

TEST(PduReader, DataWithoutAPlaceIsDroppedAndItsDigestStillChecked) {
  constexpr Digests kData{.header = false, .data = true};
  Bytes stream = wire(command_pdu(), kData, pattern(1000));
  PduReader reader = initialized(Side::target, kData);
  std::size_t at = 0;
  std::vector<bool> intact;
  for (int round = 0; round < 2; ++round) {
    for (at = 0; at < stream.size();) {
      const std::span<std::byte> room = reader.room();
      const std::size_t count = std::min(room.size(), stream.size() - at);
      std::copy_n(stream.begin() + static_cast<std::ptrdiff_t>(at), count, room.begin());
      at += count;
      if (reader.filled(count) == Progress::whole) intact.push_back(reader.data_intact());
    }
    stream[500] ^= std::byte{1};
  }
  EXPECT_EQ(intact, (std::vector<bool>{true, false}));
}

TEST(PduReader, TheDataDigestIsHandedOn) {
  constexpr Digests kData{.header = false, .data = true};
  const Bytes data = pattern(512);
  PduReader reader = initialized(Side::host, kData);
  const Reading reading = read_all(reader, wire(data_pdu(PduType::target_data, 512), kData, data), 512);
  ASSERT_EQ(reading.pdus.size(), 1U);
  EXPECT_EQ(reader.data_digest(), digest_of(data));
}

struct Malformed {
  const char* what;
  Side side;
  Digests digests;
  Bytes stream;
  FatalStatus status;
  std::uint32_t information;
};

Bytes changed(Bytes bytes, std::size_t at, std::uint32_t value, std::size_t width = 1) {
  for (std::size_t i = 0; i < width; ++i) bytes[at + i] = static_cast<std::byte>(value >> 8 * i & 0xFFU);
  return bytes;
}

std::vector<Malformed> malformed() {
  using enum FatalStatus;
  const Bytes capsule = wire(command_pdu(), {}, pattern(64));
  const Bytes plain = wire(command_pdu());
  const Bytes data = wire(data_pdu(PduType::target_data, 64), {}, pattern(64));
  constexpr Digests kBoth{.header = true, .data = true};
  const Bytes digested = wire(data_pdu(PduType::target_data, 64), kBoth, pattern(64));
  return {
      {"a type that does not exist", Side::target, {}, changed(plain, 0, 8), invalid_header_field, 0},
      {"a second initialization", Side::target, {}, wire(ic_request()), sequence_error, 0},
      {"a target's PDU from a host", Side::target, {}, data, sequence_error, 0},
      {"a host's PDU from a target", Side::host, {}, plain, sequence_error, 0},
      {"a wrong header length", Side::target, {}, changed(plain, 2, 71), invalid_header_field, 2},
      {"a header digest that was not agreed on", Side::target, {}, changed(plain, 1, 1), invalid_header_field, 1},
      {"a data digest that was not agreed on", Side::target, {}, changed(capsule, 1, 2), invalid_header_field, 1},
      {"a missing header digest", Side::target, {.header = true}, plain, invalid_header_field, 1},
      {"data without the digest that was agreed on", Side::target, {.data = true}, capsule, invalid_header_field, 1},
      {"a length short of the header", Side::target, {}, changed(plain, 4, 71, 4), invalid_header_field, 3},
      {"a length of 0", Side::target, {}, changed(plain, 4, 0, 4), invalid_header_field, 3},
      {"data in front of the header's end", Side::target, {}, changed(capsule, 3, 68), invalid_header_field, 3},
      {"data at an odd offset", Side::target, {}, changed(capsule, 3, 73), invalid_header_field, 3},
      {"a length that ends at the data's offset",
       Side::target,
       {},
       changed(changed(capsule, 3, 100), 4, 100, 4),
       invalid_header_field,
       4},
      {"a length that ends within the digest", Side::host, kBoth, changed(digested, 4, 32, 4), invalid_header_field, 4},
      {"more data than fits a capsule", Side::target, {}, changed(capsule, 4, 72 + 8193, 4), data_out_of_range, 4},
      {"all the data that a length can say", Side::host, {}, changed(data, 4, UINT32_MAX, 4), data_out_of_range, 4},
      {"a response with data",
       Side::host,
       {},
       changed(wire({.type = PduType::response, .body = Completion{}}), 4, 64, 4),
       invalid_header_field,
       4},
      {"two lengths that differ", Side::host, {}, changed(data, 16, 63, 4), invalid_header_field, 16},
      {"a termination with too much behind it",
       Side::host,
       {},
       changed(wire({.type = PduType::target_terminate, .body = Terminate{}}), 4, 24 + 129, 4),
       invalid_header_field,
       4},
  };
}

TEST(PduReader, MalformedStreamsEndWithTheFieldAtFault) {
  for (const Malformed& row : malformed()) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{4096}}) {
      PduReader reader = initialized(row.side, row.digests);
      const Reading reading = read_all(reader, row.stream, piece);
      ASSERT_TRUE(reading.faulty) << row.what;
      EXPECT_EQ(reading.fault.terminate.status, row.status) << row.what << ": " << reading.fault.message;
      EXPECT_EQ(reading.fault.terminate.information, row.information) << row.what;
      EXPECT_FALSE(reading.fault.message.empty()) << row.what;
      EXPECT_TRUE(reading.pdus.empty()) << row.what;
      EXPECT_GE(reader.header_bytes().size(), kCommonHeaderBytes) << row.what;
    }
  }
}

TEST(PduReader, AWrongHeaderDigestIsFatalAndNamed) {
  Bytes stream = wire(command_pdu(), {.header = true});
  stream[40] ^= std::byte{1};
  PduReader reader = initialized(Side::target, {.header = true});
  const Reading reading = read_all(reader, stream, 4096);
  ASSERT_TRUE(reading.faulty);
  EXPECT_EQ(reading.fault.terminate.status, FatalStatus::header_digest_error);
  EXPECT_EQ(reading.fault.terminate.information, load<std::uint32_t>(stream, 72));
}

TEST(PduReader, NothingComesBeforeTheInitialization) {
  for (const Side side : {Side::host, Side::target}) {
    PduReader reader(side, kLimits);
    const Bytes stream =
        side == Side::target ? wire(command_pdu()) : wire(data_pdu(PduType::target_data, 8), {}, pattern(8));
    const Reading reading = read_all(reader, stream, 4096);
    ASSERT_TRUE(reading.faulty);
    EXPECT_EQ(reading.fault.terminate.status, FatalStatus::sequence_error);
  }
}

TEST(PduReader, ATerminationIsUnderstoodAtAnyTimeWithWhatItCarries) {
  constexpr Digests kBoth{.header = true, .data = true};
  const Pdu terminate{.type = PduType::target_terminate,
                      .body = Terminate{.status = FatalStatus::sequence_error, .information = 7}};
  const Bytes stream = wire(terminate, kBoth, pattern(128));
  PduReader fresh(Side::host, kLimits);
  EXPECT_EQ(read_all(fresh, stream, 3).pdus.at(0).pdu, terminate);
  PduReader reader = initialized(Side::host, kBoth);
  const Reading reading = read_all(reader, stream, 3);
  EXPECT_EQ(reading.pdus.at(0).pdu, terminate);
  EXPECT_EQ(reading.pdus.at(0).data, pattern(128));
}

TEST(PduReader, TheOffsetOfDataIsWhatThisSideAskedFor) {
  const PduReader::Limits aligned{.data_max = 1U << 20, .in_capsule_max = 8192, .data_alignment = 64};
  PduReader reader = initialized(Side::target, {}, aligned);
  EXPECT_FALSE(read_all(reader, wire(data_pdu(PduType::host_data, 8), {}, pattern(8), 64), 1).faulty);
  EXPECT_TRUE(read_all(reader, wire(data_pdu(PduType::host_data, 8), {}, pattern(8), 4), 1).faulty);
}

TEST(PduReader, AStreamThatEndsWithinAPduIsNotAtABoundary) {
  const Bytes stream = wire(command_pdu(), {}, pattern(64));
  for (std::size_t length = 1; length < stream.size(); ++length) {
    PduReader reader = initialized(Side::target);
    EXPECT_TRUE(reader.at_boundary());
    EXPECT_FALSE(
        read_all(reader, Bytes(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(length)), 4096).at_boundary)
        << length;
  }
}

}  // namespace
}  // namespace infercluster::nvme
