// SPDX-License-Identifier: Apache-2.0
#include "checksum/sha256.h"

#include <gtest/gtest.h>

#include <string_view>

namespace infercluster::checksum {
namespace {

std::string digest_of(std::string_view text, std::size_t piece) {
  Sha256 digest;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, piece);
    digest.add(std::as_bytes(std::span(part)));
    text.remove_prefix(part.size());
  }
  return digest.finish_hex();
}

// FIPS 180-4's examples, in pieces of any size.
TEST(Sha256, ExamplesOfTheStandard) {
  EXPECT_EQ(digest_of("", 1), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  for (const std::size_t piece : {1UL, 2UL, 55UL, 1000UL}) {
    EXPECT_EQ(digest_of("abc", piece), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", piece),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  }
}

}  // namespace
}  // namespace infercluster::checksum
