// SPDX-License-Identifier: Apache-2.0
#include "target/state.h"

#include <fcntl.h>
#include <sys/file.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <span>

#include "base/random.h"
#include "base/units.h"
#include "checksum/crc32c.h"
#include "target/address_space.h"

namespace infercluster::target {
namespace {

constexpr std::string_view kFormat = "infercluster-target-state 1";
constexpr std::string_view kFormatName = "infercluster-target-state ";
constexpr std::uint64_t kStateBytesMax = 256 * kMiB;

std::string checksum_of(std::string_view text) {
  std::array<char, 16> digits{};
  std::snprintf(digits.data(), digits.size(), "%08x", checksum::crc32c(std::as_bytes(std::span(text))));
  return digits.data();
}

Error damaged(std::string_view why) {
  return Error(ErrorCode::corrupt, "the target's state is damaged: " + std::string(why))
      .with_hint(
          "Remove the file: the target then starts with a new identity and a new namespace UUID, and hosts connect "
          "anew");
}

// Takes a word up to the next space, or the rest of the line.
std::string_view take_word(std::string_view& line) {
  const std::size_t end = line.find(' ');
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(end == std::string_view::npos ? line.size() : end + 1);
  return word;
}

template <typename T>
bool take_number(std::string_view& line, T& value) {
  const std::string_view word = take_word(line);
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc{} && end == word.data() + word.size() && !word.empty();
}

// Paths may hold any byte but NUL: line ends and '%' are written as %XX.
std::string escaped(std::string_view path) {
  std::string text;
  for (const char c : path) {
    if (c != '\n' && c != '%') {
      text.push_back(c);
    } else {
      text += c == '\n' ? "%0A" : "%25";
    }
  }
  return text;
}

std::optional<std::string> unescaped(std::string_view text) {
  std::string path;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      path.push_back(text[i]);
      continue;
    }
    const std::string_view code = text.substr(i, 3);
    if (code != "%0A" && code != "%25") return std::nullopt;
    path.push_back(code == "%0A" ? '\n' : '%');
    i += 2;
  }
  return path;
}

Status take_line(std::string_view line, State& state) {
  const std::string_view key = take_word(line);
  if (key == "uuid") {
    Result<nvme::Uuid> uuid = nvme::parse_uuid(line);
    if (!uuid.ok()) return damaged("its UUID is none");
    state.uuid = *uuid;
  } else if (key == "nqn") {
    if (!nvme::check_nqn(line).ok()) return damaged("its NQN is none");
    state.nqn = line;
  } else if (key == "serial") {
    if (line.empty() || line.size() > 20) return damaged("its serial number is none");
    state.serial = line;
  } else if (key == "high-water") {
    if (!take_number(line, state.high_water_block) || state.high_water_block > kSpaceBlocks)
      return damaged("its high-water mark is none");
  } else if (key == "object") {
    KnownObject object;
    os::FileIdentity& identity = object.identity;
    const bool numbers = take_number(line, object.first_block) && take_number(line, identity.device) &&
                         take_number(line, identity.inode) && take_number(line, identity.size) &&
                         take_number(line, identity.mtime_ns) && take_number(line, identity.ctime_ns);
    std::optional<std::string> path = unescaped(line);
    if (!numbers || !path || path->empty()) return damaged("a line of an object");
    object.path = *std::move(path);
    state.objects.push_back(std::move(object));
  } else {
    return damaged("a line that begins with \"" + std::string(key.substr(0, 32)) + "\"");
  }
  return {};
}

}  // namespace

