// SPDX-License-Identifier: Apache-2.0
// What ranks say to each other: whatever decodes is encoded as the same bytes, but for causes, whose texts may be cut.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "exchange/verdict.h"

namespace {

namespace exchange = infercluster::exchange;

void try_contribution(std::string_view bytes) {
  const auto contribution = exchange::decode_contribution(bytes);
  if (contribution.ok() && exchange::encode_contribution(*contribution) != bytes) std::abort();
}

void try_cause(std::string_view bytes) {
  const auto cause = exchange::decode_cause(bytes);
  if (!cause.ok()) return;
  const std::string again = exchange::encode_cause(*cause);
  if (again.size() > exchange::kCauseBytesMax || !exchange::decode_cause(again).ok()) std::abort();
}

void try_verdict(std::string_view bytes) {
  // The world that the bytes speak of, when it is a small one.
  const int world = bytes.size() < 9 ? 1 : static_cast<unsigned char>(bytes[8]);
  const auto verdict = exchange::decode_verdict(bytes, world);
  if (!verdict.ok() || std::holds_alternative<exchange::Cause>(*verdict)) return;
  if (exchange::encode_verdict(*verdict) != bytes) std::abort();
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try_contribution(bytes);
  try_cause(bytes);
  try_verdict(bytes);
  return 0;
}
