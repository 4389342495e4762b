// SPDX-License-Identifier: Apache-2.0
#include "nvme/fabrics.h"

#include <gtest/gtest.h>

#include <string>

#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

TEST(Fabrics, ConnectLiesWhereTheSpecificationPutsIt) {
  const Connect connect{
      .format = 0, .queue_id = 3, .queue_size = 127, .attributes = kConnectNoFlowControl, .keep_alive_ms = 5000};
  const Command command = encode_connect(connect);
  EXPECT_EQ(fabrics_type(command), FabricsType::connect);
  std::array<std::byte, kCommandBytes> bytes{};
  encode(command, std::span<std::byte, kCommandBytes>(bytes));
  EXPECT_EQ(bytes[0], std::byte{0x7F});
  EXPECT_EQ(bytes[4], std::byte{0x01});
  EXPECT_EQ(load<std::uint16_t>(bytes, 42), 3);
  EXPECT_EQ(load<std::uint16_t>(bytes, 44), 127);
  EXPECT_EQ(bytes[46], std::byte{4});
  EXPECT_EQ(load<std::uint32_t>(bytes, 48), 5000U);
  EXPECT_EQ(decode_connect(decode_command(bytes)), connect);
}

TEST(Fabrics, ConnectDataIsReadBackWithTheLongestNames) {
  ConnectData data{.host_id = {},
                   .controller_id = 0x1234,
                   .subsystem_nqn = "nqn.2026-01.io.test:" + std::string(kNqnBytesMax - 20, 's'),
                   .host_nqn = "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6"};
  data.host_id[15] = std::byte{9};
  std::array<std::byte, kConnectDataBytes> bytes{};
  encode(data, std::span<std::byte, kConnectDataBytes>(bytes));
  EXPECT_EQ(load<std::uint16_t>(bytes, 16), 0x1234);
  EXPECT_EQ(bytes[256], std::byte{'n'});
  EXPECT_EQ(bytes[512], std::byte{'n'});
  EXPECT_EQ(decode_connect_data(bytes), data);
}

TEST(Fabrics, ResultsOfConnectAreReadBack) {
  for (const bool required : {false, true}) {
    const Connected connected{.controller_id = 0xFFEF, .authentication_required = required};
    EXPECT_EQ(decode_connected(encode(connected)), connected);
  }
  EXPECT_EQ(encode(Connected{.controller_id = 1, .authentication_required = true}), 0x20001U);
  EXPECT_EQ(encode_refused_parameter(ConnectPart::data, 256), 0x10100U);
}

TEST(Fabrics, PropertiesAreReadBack) {
  const PropertyAccess get{.offset = kPropertyCapabilities, .bytes = 8, .value = 0};
  EXPECT_EQ(decode_property(encode_property_get(get)), get);
  EXPECT_EQ(fabrics_type(encode_property_get(get)), FabricsType::property_get);
  const PropertyAccess set{.offset = kPropertyConfiguration, .bytes = 4, .value = 0x460001};
  EXPECT_EQ(decode_property(encode_property_set(set)), set);
  EXPECT_EQ(fabrics_type(encode_property_set(set)), FabricsType::property_set);
  Command odd = encode_property_get(get);
  odd.dwords[0] = 5;
  EXPECT_EQ(decode_property(odd).bytes, 0);
}

// Values as a stock Linux target and host exchange them.
TEST(Fabrics, RegistersReadAsLinuxWritesThem) {
  const Capabilities capabilities = decode_capabilities(0x8200F0003FF);
  EXPECT_EQ(capabilities.queue_entries_max, 1023);
  EXPECT_EQ(capabilities.timeout_500ms, 15);
  EXPECT_TRUE(capabilities.nvm_command_set);
  EXPECT_FALSE(capabilities.contiguous_queues);
  EXPECT_EQ(decode_capabilities(encode(capabilities)), capabilities);
  const Configuration enabled = decode_configuration(0x460001);
  EXPECT_EQ(enabled, (Configuration{.enable = true, .sq_entry_bits = 6, .cq_entry_bits = 4}));
  EXPECT_EQ(encode(enabled), 0x460001U);
  EXPECT_EQ(decode_configuration(0x464001).shutdown, static_cast<std::uint8_t>(Shutdown::normal));
  EXPECT_EQ(decode_configuration(0x460061).command_set, 6);
  EXPECT_EQ(decode_controller_status(0x9), (ControllerStatus{.ready = true, .fatal = false, .shutdown = 2}));
  EXPECT_EQ(encode(ControllerStatus{.ready = true, .fatal = true, .shutdown = 1}), 0x7U);
}

TEST(Fabrics, AuthenticationTransfersAreReadBack) {
  const AuthenticationTransfer transfer{.length = 4096};
  const Command command = encode_authentication(FabricsType::authentication_send, transfer);
  EXPECT_EQ(fabrics_type(command), FabricsType::authentication_send);
  std::array<std::byte, kCommandBytes> bytes{};
  encode(command, std::span<std::byte, kCommandBytes>(bytes));
  EXPECT_EQ(bytes[41], std::byte{1});
  EXPECT_EQ(bytes[42], std::byte{1});
  EXPECT_EQ(bytes[43], std::byte{0xE9});
  EXPECT_EQ(load<std::uint32_t>(bytes, 44), 4096U);
  EXPECT_EQ(decode_authentication(command), transfer);
}

TEST(Fabrics, NamesAreChecked) {
  EXPECT_TRUE(check_nqn(kDiscoveryNqn).ok());
  EXPECT_TRUE(check_nqn("nqn.2026-01.io.test:" + std::string(kNqnBytesMax - 20, 'x')).ok());
  for (const std::string& wrong :
       {std::string(), std::string("iqn.2026-01.io.test:a"), std::string("nqn.2026-01.io.test:a b"),
        "nqn." + std::string(kNqnBytesMax, 'x'), std::string("nqn.a\n"), std::string("nqn.\xFF")}) {
    const Status status = check_nqn(wrong);
    ASSERT_FALSE(status.ok()) << wrong;
    EXPECT_EQ(status.error().code(), ErrorCode::invalid_argument);
  }
}

TEST(Fabrics, UuidsAreReadBack) {
  const std::string text = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
  const Result<Uuid> uuid = parse_uuid(text);
  ASSERT_TRUE(uuid.ok());
  EXPECT_EQ((*uuid)[0], std::byte{0xF8});
  EXPECT_EQ((*uuid)[15], std::byte{0xF6});
  EXPECT_EQ(to_string(*uuid), text);
  for (const char* wrong : {"", "f81d4fae7dec11d0a76500a0c91e6bf6", "f81d4fae-7dec-11d0-a765-00a0c91e6bfg",
                            "f81d4fae-7dec-11d0-a765-00a0c91e6bf66", "f81d4fae+7dec-11d0-a765-00a0c91e6bf6"}) {
    EXPECT_FALSE(parse_uuid(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace infercluster::nvme
