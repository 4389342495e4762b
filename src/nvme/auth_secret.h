// SPDX-License-Identifier: Apache-2.0
// The secrets of DH-HMAC-CHAP: NVM Express Base Specification 2.0, sections 8.13.5.7 (key transformation) and 8.13.5.8
// (their representation as text).
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checksum/hmac.h"

namespace infercluster::nvme {

// A key of 32, 48 or 64 bytes, and by which hash it is bound to the NQN of whom it proves. Forgotten when it ends.
class Secret {
 public:
  // "DHHC-1:HH:BASE64:", as nvme gen-dhchap-key writes it: HH is 00 (not bound to an NQN) or 01, 02, 03 (SHA-256, 384,
  // 512), and the base64 is that of the key and its CRC-32. White space around it is left aside. Errors:
  // invalid_argument, which says what is wrong and never what the secret is.
  static Result<Secret> parse(std::string_view text);
  ~Secret() { checksum::wipe(key_); }
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  Secret(Secret&&) = default;
  Secret& operator=(Secret&&) = default;

  [[nodiscard]] std::size_t bytes() const { return size_; }
  // The key with which the owner of `nqn` answers challenges.
  [[nodiscard]] std::vector<std::byte> transformed(std::string_view nqn) const;

 private:
  Secret() = default;

  std::array<std::byte, 64> key_{};
  std::size_t size_ = 0;
  std::optional<checksum::Sha2> hash_;
};

// What proves a host, and what proves the controller to it where that is wanted.
struct Credentials {
  Secret host;
  std::optional<Secret> controller{};
};

}  // namespace infercluster::nvme
