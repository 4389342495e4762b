// SPDX-License-Identifier: Apache-2.0
// IC_ASSERT: for programmer errors only, on in release builds. Operating errors are values (base/result.h).
#pragma once

namespace infercluster {

// Prints the expression and its place to stderr, then aborts.
[[noreturn]] void assert_failed(const char* expression, const char* file, int line);

}  // namespace infercluster

#define IC_ASSERT(expression) \
  (static_cast<bool>(expression) ? void(0) : ::infercluster::assert_failed(#expression, __FILE__, __LINE__))
