// SPDX-License-Identifier: Apache-2.0
#include "nvme/status.h"

#include <gtest/gtest.h>

namespace infercluster::nvme {
namespace {

TEST(CommandStatus, EveryFieldIsReadBack) {
  for (unsigned field = 0; field <= UINT16_MAX; ++field) {
    // Phase, CRD and More say nothing over fabrics.
    constexpr unsigned kKept = 0x8FFE;
    const CommandStatus status = CommandStatus::from_field(static_cast<std::uint16_t>(field));
    ASSERT_EQ(status.field(), field & kKept) << field;
  }
}

TEST(CommandStatus, FieldsAreThoseOfTheSpecification) {
  EXPECT_EQ(kSuccess.field(), 0);
  EXPECT_EQ(kInvalidOpcode.field(), 0x8002);
  EXPECT_EQ(kTransientTransportError.field(), 0x22 << 1);
  EXPECT_EQ(kUnrecoveredReadError.field(), 0x8000 | 0x281 << 1);
  EXPECT_EQ(kExtentGone.field(), 0x8000 | 0x7C1 << 1);
  EXPECT_TRUE(kSuccess.ok());
  EXPECT_FALSE(kExtentGone.ok());
}

TEST(CommandStatus, SaysWhatHappened) {
  EXPECT_EQ(kSuccess.to_string(), "success");
  EXPECT_EQ(kInvalidField.to_string(), "invalid field in command (SCT 0h, SC 02h, do not retry)");
  EXPECT_EQ((CommandStatus{.type = StatusType::path, .code = 0x70}.to_string()), "SCT 3h, SC 70h");
}

}  // namespace
}  // namespace infercluster::nvme
