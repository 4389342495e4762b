// SPDX-License-Identifier: Apache-2.0
#include "nvme/auth_secret.h"

#include <algorithm>
#include <string>

#include "checksum/crc32.h"
#include "nvme/bytes.h"

namespace infercluster::nvme {
namespace {

constexpr std::string_view kPrefix = "DHHC-1:";
constexpr std::string_view kSpace = " \t\r\n";
constexpr std::size_t kCrcBytes = 4;
constexpr std::size_t kDecodedBytesMax = 64 + kCrcBytes;

Error wrong(std::string_view what) {
  return Error(ErrorCode::invalid_argument, "not a DH-HMAC-CHAP secret: " + std::string(what))
      .with_hint("It looks like DHHC-1:01:BASE64: and nvme gen-dhchap-key makes one");
}

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

// The bytes of whole groups with their padding, as RFC 4648 has it; nothing where it is otherwise, or longer than any
// secret. Bits that belong to no byte must be 0: a secret has one way to write it.
std::vector<std::byte> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0 || text.size() > (kDecodedBytesMax + 2) / 3 * 4) return {};
  std::size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) {
    text.remove_suffix(1);
    ++padding;
  }
  std::vector<std::byte> bytes;
  bytes.reserve(kDecodedBytesMax + 3);
  unsigned held = 0;
  unsigned held_bits = 0;
  for (const char c : text) {
    const int digit = base64_digit(c);
    if (digit < 0) return {};
    held = held << 6 | static_cast<unsigned>(digit);
    held_bits += 6;
    if (held_bits < 8) continue;
    held_bits -= 8;
    bytes.push_back(static_cast<std::byte>(held >> held_bits & 0xFFU));
    held &= (1U << held_bits) - 1U;
  }
  if (held != 0) return {};
  return bytes;
}

}  // namespace

Result<Secret> Secret::parse(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return wrong("it is empty");
  text = text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
  if (!text.starts_with(kPrefix)) return wrong("it does not begin with DHHC-1:");
  text.remove_prefix(kPrefix.size());
  Secret secret;
  if (text.size() < 3 || text[0] != '0' || text[1] < '0' || text[1] > '3' || text[2] != ':') {
    return wrong("its hash is none of 00, 01, 02 and 03");
  }
  if (text[1] != '0') secret.hash_ = static_cast<checksum::Sha2>(text[1] - '1');
  text.remove_prefix(3);
  if (!text.ends_with(':')) return wrong("it does not end with a colon");
  text.remove_suffix(1);
  std::vector<std::byte> decoded = decode_base64(text);
  const std::size_t size = decoded.size() < kCrcBytes ? 0 : decoded.size() - kCrcBytes;
  Status checked;
  if (size != 32 && size != 48 && size != 64) {
    checked = wrong("its key is not base64 of 32, 48 or 64 bytes and their checksum");
  } else if (checksum::crc32(std::span(decoded).first(size)) != load<std::uint32_t>(decoded, size)) {
    checked = wrong("its checksum is wrong, so that some of its characters must be");
  } else {
    std::copy_n(decoded.begin(), size, secret.key_.begin());
    secret.size_ = size;
  }
  checksum::wipe(decoded);
  IC_CHECK(checked);
  return secret;
}

std::vector<std::byte> Secret::transformed(std::string_view nqn) const {
  const std::span<const std::byte> key = std::span(key_).first(size_);
  if (!hash_) return {key.begin(), key.end()};
  const std::string name = std::string(nqn) + "NVMe-over-Fabrics";
  return checksum::hmac(*hash_, key, std::as_bytes(std::span(name)));
}

}  // namespace infercluster::nvme
