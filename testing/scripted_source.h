// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "io/source.h"

namespace infercluster::testing {

// A source that has no descriptor: every attempt waits until the test completes it, from whatever thread the test
// likes. Thread-safe.
class ScriptedSource final : public io::Source {
 public:
  struct Options {
    bool abortable = false;
  };
  ScriptedSource(std::string name, std::vector<std::byte> content, Options options)
      : name_(std::move(name)), content_(std::move(content)), options_(options) {}

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::uint64_t size() const override { return content_.size(); }
  std::optional<io::ReadOperation> operation(const io::Attempt&) override { return std::nullopt; }
  [[nodiscard]] bool abortable() const override { return options_.abortable; }

  void start(const io::Attempt& attempt, const io::AttemptDone& done) override {
    const std::lock_guard lock(mutex_);
    ++started_;
    pending_.push_back({attempt, &done});
  }

  void abort(std::uint64_t token) override {
    Pending taken;
    {
      const std::lock_guard lock(mutex_);
      const auto found =
          std::find_if(pending_.begin(), pending_.end(), [&](const Pending& p) { return p.attempt.token == token; });
      if (found == pending_.end()) return;  // its completion is on the way
      taken = *found;
      pending_.erase(found);
      ++aborted_;
    }
    (*taken.done)(token, -ECANCELED);
  }

  [[nodiscard]] std::size_t pending() const {
    const std::lock_guard lock(mutex_);
    return pending_.size();
  }
  [[nodiscard]] std::size_t started() const {
    const std::lock_guard lock(mutex_);
    return started_;
  }
  [[nodiscard]] std::size_t aborted() const {
    const std::lock_guard lock(mutex_);
    return aborted_;
  }
  [[nodiscard]] io::Attempt attempt(std::size_t position) const {
    const std::lock_guard lock(mutex_);
    IC_ASSERT(position < pending_.size());
    return pending_[position].attempt;
  }

  // Completes the attempt at `position` (0: the oldest) with its bytes, `most` of them at most.
  void complete(std::size_t position, std::uint32_t most = UINT32_MAX) {
    IC_ASSERT(finish(position, [&](const io::Attempt& attempt) { return copy(attempt, most); }));
  }
  void fail(std::size_t position, int system_errno) {
    IC_ASSERT(finish(position, [&](const io::Attempt&) { return std::int64_t{-system_errno}; }));
  }
  // The same for the oldest, if there is one: for tests whose threads race with abort().
  void try_complete(std::uint32_t most) {
    finish(0, [&](const io::Attempt& attempt) { return copy(attempt, most); });
  }
  void try_fail(int system_errno) {
    finish(0, [&](const io::Attempt&) { return std::int64_t{-system_errno}; });
  }

 private:
  struct Pending {
    io::Attempt attempt;
    const io::AttemptDone* done = nullptr;
  };

  std::int64_t copy(const io::Attempt& attempt, std::uint32_t most) const {
    const std::uint64_t left = attempt.offset < content_.size() ? content_.size() - attempt.offset : 0;
    const std::size_t count = std::min({left, std::uint64_t{attempt.length}, std::uint64_t{most}});
    if (count > 0) std::memcpy(attempt.memory, content_.data() + attempt.offset, count);
    return static_cast<std::int64_t>(count);
  }

  template <typename Read>
  bool finish(std::size_t position, const Read& read) {
    Pending taken;
    std::int64_t result = 0;
    {
      const std::lock_guard lock(mutex_);  // over the copy too: abort() must not return amid it
      if (position >= pending_.size()) return false;
      taken = pending_[position];
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(position));
      result = read(taken.attempt);
    }
    (*taken.done)(taken.attempt.token, result);
    return true;
  }

  const std::string name_;
  const std::vector<std::byte> content_;
  const Options options_;
  mutable std::mutex mutex_;
  std::vector<Pending> pending_;  // guarded by mutex_
  std::size_t started_ = 0;       // guarded by mutex_
  std::size_t aborted_ = 0;       // guarded by mutex_
};

}  // namespace infercluster::testing
