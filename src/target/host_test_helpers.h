// SPDX-License-Identifier: Apache-2.0
// A host for tests: what it sends as bytes, and what it makes of what comes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "nvme/bytes.h"
#include "nvme/controller.h"
#include "nvme/pdu_reader.h"

namespace infercluster::target {

inline constexpr const char* kTestNqn = "nqn.2026-01.io.test:pool";
inline constexpr const char* kTestHostNqn = "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6";

using Bytes = std::vector<std::byte>;

inline Bytes wire(const nvme::Pdu& pdu, nvme::Digests digests = {}, const Bytes& data = {}) {
  return nvme::encode_pdu(pdu, digests, data);
}

inline Bytes initialize_bytes(nvme::Digests digests = {}, std::uint8_t alignment = 0) {
  return wire(
      {.type = nvme::PduType::initialize_request,
       .flags = 0,
       .body = nvme::InitializeRequest{.format = 0, .alignment = alignment, .digests = digests, .ready_max = 0}});
}

inline nvme::Command with_cid(nvme::Command command, std::uint16_t cid) {
  command.cid = cid;
  return command;
}

// A command whose data comes to the host's memory.
inline Bytes command_bytes(nvme::Command command, std::uint16_t cid, std::uint32_t length = 0,
                           nvme::Digests digests = {}) {
  command.cid = cid;
  command.sgl = {.address = 0, .length = length, .identifier = nvme::kSglTransport};
  return wire({.type = nvme::PduType::command, .flags = 0, .body = command}, digests);
}

struct ConnectTo {
  nvme::Connect connect{.format = 0, .queue_id = 0, .queue_size = 31, .attributes = 0, .keep_alive_ms = 0};
  std::string nqn = kTestNqn;
  std::string host_nqn = kTestHostNqn;
  std::uint16_t controller_id = nvme::kAnyController;
};
inline Bytes connect_bytes(const ConnectTo& to, std::uint16_t cid = 0, nvme::Digests digests = {}) {
  nvme::Command command = with_cid(nvme::encode_connect(to.connect), cid);
  command.sgl = {.address = 0, .length = nvme::kConnectDataBytes, .identifier = nvme::kSglInCapsule};
  Bytes data(nvme::kConnectDataBytes);
  nvme::encode(
      nvme::ConnectData{
          .host_id = {}, .controller_id = to.controller_id, .subsystem_nqn = to.nqn, .host_nqn = to.host_nqn},
      std::span<std::byte, nvme::kConnectDataBytes>(data.data(), data.size()));
  return wire({.type = nvme::PduType::command, .flags = 0, .body = command}, digests, data);
}

// What a target sends, as PDUs; data is gathered per command.
class HostReader {
 public:
  HostReader() : reader_(nvme::Side::host, {.data_max = 1U << 21, .in_capsule_max = 0, .data_alignment = 4}) {}

  void use(nvme::Digests digests) { digests_ = digests; }
  void alignment(std::uint32_t bytes) {
    reader_.limit({.data_max = 1U << 21, .in_capsule_max = 0, .data_alignment = bytes});
  }

  // False: the target sent something that a host must not accept.
  bool receive(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::span<std::byte> room = reader_.room();
      const std::size_t count = std::min(room.size(), bytes.size());
      std::copy_n(bytes.begin(), count, room.begin());
      bytes = bytes.subspan(count);
      switch (reader_.filled(count)) {
        case nvme::PduReader::Progress::more:
          break;
        case nvme::PduReader::Progress::header:
          data_.resize(reader_.data_length());
          reader_.place(data_);
          break;
        case nvme::PduReader::Progress::whole:
          take();
          break;
        case nvme::PduReader::Progress::fault:
          fault = reader_.fault().message;
          return false;
      }
    }
    return true;
  }

  // In the order of their arrival. A read that ended by its data alone has a completion made up for it.
  std::deque<nvme::Completion> completions;
  std::map<std::uint16_t, Bytes> data;  // by command
  std::vector<nvme::Pdu> others;        // initialization and termination
  unsigned digests_wrong = 0;
  std::string fault;

 private:
  void take() {
    const nvme::Pdu& pdu = reader_.pdu();
    if (!reader_.data_intact()) ++digests_wrong;
    if (const auto* completion = std::get_if<nvme::Completion>(&pdu.body)) {
      completions.push_back(*completion);
    } else if (const auto* header = std::get_if<nvme::DataHeader>(&pdu.body)) {
      Bytes& whole = data[header->cid];
      IC_ASSERT(header->offset == whole.size());
      whole.insert(whole.end(), data_.begin(), data_.end());
      if ((pdu.flags & nvme::kSuccessFlag) != 0)
        completions.push_back({.result = 0, .sq_head = 0, .sq_id = 0, .cid = header->cid, .status = {}});
    } else {
      others.push_back(pdu);
      if (pdu.type == nvme::PduType::initialize_response) reader_.use(digests_);
    }
    data_.clear();
  }

  nvme::PduReader reader_;
  nvme::Digests digests_;
  Bytes data_;
};

}  // namespace infercluster::target
