// SPDX-License-Identifier: Apache-2.0
#include "os/mountinfo.h"

#include <algorithm>

#include "os/text.h"

namespace infercluster::os {
namespace {

bool is_octal(char c) {
  return c >= '0' && c <= '7';
}

std::string unescape(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && text.size() - i > 3 && is_octal(text[i + 1]) && is_octal(text[i + 2]) &&
        is_octal(text[i + 3])) {
      const int code = (text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0');
      plain += static_cast<char>(code);
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

}  // namespace

// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
// id parent device root point options [optional fields...] - type source super-options
std::vector<MountLine> parse_mountinfo(std::string_view text) {
  std::vector<MountLine> mounts;
  for (const std::string_view line : split(text, '\n')) {
    const std::vector<std::string_view> fields = split(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (dash - fields.begin() < 6 || fields.end() - dash < 3) continue;
    const auto id = leading_number(fields[0]);
    if (!id) continue;
    MountLine mount{.id = *id,
                    .root = unescape(fields[3]),
                    .mount_point = unescape(fields[4]),
                    .type = unescape(dash[1]),
                    .source = unescape(dash[2]),
                    .options = std::string(fields[5])};
    if (fields.end() - dash > 3) mount.options += "," + std::string(dash[3]);
    mounts.push_back(std::move(mount));
  }
  return mounts;
}

}  // namespace infercluster::os
