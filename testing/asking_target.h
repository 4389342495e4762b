// SPDX-License-Identifier: Apache-2.0
// A plan for NvmeProxy that makes of any target one that takes no data in capsules, as Linux's nvmet with
// param_inline_data_size 0: it refuses such commands and ends their connection, and where a command comes without its
// data it asks for that (R2T), in pieces. It holds H2CData to every rule of NVMe over TCP 1.0, section 3.6.2.5.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "nvme/fabrics.h"
#include "nvme/pdu_reader.h"
#include "testing/nvme_proxy.h"

namespace infercluster::testing {

// Thread rule: plan() and what it returned by any thread; the figures after the connections have ended.
class AskingTarget {
 public:
  struct Options {
    std::uint32_t ask_at_once = UINT32_MAX;  // bytes in one R2T
    std::uint32_t host_data_max = 1U << 20;  // MAXH2CDATA
    std::uint8_t alignment = 0;              // CPDA
  };
  explicit AskingTarget(const Options& options) : options_(options) {}

  // It must outlive the proxy.
  [[nodiscard]] PduPlan plan() {
    return [this](PduUnderWay& pdu) {
      const std::lock_guard lock(mutex_);
      Connection& connection = connections_[pdu.connection];
      return pdu.direction == Direction::to_host ? to_host(connection, pdu) : to_target(connection, pdu);
    };
  }
  // Spoils each R2T, or says otherwise what is sent instead.
  void spoil(std::function<void(nvme::ReadyToTransfer&)> spoil) {
    const std::lock_guard lock(mutex_);
    spoil_ = std::move(spoil);
  }

  [[nodiscard]] unsigned refused() const { return refused_; }      // commands with data in their capsule
  [[nodiscard]] unsigned asked() const { return asked_; }          // R2Ts
  [[nodiscard]] unsigned data_pdus() const { return data_pdus_; }  // H2CData
  // What the host ended connections with.
  [[nodiscard]] std::vector<nvme::Terminate> terminations() const {
    const std::lock_guard lock(mutex_);
    return terminations_;
  }

 private:
  using Bytes = std::vector<std::byte>;
  struct Connection {
    nvme::Digests digests;
    nvme::PduReader reader{nvme::Side::target, {.data_max = 1U << 20, .in_capsule_max = 8192, .data_alignment = 4}};
    nvme::Command command;  // whose data is being asked for
    Bytes data;
    std::uint32_t asked = 0;
    std::uint16_t tag = 100;
  };

  PduFate to_host(Connection& connection, PduUnderWay& pdu) const {
    if (pdu.type() != static_cast<std::uint8_t>(nvme::PduType::initialize_response)) return {};
    nvme::Pdu response = nvme::decode_header(pdu.bytes);
    auto& body = std::get<nvme::InitializeResponse>(response.body);
    body.host_data_max = options_.host_data_max;
    body.alignment = options_.alignment;
    connection.digests = body.digests;
    connection.reader.limit(
        {.data_max = options_.host_data_max, .in_capsule_max = 8192, .data_alignment = 4U * (options_.alignment + 1U)});
    connection.reader.use(body.digests);
    pdu.bytes = nvme::encode_pdu(response, {});
    return {};
  }

  PduFate to_target(Connection& connection, PduUnderWay& pdu) {
    Bytes data;
    if (!read(connection.reader, pdu.bytes, data)) {
      ADD_FAILURE() << connection.reader.fault().message;
      return {.forwarded = 0, .then = PduFate::Then::cut};
    }
    const nvme::Pdu& got = connection.reader.pdu();
    if (const auto* terminate = std::get_if<nvme::Terminate>(&got.body)) terminations_.push_back(*terminate);
    if (const auto* command = std::get_if<nvme::Command>(&got.body)) return on_command(connection, *command, data);
    if (const auto* header = std::get_if<nvme::DataHeader>(&got.body)) {
      const bool last = (got.flags & nvme::kLastFlag) != 0;
      return on_data(connection, pdu, *header, last, data);
    }
    return {};
  }

