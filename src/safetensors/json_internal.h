// SPDX-License-Identifier: Apache-2.0
// JSON by the rules that the reference implementation's parser keeps, with simdjson underneath. Internal to this
// module.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace infercluster::safetensors::json {

inline constexpr std::size_t kDepthMax = 127;  // containers within each other

// Parses and validates all of `text`. The element lives as long as `parser`, and until its next use. Where simdjson and
// the reference's parser differ, the reference wins: lone surrogates in \u escapes are refused; integers beyond 64 bits
// and -0 are numbers, but not integers. Errors: corrupt (without a kind), out_of_memory.
// Padding::readable: simdjson::SIMDJSON_PADDING bytes after the text may be read; else it is copied.
enum class Padding : std::uint8_t { none, readable };
Result<simdjson::dom::element> parse(std::string_view text, Padding padding, simdjson::dom::parser& parser);

// A non-negative integer of 64 bits; a float is none, whatever its value.
bool read_integer(simdjson::dom::element element, std::uint64_t& value);

// Appends `text` as a JSON string, as compact writers do: raw UTF-8, "/" not escaped, control characters as \n or
// \u001f.
void append_string(std::string& out, std::string_view text);

// `text` as a JSON string for a message: a hostile name can neither break the line nor fill the screen.
std::string quoted(std::string_view text);

}  // namespace infercluster::safetensors::json
