// SPDX-License-Identifier: Apache-2.0
// What all kinds of exchange share: their arguments' limits, causes and their text as bytes. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "exchange/exchange.h"

namespace infercluster::exchange {

// At most this many bytes has an encoded cause.
inline constexpr std::size_t kCauseBytesMax = 8192;

// Errors: invalid_argument (the tag), too_large (the bytes).
Status check_arguments(std::string_view tag, std::uint64_t bytes, std::uint64_t bytes_max);

// What messages call a rank. `in_job`: as Member has it.
int called(const std::vector<int>& in_job, int rank);

// `error` as all ranks will show it: "rank N: " before its message, texts cut.
Cause cause_of(int rank, const Error& error, std::uint64_t bytes);

// For nested() with a number below `next`.
Error number_error(std::uint64_t number, std::uint64_t next);

std::string encode_cause(const Cause& cause);
// Errors: corrupt.
Result<Cause> decode_cause(std::string_view bytes);

}  // namespace infercluster::exchange
