// SPDX-License-Identifier: Apache-2.0
#include "safetensors/json_internal.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace infercluster::safetensors::json {
namespace {

using simdjson::dom::element;

constexpr std::size_t kQuotedBytesMax = 200;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::optional<std::uint32_t> read_hex4(std::string_view text) {
  std::uint32_t value = 0;
  if (text.size() < 4) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + 4, value, 16);
  if (error != std::errc() || end != text.data() + 4) return std::nullopt;
  return value;
}

// Whether every \u escape of a surrogate is one of a pair; simdjson 3.0 lets some pass that are not. Other faults of
// escapes are left to the parser. In valid JSON a backslash stands only within strings, so the rest need not be looked
// at.
bool surrogates_are_paired(std::string_view text) {
  std::size_t at = text.find('\\');
  while (at < text.size()) {
    std::size_t next = at + 2;
    if (next <= text.size() && text[at + 1] == 'u') {
      const auto first = read_hex4(text.substr(next));
      if (first && (*first & 0xFC00) == 0xDC00) return false;
      if (first && (*first & 0xFC00) == 0xD800) {
        const bool escape_follows = text.substr(next + 4).starts_with("\\u");
        const auto second = escape_follows ? read_hex4(text.substr(next + 6)) : std::nullopt;
        if (!second || (*second & 0xFC00) != 0xDC00) return false;
        next += 10;
      }
    }
    at = text.find('\\', std::min(next, text.size()));
  }
  return true;
}

// One past the string that opens at `at`.
std::size_t skip_string(std::string_view text, std::size_t at) {
  for (++at; at < text.size(); ++at) {
    if (text[at] == '\\')
      ++at;
    else if (text[at] == '"')
      return at + 1;
  }
  return text.size();
}

// A digit string that fits a 64-bit integer (signed, if it has a minus sign).
bool fits_integer(std::string_view token) {
  std::int64_t signed_value = 0;
  std::uint64_t value = 0;
  const char* end = token.data() + token.size();
  const auto result = token.starts_with('-') ? std::from_chars(token.data(), end, signed_value)
                                             : std::from_chars(token.data(), end, value);
  return result.ec == std::errc();
}

bool fits_double(std::string_view token) {
  double value = 0;
  return std::from_chars(token.data(), token.data() + token.size(), value).ec == std::errc();
}

// The reference's parser reads -0, and integers that 64 bits do not hold, as floats; simdjson reads the one as 0 and
// refuses the other. Replaces such tokens, at their length, by numbers that are as valid and as little a non-negative
// integer.
void rewrite_odd_integers(std::string& text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (text[at] == '"') {
      at = skip_string(text, at);
      continue;
    }
    if (text[at] != '-' && !is_digit(text[at])) {
      ++at;
      continue;
    }
    std::size_t end = at + 1;
    bool integer = true;
    for (; end < text.size(); ++end) {
      const char c = text[end];
      if (is_digit(c)) continue;
      if (c != '.' && c != 'e' && c != 'E' && c != '+' && c != '-') break;
      integer = false;
    }
    const std::string_view token(text.data() + at, end - at);
    const std::string_view digits = token.substr(token.starts_with('-') ? 1 : 0);
    const bool leading_zero = digits.size() > 1 && digits.front() == '0';  // not JSON: leave it to the parser
    if (token == "-0") {
      text[at + 1] = '1';
    } else if (integer && !digits.empty() && !leading_zero && !fits_integer(token) && fits_double(token)) {
      text.replace(at, end - at, "1.5" + std::string(token.size() - 3, ' '));
    }
    at = end;
  }
}

void append_escape(std::string& out, char c) {
  static constexpr char kHex[] = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
  }
}

// Whether -0 stands where a value can begin; it may be within a string.
bool may_have_negative_zero(std::string_view text) {
  for (std::size_t at = text.find("-0"); at != std::string_view::npos; at = text.find("-0", at + 2)) {
    if (at == 0 || std::string_view(":,[ \t\r\n").find(text[at - 1]) != std::string_view::npos) return true;
  }
  return false;
}

// How deep containers lie within each other, by the brackets outside of strings.
std::size_t nesting_of(std::string_view text) {
  std::size_t depth = 0;
  std::size_t deepest = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      at = skip_string(text, at) - 1;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

simdjson::error_code parse_nested(simdjson::dom::parser& parser, std::string_view text, Padding padding,
                                  std::size_t depth_max, element& root) {
  const simdjson::error_code error = parser.allocate(text.size(), depth_max);
  if (error != simdjson::SUCCESS) return error;
  return parser.parse(text.data(), text.size(), padding == Padding::none).get(root);
}

// simdjson counts a container only when there is something in it: with its limit at the reference's it refuses too
// early where the innermost one has contents, and one higher too late where it has none.
simdjson::error_code parse_bounded(simdjson::dom::parser& parser, std::string_view text, Padding padding,
                                   element& root) {
  const simdjson::error_code error = parse_nested(parser, text, padding, kDepthMax, root);
  if (error != simdjson::DEPTH_ERROR || nesting_of(text) > kDepthMax) return error;
  return parse_nested(parser, text, padding, kDepthMax + 1, root);
}

Error parse_error(simdjson::error_code code) {
  if (code == simdjson::MEMALLOC) return Error(ErrorCode::out_of_memory, "not enough memory to parse the JSON");
  if (code == simdjson::DEPTH_ERROR) {
    return Error(ErrorCode::corrupt, "the JSON is nested deeper than " + std::to_string(kDepthMax) + " levels");
  }
  return Error(ErrorCode::corrupt, std::string("not valid JSON: ") + simdjson::error_message(code));
}

}  // namespace

Result<element> parse(std::string_view text, Padding padding, simdjson::dom::parser& parser) {
  if (text.empty()) return Error(ErrorCode::corrupt, "not valid JSON: it is empty");
  if (!surrogates_are_paired(text)) {
    return Error(ErrorCode::corrupt, "not valid JSON: a \\u escape of a lone surrogate");
  }
  element root;
  simdjson::error_code error = simdjson::NUMBER_ERROR;
  if (!may_have_negative_zero(text)) error = parse_bounded(parser, text, padding, root);
  if (error == simdjson::NUMBER_ERROR) {
    std::string rewritten(text);
    rewrite_odd_integers(rewritten);
    error = parse_bounded(parser, rewritten, Padding::none, root);
  }
  if (error != simdjson::SUCCESS) return parse_error(error);
  return root;
}

bool read_integer(element item, std::uint64_t& value) {
  return item.get(value) == simdjson::SUCCESS;
}

void append_string(std::string& out, std::string_view text) {
  out += '"';
  std::size_t plain = 0;  // where the characters begin that need no escape and are not yet in `out`
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text, plain, i - plain);
    append_escape(out, c);
    plain = i + 1;
  }
  out.append(text, plain);
  out += '"';
}

std::string quoted(std::string_view text) {
  std::size_t length = std::min(text.size(), kQuotedBytesMax);
  while (length < text.size() && length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) --length;
  std::string out;
  append_string(out, text.substr(0, length));
  if (length < text.size()) out.insert(out.size() - 1, "...");
  return out;
}

}  // namespace infercluster::safetensors::json
