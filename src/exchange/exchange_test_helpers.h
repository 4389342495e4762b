// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/fd.h"
#include "exchange/directory_store.h"
#include "exchange/store.h"

namespace infercluster::exchange {

// A store for the threads of one process.
class MemoryStore final : public Store {
 public:
  Status set(const std::string& key, std::string_view value, Deadline) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return {};
  }
  Result<std::optional<std::string>> get(const std::string& key, Deadline until) override {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, until, [&] { return values_.contains(key); });
    const auto found = values_.find(key);
    return found == values_.end() ? std::optional<std::string>() : found->second;
  }
  Result<std::string> set_if_absent(const std::string& key, std::string_view value, Deadline) override {
    const std::lock_guard lock(mutex_);
    const auto [it, inserted] = values_.try_emplace(key, value);
    if (inserted) changed_.notify_all();
    return it->second;
  }
  void erase(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    values_.erase(key);
  }
  [[nodiscard]] std::vector<std::string> keys() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> keys;
    for (const auto& [key, value] : values_) keys.push_back(key);
    return keys;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

// Runs body(rank) for each rank in a thread of its own, started in the order of `order`.
inline void run_ranks(const std::vector<int>& order, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(order.size());
  for (const int rank : order) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

inline std::vector<int> ranks_of(int world) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world; ++rank) ranks.push_back(rank);
  return ranks;
}

// A rank as a process. `body` says lines through `say`; the parent reads them in turn, and an empty line at the end.
class RankProcess {
 public:
  using Say = std::function<void(const std::string&)>;
  explicit RankProcess(const std::function<void(const Say&)>& body) {
    std::array<int, 2> ends{};
    IC_ASSERT(::pipe(ends.data()) == 0);
    process_ = ::fork();
    IC_ASSERT(process_ >= 0);
    if (process_ == 0) {
      ::close(ends[0]);
      body([&](const std::string& line) {
        const std::string text = line + "\n";
        IC_ASSERT(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
      });
      ::_exit(0);
    }
    ::close(ends[1]);
    from_child_ = Fd(ends[0]);
  }
  RankProcess(RankProcess&& other) noexcept
      : process_(std::exchange(other.process_, -1)), from_child_(std::move(other.from_child_)) {}
  RankProcess& operator=(RankProcess&&) = delete;
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  ~RankProcess() {
    if (process_ < 0) return;
    signal(SIGKILL);
    while (::waitpid(process_, nullptr, 0) < 0) IC_ASSERT(errno == EINTR);
  }

  std::string line() {
    std::string text;
    for (char c = 0; ::read(from_child_.get(), &c, 1) == 1 && c != '\n';) text += c;
    return text;
  }
  void wait_until_stopped() const {
    int status = 0;
    while (::waitpid(process_, &status, WUNTRACED) < 0) IC_ASSERT(errno == EINTR);
    IC_ASSERT(WIFSTOPPED(status));
  }
  void signal(int number) const { IC_ASSERT(::kill(process_, number) == 0); }

 private:
  pid_t process_;
  Fd from_child_;
};

}  // namespace infercluster::exchange
