// SPDX-License-Identifier: Apache-2.0
// Seals: whatever parses is written back as the same bytes. Each input is tried as it is, and once more with magic,
// version, block size and the checksum put right, which no mutation would hit.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "checksum/crc32c.h"
#include "load/seal.h"

namespace {

using infercluster::load::Seal;

void try_parse(std::span<const std::byte> bytes) {
  const auto seal = Seal::parse(bytes);
  if (!seal.ok()) {
    if (seal.error().to_string().empty()) std::abort();
    return;
  }
  const std::vector<std::byte> written = seal->serialize();
  if (written.size() != bytes.size() || std::memcmp(written.data(), bytes.data(), written.size()) != 0) std::abort();
}

void put_right(std::vector<std::byte>& bytes) {
  std::memcpy(bytes.data(), "ICSEAL\r\n\x01\0\0\0\0\0\x01\0", 16);
  const std::span<const std::byte> all = bytes;
  const std::uint32_t crc =
      infercluster::checksum::crc32c(all.subspan(44), infercluster::checksum::crc32c(all.first(40)));
  std::memcpy(bytes.data() + 40, &crc, sizeof crc);
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> input = std::as_bytes(std::span(data, size));
  try_parse(input);
  if (size < 44) return 0;
  std::vector<std::byte> mended(input.begin(), input.end());
  put_right(mended);
  try_parse(mended);
  return 0;
}
