// SPDX-License-Identifier: Apache-2.0
// IC_ASSERT, and IC_FAIL where control must not come: for programmer errors only, on in release builds. Operating
// errors are values (base/result.h).
#pragma once

namespace infercluster {

// Prints the expression and its place to stderr, then aborts.
[[noreturn]] void assert_failed(const char* expression, const char* file, int line);

}  // namespace infercluster

#define IC_ASSERT(expression) \
  (static_cast<bool>(expression) ? void(0) : ::infercluster::assert_failed(#expression, __FILE__, __LINE__))
#define IC_FAIL(text) ::infercluster::assert_failed(text, __FILE__, __LINE__)
