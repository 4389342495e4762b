// SPDX-License-Identifier: Apache-2.0
// What the engine's tests share: a pattern file, sources over it, and an engine on a backend with faults.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "io/engine.h"
#include "os/file.h"
#include "testing/fault_backend.h"
#include "testing/manual_clock.h"
#include "testing/pattern.h"
#include "testing/temp_dir.h"

namespace infercluster::io {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A file read as it is, without FileSource's policies.
class PlainSource final : public Source {
 public:
  void open(const std::string& path, std::string name) {
    file_ = os::open_for_reading(path).value();
    name_ = std::move(name);
    size_ = os::identity_of(file_).value().size;
  }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::uint64_t size() const override { return size_; }
  [[nodiscard]] std::uint32_t alignment() const override { return alignment_; }
  std::optional<ReadOperation> operation(const Attempt& attempt) override {
    return ReadOperation{.fd = file_.get(),
                         .offset = attempt.offset,
                         .memory = attempt.memory,
                         .length = attempt.length,
                         .token = attempt.token};
  }
  ErrorAction on_error(int system_errno) override {
    return system_errno == retry_on_ ? ErrorAction::retry : ErrorAction::fail;
  }
  void set_alignment(std::uint32_t alignment) { alignment_ = alignment; }
  void set_retry_on(int system_errno) { retry_on_ = system_errno; }
  [[nodiscard]] int fd() const { return file_.get(); }

 private:
  Fd file_;
  std::string name_;
  std::uint64_t size_ = 0;
  std::uint32_t alignment_ = 1;
  int retry_on_ = 0;
};

struct Outcome {
  std::size_t submitted = 0;
  std::size_t delivered = 0;
  std::size_t quiesced = 0;
  std::map<std::uint64_t, Error> errors;                // by token
  std::map<std::uint64_t, std::uint32_t> source_index;  // by token
};

inline std::string backend_name(const ::testing::TestParamInfo<BackendChoice>& tested) {
  return tested.param == BackendChoice::uring ? "Uring" : "Threads";
}

class EngineFixture : public ::testing::TestWithParam<BackendChoice> {
 protected:
  static constexpr std::uint64_t kBlock = 64 * kKiB;
  static constexpr std::uint64_t kFileBytes = 20 * kBlock + 12345;

  EngineFixture() : memory_(21 * kBlock) {}

  void SetUp() override {
    if (GetParam() == BackendChoice::uring && !probe_uring().ok()) GTEST_SKIP() << probe_uring().error().to_string();
    path_ = directory_.write("data", testing::pattern_text(kFileBytes));
    source_.open(path_, path_);
    second_.open(path_, "second");
    third_.open(path_, "third");
  }
  void TearDown() override { close(); }

  Engine& open(unsigned depth, testing::FaultBackend::Plan plan = nullptr, const Engine::Options& options = {}) {
    close();
    auto inner = std::move(open_backend({.choice = GetParam(), .depth = depth})).value().backend;
    auto faults = std::make_unique<testing::FaultBackend>(std::move(inner), std::move(plan));
    faults_ = faults.get();
    engine_ = std::make_unique<Engine>(std::move(faults), clock_, options);
    return *engine_;
  }
  void close() {
    if (engine_ != nullptr && faults_->held() > 0) faults_->release_all();
    engine_.reset();
    faults_ = nullptr;
  }

  Transfer transfer_of(std::uint64_t offset, std::uint32_t length, std::uint64_t token) {
    Transfer transfer;
    transfer.token = token;
    transfer.sources = &sources_;
    transfer.offset = offset;
    transfer.length = length;
    transfer.end_of_data = std::min(kFileBytes, offset + length);
    transfer.memory = memory_.data() + offset;
    return transfer;
  }
  std::vector<Transfer> whole_file() {
    std::vector<Transfer> all;
    for (std::uint64_t offset = 0; offset < kFileBytes; offset += kBlock)
      all.push_back(transfer_of(offset, kBlock, offset / kBlock));
    return all;
  }
  [[nodiscard]] static std::size_t transfers_of_file() { return 21; }
  bool bytes_are_right() { return testing::first_difference(memory_.span(0, kFileBytes), 0) == kFileBytes; }

  static void take(Outcome& outcome, std::set<std::uint64_t>& delivered, Event& event) {
    if (event.kind == Event::Kind::delivered) {
      ++outcome.delivered;
      EXPECT_TRUE(delivered.insert(event.token).second) << "delivered twice: " << event.token;
      outcome.source_index[event.token] = event.source_index;
      if (event.error) outcome.errors.emplace(event.token, *std::move(event.error));
    } else {
      ++outcome.quiesced;
      EXPECT_EQ(delivered.erase(event.token), 1u) << "quiesced before delivery, or twice: " << event.token;
    }
  }

  // Submits everything as room allows and polls until the engine is quiescent; the clock moves on by `tick` per poll,
  // so that retries come due. After `cancel_after` events: cancels, and submits no more.
  Outcome run_all(Engine& engine, const std::vector<Transfer>& all, Clock::Duration tick = milliseconds(20),
                  std::size_t cancel_after = SIZE_MAX) {
    Outcome outcome;
    std::set<std::uint64_t> delivered;
    std::size_t seen = 0;
    bool cancelled = false;
    while (outcome.submitted < all.size() || engine.active() > 0) {
      while (!cancelled && outcome.submitted < all.size() && engine.submit(all[outcome.submitted])) ++outcome.submitted;
      if (!cancelled && seen >= cancel_after) {
        engine.cancel();
        cancelled = true;
      }
      if (cancelled && engine.active() == 0) break;
      std::array<Event, 1> events;
      if (engine.poll(events, milliseconds(50)) == 1) {
        ++seen;
        take(outcome, delivered, events[0]);
      }
      clock_.advance(tick);
    }
    return outcome;
  }

  // Polls until `count` more transfers are quiescent. Transfers that were delivered before are welcome.
  Outcome drain(Engine& engine, unsigned count) {
    Outcome outcome;
    std::set<std::uint64_t> delivered;
    while (outcome.quiesced < count) {
      std::array<Event, 1> events;
      if (engine.poll(events, seconds(1)) == 0) continue;
      if (events[0].kind == Event::Kind::quiesced) delivered.insert(events[0].token);
      take(outcome, delivered, events[0]);
    }
    return outcome;
  }

  testing::TempDir directory_;
  std::string path_;
  PlainSource source_;
  PlainSource second_;
  PlainSource third_;
  SourceSet sources_{&source_};
  testing::AlignedMemory memory_;
  testing::ManualClock clock_;
  testing::FaultBackend* faults_ = nullptr;
  std::unique_ptr<Engine> engine_;
};

}  // namespace infercluster::io
