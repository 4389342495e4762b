// SPDX-License-Identifier: Apache-2.0
#include "initiator/url.h"

#include <gtest/gtest.h>

namespace infercluster::initiator {
namespace {

TEST(Url, IsReadAndWrittenAlike) {
  const Result<Url> url = parse_url("nvme-tcp://[::1]:4421/nqn.2026-01.io.test:pool?nsid=7");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->nqn, "nqn.2026-01.io.test:pool");
  EXPECT_EQ(url->nsid, 7U);
  EXPECT_EQ(url->to_string(), "nvme-tcp://[::1]:4421/nqn.2026-01.io.test:pool?nsid=7");
}

TEST(Url, PortsAndNamespaceMayBeLeftOut) {
  EXPECT_EQ(parse_url("nvme-tcp://10.0.0.5/nqn.2026-01.io.test:pool")->to_string(),
            "nvme-tcp://10.0.0.5:4420/nqn.2026-01.io.test:pool?nsid=1");
  EXPECT_EQ(parse_url("nvme-tcp://10.0.0.5")->address.port(), 8009);
  EXPECT_EQ(parse_url("nvme-tcp://[::1]")->address.port(), 8009);
  EXPECT_TRUE(parse_url("nvme-tcp://10.0.0.5:4420/")->nqn.empty());
}

TEST(Url, WhatIsNoneIsRefused) {
  for (const char* text :
       {"", "http://10.0.0.5:4420/nqn.a", "nvme-tcp://", "nvme-tcp://name:4420/nqn.a", "nvme-tcp://10.0.0.5:4420/iqn.a",
        "nvme-tcp://10.0.0.5:4420/nqn.a?nsid=0", "nvme-tcp://10.0.0.5:4420/nqn.a?nsid=x",
        "nvme-tcp://10.0.0.5:4420/nqn.a?x=1", "nvme-tcp://10.0.0.5:99999/nqn.a"}) {
    const Result<Url> url = parse_url(text);
    ASSERT_FALSE(url.ok()) << text;
    EXPECT_EQ(url.error().code(), ErrorCode::invalid_argument);
    EXPECT_FALSE(url.error().hint().empty());
  }
}

}  // namespace
}  // namespace infercluster::initiator
