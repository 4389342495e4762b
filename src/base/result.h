// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>
#include <variant>

#include "base/assert.h"
#include "base/error.h"

namespace infercluster {

// A value, or the error that prevented it. Asking for the one that is not there aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  [[nodiscard]] const T& value() const& {
    IC_ASSERT(ok());
    return std::get<0>(state_);
  }
  [[nodiscard]] T& value() & {
    IC_ASSERT(ok());
    return std::get<0>(state_);
  }
  [[nodiscard]] T&& value() && {
    IC_ASSERT(ok());
    return std::get<0>(std::move(state_));
  }
  [[nodiscard]] const Error& error() const& {
    IC_ASSERT(!ok());
    return std::get<1>(state_);
  }
  [[nodiscard]] Error&& error() && {
    IC_ASSERT(!ok());
    return std::get<1>(std::move(state_));
  }

  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }

 private:
  std::variant<T, Error> state_;
};

// Success, or the error.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] const Error& error() const& {
    IC_ASSERT(!ok());
    return std::get<1>(state_);
  }
  [[nodiscard]] Error&& error() && {
    IC_ASSERT(!ok());
    return std::get<1>(std::move(state_));
  }

 private:
  std::variant<std::monostate, Error> state_;
};

using Status = Result<void>;

}  // namespace infercluster

#define IC_CONCAT_(a, b) a##b
#define IC_CONCAT(a, b) IC_CONCAT_(a, b)

// A declaration and a variable's name take no parentheses.
// NOLINTBEGIN(bugprone-macro-parentheses)

// IC_TRY(auto x, f()): declares x as the value of f(), or returns f()'s error from the enclosing function.
#define IC_TRY(declaration, expression) IC_TRY_(declaration, expression, IC_CONCAT(ic_result_, __LINE__))
#define IC_TRY_(declaration, expression, result)      \
  auto result = (expression);                         \
  if (!result.ok()) return std::move(result).error(); \
  declaration = std::move(result).value()

// IC_CHECK(f()): returns the error of a Status (or Result) from the enclosing function.
#define IC_CHECK(expression) IC_CHECK_(expression, IC_CONCAT(ic_status_, __LINE__))
#define IC_CHECK_(expression, status)                   \
  do {                                                  \
    auto status = (expression);                         \
    if (!status.ok()) return std::move(status).error(); \
  } while (false)

// NOLINTEND(bugprone-macro-parentheses)
