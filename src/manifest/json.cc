// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <span>

#include "checksum/crc32c.h"
#include "manifest/commit.h"
#include "manifest/json_internal.h"

namespace infercluster::manifest {
namespace {

constexpr std::size_t kDepthMax = 16;

// Brackets outside of strings: a document of ours is shallow, and a parser's memory grows with depth.
bool is_shallow(std::string_view text) {
  std::size_t depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDepthMax) return false;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return true;
}

std::string checksum_of(const Json& body) {
  const std::string text = body.dump();
  return to_hex(checksum::crc32c(std::as_bytes(std::span(text))));
}

}  // namespace

Error damaged(const Format& format, std::string what) {
  return Error(ErrorCode::corrupt, "the " + std::string(format.shown) + " is damaged: " + std::move(what))
      .with_kind("ManifestDamaged");
}

Result<Json> open_document(std::string_view text, const Format& format) {
  if (!is_shallow(text)) return damaged(format, "it is nested too deeply");
  Json body = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (body.is_discarded() || !body.is_object()) return damaged(format, "it is not a JSON object");
  IC_TRY(const std::string name, text_of(body, "format", format));
  if (name != format.name)
    return damaged(format, "expected format \"" + std::string(format.name) + "\", found \"" + name + "\"");
  IC_TRY(const std::uint64_t version, number_of(body, "version", format));
  if (version == 0 || version > kFormatVersion) {
    return Error(ErrorCode::unsupported, "the " + std::string(format.shown) + " has format version " +
                                             std::to_string(version) + ", and this release knows version " +
                                             std::to_string(kFormatVersion))
        .with_kind("ManifestVersion")
        .with_hint("Use the release that wrote it, or a newer one");
  }
  IC_TRY(const std::string found, text_of(body, "crc32c", format));
  body.erase("crc32c");
  const std::string expected = checksum_of(body);
  if (found != expected) return damaged(format, "its checksum is " + found + ", and its content gives " + expected);
  return body;
}

Json begin_document(const Format& format) {
  Json body = Json::object();
  body["format"] = format.name;
  body["version"] = kFormatVersion;
  return body;
}

Result<std::string> close_document(Json body, const Format& format) {
  try {  // the library's only way to say that a text is not UTF-8
    body["crc32c"] = checksum_of(body);
    return body.dump() + "\n";
  } catch (const Json::exception&) {
    return Error(ErrorCode::invalid_argument, "a text for the " + std::string(format.shown) + " is not UTF-8");
  }
}

Result<const Json*> member(const Json& object, const char* key, const Format& format) {
  const auto found = object.find(key);
  if (!object.is_object() || found == object.end())
    return damaged(format, "a member \"" + std::string(key) + "\" is missing");
  return &*found;
}

Result<std::uint64_t> number_of(const Json& object, const char* key, const Format& format) {
  IC_TRY(const Json* value, member(object, key, format));
  if (!value->is_number_unsigned())
    return damaged(format, "\"" + std::string(key) + "\" is not a whole number from 0 on");
  return value->get<std::uint64_t>();
}

Result<std::string> text_of(const Json& object, const char* key, const Format& format) {
  IC_TRY(const Json* value, member(object, key, format));
  if (!value->is_string()) return damaged(format, "\"" + std::string(key) + "\" is not a text");
  return value->get<std::string>();
}

Result<const Json*> array_of(const Json& object, const char* key, const Format& format) {
  IC_TRY(const Json* value, member(object, key, format));
  if (!value->is_array()) return damaged(format, "\"" + std::string(key) + "\" is not a list");
  return value;
}

std::string to_hex(std::uint32_t value) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(8, '0');
  for (std::size_t i = 0; i < 8; ++i) text[i] = kDigits[(value >> (28 - 4 * i)) & 15];
  return text;
}

bool parse_hex(std::string_view eight_digits, std::uint32_t& into) {
  if (!is_hex(eight_digits, 8)) return false;
  into = 0;
  for (const char c : eight_digits) into = into << 4 | static_cast<std::uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  return true;
}

bool is_hex(std::string_view text, std::size_t length) {
  return text.size() == length &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

}  // namespace infercluster::manifest
