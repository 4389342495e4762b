// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "io/backend.h"

namespace infercluster::testing {

// What becomes of one operation.
struct Fault {
  std::int64_t error = 0;         // -errno: the operation fails with it and is not run
  std::uint32_t length_most = 0;  // not 0: only so many bytes are read (a short read)
  bool hold = false;              // it completes when the test calls release()
};

// A Backend over another one that makes operations fail, come up short, or wait for the test. The plan is asked once
// per operation, in the order of submission, with its number from 0. Like every Backend it belongs to one thread,
// wake() excepted.
class FaultBackend final : public io::Backend {
 public:
  using Plan = std::function<Fault(std::uint64_t number, const io::ReadOperation& operation)>;

  FaultBackend(std::unique_ptr<io::Backend> inner, Plan plan) : inner_(std::move(inner)), plan_(std::move(plan)) {}
  ~FaultBackend() override { IC_ASSERT(held_.empty()); }  // what is held would never finish
  FaultBackend(const FaultBackend&) = delete;
  FaultBackend& operator=(const FaultBackend&) = delete;

  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  [[nodiscard]] unsigned capacity() const override { return inner_->capacity(); }
  [[nodiscard]] unsigned in_flight() const override {
    return inner_->in_flight() + static_cast<unsigned>(held_.size() + ready_.size());
  }

  [[nodiscard]] bool submit(const io::ReadOperation& operation) override {
    if (in_flight() >= capacity()) return false;
    const Fault fault = plan_ ? plan_(submitted_, operation) : Fault{};
    ++submitted_;
    io::ReadOperation changed = operation;
    if (fault.length_most != 0) changed.length = std::min(operation.length, fault.length_most);
    if (fault.hold) {
      held_.push_back(Held{changed, fault.error});
      return true;
    }
    return pass_on(Held{changed, fault.error});
  }

  std::size_t wait(std::span<io::OperationResult> results, std::chrono::nanoseconds timeout) override {
    std::size_t count = 0;
    while (count < results.size() && !ready_.empty()) {
      results[count++] = ready_.front();
      ready_.pop_front();
    }
    if (count == results.size()) return count;
    return count + inner_->wait(results.subspan(count), count > 0 ? std::chrono::nanoseconds::zero() : timeout);
  }

  void wake() override { inner_->wake(); }

  [[nodiscard]] std::uint64_t submitted() const { return submitted_; }
  [[nodiscard]] std::size_t held() const { return held_.size(); }
  // The operation that is held at `position` (0: the oldest) goes on; any order makes completions out of order.
  void release(std::size_t position) {
    IC_ASSERT(position < held_.size());
    const Held held = held_[position];
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(position));
    IC_ASSERT(pass_on(held));
  }
  void release_all() {
    while (!held_.empty()) release(0);
  }
  // From here on nothing is held or fails.
  void stop_faults() { plan_ = nullptr; }

 private:
  struct Held {
    io::ReadOperation operation;
    std::int64_t error = 0;
  };

  bool pass_on(const Held& held) {
    if (held.error == 0) return inner_->submit(held.operation);
    ready_.push_back({.token = held.operation.token, .result = held.error});
    inner_->wake();
    return true;
  }

  std::unique_ptr<io::Backend> inner_;
  Plan plan_;
  std::uint64_t submitted_ = 0;
  std::vector<Held> held_;
  std::deque<io::OperationResult> ready_;
};

}  // namespace infercluster::testing
