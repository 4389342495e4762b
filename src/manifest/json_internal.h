// SPDX-License-Identifier: Apache-2.0
// JSON documents that carry a format, a version and their own checksum.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace infercluster::manifest {

using Json = nlohmann::ordered_json;

struct Format {
  std::string_view name;   // the member "format"
  std::string_view shown;  // for messages: "commit record"
};

Error damaged(const Format& format, std::string what);

// Parses, and checks format, version and checksum, in this order.
Result<Json> open_document(std::string_view text, const Format& format);
// `body` begins with format and version (begin_document); appends the checksum.
Json begin_document(const Format& format);
Result<std::string> close_document(Json body, const Format& format);

// Members of an object, or the error that names what is missing or odd.
Result<const Json*> member(const Json& object, const char* key, const Format& format);
Result<std::uint64_t> number_of(const Json& object, const char* key, const Format& format);
Result<std::string> text_of(const Json& object, const char* key, const Format& format);
Result<const Json*> array_of(const Json& object, const char* key, const Format& format);

std::string to_hex(std::uint32_t value);                             // 8 digits
bool parse_hex(std::string_view eight_digits, std::uint32_t& into);  // lower case only
bool is_hex(std::string_view text, std::size_t length);
bool is_plain_name(std::string_view name);  // of a file: not empty, ".", "..", nor with '/' or NUL; 255 bytes at most

}  // namespace infercluster::manifest
