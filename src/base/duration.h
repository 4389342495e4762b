// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string_view>

#include "base/result.h"

namespace infercluster {

// "20ms", "1.5 s", "500us", "2min" -> nanoseconds. Refuses a number without a unit, signs, and what overflows.
Result<std::chrono::nanoseconds> parse_duration(std::string_view text);

}  // namespace infercluster
