// SPDX-License-Identifier: Apache-2.0
// What all exported functions begin with: count the call, ask the plan whether it fails, find the context.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "testing/gpu_double/counters.h"
#include "testing/gpu_double/driver.h"

namespace infercluster::gpu_double {

inline std::optional<CuResult> injected(std::string_view call) {
  const auto fault = fault_plan().on_call(call);
  if (!fault) return std::nullopt;
  return fault->kind == Fault::Kind::kCuda ? static_cast<CuResult>(fault->code) : CuResult::unknown;
}

// body(driver), unless the plan has it fail or cuInit is missing.
template <typename Body>
CuResult call(std::string_view name, Body body) {
  Driver& driver = Driver::instance();
  if (const auto error = injected(name)) return *error;
  if (!driver.initialized) return CuResult::not_initialized;
  return body(driver);
}

// body(driver, context) with the calling thread's context, which must be sound.
template <typename Body>
CuResult call_in_context(std::string_view name, Body body) {
  return call(name, [&](Driver& driver) {
    std::shared_ptr<Context> context;
    const CuResult usable = driver.current(context);
    return usable == CuResult::success ? body(driver, context) : usable;
  });
}

// A call that releases something or waits: it does so even when it fails, for a fault of the plan or of its context.
template <typename Body>
CuResult call_regardless(std::string_view name, Body body) {
  Driver& driver = Driver::instance();
  const auto error = injected(name);
  if (!driver.initialized) return CuResult::not_initialized;
  const CuResult result = body(driver);
  return error ? *error : result;
}

// A wait in the calling thread's context.
template <typename Body>
CuResult wait_in_context(std::string_view name, Body body) {
  return call_regardless(name, [&](Driver& driver) {
    std::shared_ptr<Context> context;
    const CuResult usable = driver.current(context);
    return context == nullptr ? usable : body(driver, context);
  });
}

// A release. One without a current context is a mistake that goes without consequence here: only after an injected
// fault it may be the best that a program can do.
template <typename Body>
CuResult release(std::string_view name, Body body) {
  return call_regardless(name, [&](Driver& driver) {
    std::shared_ptr<Context> context;
    const CuResult usable = driver.current(context);
    if (context == nullptr && counters().faults_injected == 0) {
      count_violation(std::string(name) + " without a current context");
    }
    const CuResult result = body(driver);
    return result == CuResult::success ? usable : result;
  });
}

}  // namespace infercluster::gpu_double