  PduFate on_command(Connection& connection, const nvme::Command& command, const Bytes& data) {
    if (!data.empty()) {
      ++refused_;
      const nvme::Pdu refusal{
          .type = nvme::PduType::response,
          .flags = 0,
          .body = nvme::Completion{.sq_head = 1, .cid = command.cid, .status = nvme::kSglOffsetInvalid}};
      return {.forwarded = 0, .then = PduFate::Then::cut, .answer = nvme::encode_pdu(refusal, connection.digests)};
    }
    if (!sends(command)) return {};
    EXPECT_EQ(command.sgl.identifier, nvme::kSglTransport);
    connection.command = command;
    connection.data.clear();
    connection.asked = 0;
    return {.forwarded = 0, .then = PduFate::Then::go_on, .answer = ask(connection)};
  }

  PduFate on_data(Connection& connection, PduUnderWay& pdu, const nvme::DataHeader& header, bool last,
                  const Bytes& data) {
    ++data_pdus_;
    EXPECT_EQ(header.cid, connection.command.cid);
    EXPECT_EQ(header.tag, connection.tag);
    EXPECT_EQ(header.offset, connection.data.size());
    connection.data.insert(connection.data.end(), data.begin(), data.end());
    EXPECT_LE(connection.data.size(), connection.asked);
    EXPECT_EQ(last, connection.data.size() == connection.asked);
    if (!last) return {.forwarded = 0, .then = PduFate::Then::go_on};
    if (connection.data.size() < connection.command.sgl.length)
      return {.forwarded = 0, .then = PduFate::Then::go_on, .answer = ask(connection)};
    // The real target gets all of it as it likes it.
    nvme::Command whole = connection.command;
    whole.sgl.identifier = nvme::kSglInCapsule;
    pdu.bytes = nvme::encode_pdu({.type = nvme::PduType::command, .flags = 0, .body = whole}, connection.digests,
                                 connection.data);
    return {};
  }

  Bytes ask(Connection& connection) {
    ++asked_;
    const std::uint32_t length = std::min(options_.ask_at_once, connection.command.sgl.length - connection.asked);
    nvme::ReadyToTransfer ready{
        .cid = connection.command.cid, .tag = ++connection.tag, .offset = connection.asked, .length = length};
    connection.asked += length;
    if (spoil_) spoil_(ready);
    return nvme::encode_pdu({.type = nvme::PduType::ready, .flags = 0, .body = ready}, connection.digests);
  }

  static bool sends(const nvme::Command& command) {
    if (command.opcode != nvme::kFabrics) return false;
    const nvme::FabricsType type = nvme::fabrics_type(command);
    return type == nvme::FabricsType::connect || type == nvme::FabricsType::authentication_send;
  }

  static bool read(nvme::PduReader& reader, std::span<const std::byte> bytes, Bytes& data) {
    while (!bytes.empty()) {
      const std::span<std::byte> room = reader.room();
      const std::size_t count = std::min(room.size(), bytes.size());
      std::copy_n(bytes.begin(), count, room.begin());
      bytes = bytes.subspan(count);
      const nvme::PduReader::Progress progress = reader.filled(count);
      if (progress == nvme::PduReader::Progress::fault) return false;
      if (progress == nvme::PduReader::Progress::header) {
        data.resize(reader.data_length());
        reader.place(data);
      }
    }
    EXPECT_TRUE(reader.data_intact());
    return true;
  }

  const Options options_;
  mutable std::mutex mutex_;
  std::map<unsigned, Connection> connections_;  // all under mutex_
  std::function<void(nvme::ReadyToTransfer&)> spoil_;
  unsigned refused_ = 0;
  unsigned asked_ = 0;
  unsigned data_pdus_ = 0;
  std::vector<nvme::Terminate> terminations_;
};

}  // namespace infercluster::testing
