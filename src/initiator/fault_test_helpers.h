// SPDX-License-Identifier: Apache-2.0
// A host that reads through a proxy, from a target in this process.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "initiator/host.h"
#include "target/target.h"
#include "testing/nvme_proxy.h"
#include "testing/temp_dir.h"

namespace infercluster::initiator {

constexpr std::uint8_t kTargetDataType = 0x07;  // C2HData

// Reads under way, and how each of them ended.
class Reads {
 public:
  Reads() = default;
  ~Reads() { EXPECT_TRUE(wait_for_all()); }
  Reads(const Reads&) = delete;
  Reads& operator=(const Reads&) = delete;

  // The read's memory lies here.
  void start(Host& host, std::uint64_t first_block, std::uint32_t blocks,
             std::optional<std::chrono::nanoseconds> deadline = std::nullopt) {
    Read* read = nullptr;
    {
      const std::lock_guard lock(mutex_);
      read = reads_.emplace_back(std::make_unique<Read>()).get();
      read->first_block = first_block;
      read->memory.resize(std::size_t{blocks} * host.block_bytes());
      ++under_way_;
    }
    const Status started = host.start({.first_block = first_block,
                                       .blocks = blocks,
                                       .memory = read->memory,
                                       .done = [this, read](const Status& status) { end(*read, status); },
                                       .deadline = deadline});
    if (!started.ok()) end(*read, started);
  }
  // Longer than anything here takes.
  [[nodiscard]] bool wait_for_all() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return under_way_ == 0; });
  }
  [[nodiscard]] unsigned under_way() const {
    const std::lock_guard lock(mutex_);
    return under_way_;
  }

  struct Read {
    std::uint64_t first_block = 0;
    std::vector<std::byte> memory;
    std::optional<Status> status;
  };
  // After wait_for_all().
  [[nodiscard]] const std::vector<std::unique_ptr<Read>>& all() const { return reads_; }

 private:
  void end(Read& read, const Status& status) {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(read.status.has_value()) << "a read ended twice";
    read.status = status;
    --under_way_;
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  unsigned under_way_ = 0;
  std::vector<std::unique_ptr<Read>> reads_;
};

class FaultTest : public ::testing::Test {
 public:
  ~FaultTest() override { host_.reset(); }

 protected:
  FaultTest() {
    target_ = *target::Target::start({.listen = *os::parse_socket_address("127.0.0.1:0")});
    content_.resize(4 << 20);
    std::minstd_rand random(7);
    for (char& c : content_) c = static_cast<char>(random());
    mapping_ = *target_->add(directory_.write("object", content_));
    proxy_ = std::make_unique<testing::NvmeProxy>(target_->address(), nullptr, testing::NvmeProxy::Options{});
    options_.backoff.first = std::chrono::milliseconds(1);
    options_.silence_max = std::chrono::seconds(10);
    options_.read_deadline = std::chrono::seconds(30);
  }

  Url url() const { return {.address = proxy_->address(), .nqn = target_->subsystem().nqn, .nsid = 1}; }
  void connect() {
    host_.reset();
    Result<std::unique_ptr<Host>> host = Host::connect(url(), options_);
    EXPECT_TRUE(host.ok()) << host.error().to_string();
    host_ = *std::move(host);
  }
  bool right(const Reads::Read& read) const {
    const std::uint64_t at = (read.first_block - mapping_.first_block) * target::kBlockBytes;
    return std::equal(read.memory.begin(), read.memory.end(),
                      std::as_bytes(std::span(content_)).begin() + static_cast<std::ptrdiff_t>(at));
  }
  void expect_all_right(Reads& reads) const {
    ASSERT_TRUE(reads.wait_for_all());
    for (const auto& read : reads.all()) {
      ASSERT_TRUE(read->status->ok()) << read->status->error().to_string();
      ASSERT_TRUE(right(*read)) << "at block " << read->first_block;
    }
  }
  // `depth` reads of `blocks`, all over the object.
  void start(Reads& reads, unsigned depth, std::uint32_t blocks) {
    const std::uint64_t places = content_.size() / target::kBlockBytes / blocks;
    for (unsigned i = 0; i < depth; ++i) reads.start(*host_, mapping_.first_block + i % places * blocks, blocks);
  }
  void expect_reads_right(unsigned depth = 1, std::uint32_t blocks = 16) {
    Reads reads;
    start(reads, depth, blocks);
    expect_all_right(reads);
  }

  testing::TempDir directory_;
  std::unique_ptr<target::Target> target_;
  std::string content_;
  target::Mapping mapping_;
  std::unique_ptr<testing::NvmeProxy> proxy_;
  HostOptions options_;
  std::unique_ptr<Host> host_;
};

}  // namespace infercluster::initiator