Result<State> new_state(std::string nqn) {
  State state;
  fill_random(state.uuid);
  // Where its addresses begin is as random: a host that was connected to an older namespace may ask for old blocks
  // before it has noticed the new UUID, and must find nothing there.
  std::uint32_t slot = 0;
  fill_random(std::as_writable_bytes(std::span(&slot, 1)));
  state.high_water_block = kEdgeBlocks + slot % (kSpaceBlocks / 2 / kHighWaterStepBlocks) * kHighWaterStepBlocks;
  // Version 4, variant 1 (RFC 4122, section 4.4).
  state.uuid[6] = (state.uuid[6] & std::byte{0x0F}) | std::byte{0x40};
  state.uuid[8] = (state.uuid[8] & std::byte{0x3F}) | std::byte{0x80};
  const std::string text = nvme::to_string(state.uuid);
  state.nqn = nqn.empty() ? "nqn.2014-08.org.nvmexpress:uuid:" + text : std::move(nqn);
  state.serial = text.substr(0, 8) + text.substr(9, 4) + text.substr(14, 4);
  return state;
}

std::string encode(const State& state) {
  std::string text = std::string(kFormat) + "\nuuid " + nvme::to_string(state.uuid) + "\nnqn " + state.nqn +
                     "\nserial " + state.serial + "\nhigh-water " + std::to_string(state.high_water_block) + "\n";
  for (const KnownObject& object : state.objects) {
    const os::FileIdentity& identity = object.identity;
    text += "object " + std::to_string(object.first_block) + " " + std::to_string(identity.device) + " " +
            std::to_string(identity.inode) + " " + std::to_string(identity.size) + " " +
            std::to_string(identity.mtime_ns) + " " + std::to_string(identity.ctime_ns) + " " + escaped(object.path) +
            "\n";
  }
  return text + "crc32c " + checksum_of(text) + "\n";
}

Result<State> decode_state(std::string_view text) {
  const std::size_t last = text.rfind("crc32c ");
  if (!text.starts_with(kFormatName)) return damaged("it does not begin with \"" + std::string(kFormatName) + "\"");
  if (!text.starts_with(std::string(kFormat) + "\n")) {
    return Error(ErrorCode::unsupported, "the target's state has a format that this version does not know: " +
                                             std::string(text.substr(0, std::min(text.find('\n'), std::size_t{64}))))
        .with_hint("Use the version that wrote it, or a newer one");
  }
  if (last == std::string_view::npos || text.substr(last) != "crc32c " + checksum_of(text.substr(0, last)) + "\n") {
    return damaged("its checksum is wrong");
  }
  State state;
  std::string_view lines = text.substr(kFormat.size() + 1, last - kFormat.size() - 1);
  while (!lines.empty()) {
    const std::size_t end = lines.find('\n');
    if (end == std::string_view::npos) return damaged("a line without an end");
    IC_CHECK(take_line(lines.substr(0, end), state));
    lines.remove_prefix(end + 1);
  }
  if (state.nqn.empty() || state.serial.empty() || state.uuid == nvme::Uuid{})
    return damaged("its identity is missing");
  return state;
}

Result<Fd> lock_state(const std::string& path) {
  const std::string name = path + ".lock";
  Fd file(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return Error::from_errno(errno, "cannot open the lock of the target's state").with_path(name);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return file;
  if (errno != EWOULDBLOCK) return Error::from_errno(errno, "cannot lock the target's state").with_path(name);
  return Error(ErrorCode::invalid_argument, "another target serves by this state")
      .with_path(path)
      .with_hint("Stop it, or give this target a state file of its own");
}

Result<std::optional<State>> load_state(const std::string& path) {
  Result<std::string> text = os::read_small_file(path, kStateBytesMax);
  if (!text.ok()) {
    if (text.error().code() == ErrorCode::not_found) return std::optional<State>();
    return std::move(text).error();
  }
  Result<State> state = decode_state(*text);
  if (!state.ok()) return std::move(state).error().with_path(path);
  return std::optional<State>(*std::move(state));
}

Status save_state(const std::string& path, const State& state) {
  const std::string text = encode(state);
  return os::write_file_atomically(path, std::as_bytes(std::span(text)));
}

}  // namespace infercluster::target
