// SPDX-License-Identifier: Apache-2.0
// Secrets and names that tests of authentication share.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "nvme/authentication.h"

namespace infercluster::nvme {

// The keys are the bytes 1, 2, 3 ... (of hosts) and 101, 102, 103 ... (of controllers).
inline constexpr const char* kHostSecret00 = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
inline constexpr const char* kHostSecret01 = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
inline constexpr const char* kHostSecret02 =
    "DHHC-1:02:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:";
inline constexpr const char* kHostSecret03 =
    "DHHC-1:03:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wMTIzNDU2Nzg5Ojs8PT4/QJn7gCg=:";
inline constexpr const char* kControllerSecret01 = "DHHC-1:01:ZWZnaGlqa2xtbm9wcXJzdHV2d3h5ent8fX5/gIGCg4QqhWEu:";
inline constexpr const char* kControllerSecret02 =
    "DHHC-1:02:ZWZnaGlqa2xtbm9wcXJzdHV2d3h5ent8fX5/gIGCg4SFhoeIiYqLjI2Oj5CRkpOUeJdF8g==:";
inline constexpr const char* kControllerSecret03 =
    "DHHC-1:03:ZWZnaGlqa2xtbm9wcXJzdHV2d3h5ent8fX5/gIGCg4SFhoeIiYqLjI2Oj5CRkpOUlZaXmJmam5ydnp+goaKjpKDV93s=:";

inline Secret secret(std::string_view text) {
  return *Secret::parse(text);
}

// Bytes that count on: whatever is asked for, it differs from what was given before.
class Counting {
 public:
  void operator()(std::span<std::byte> bytes) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(next_++ % 251);
  }

 private:
  unsigned next_ = 1;
};

inline std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

}  // namespace infercluster::nvme
