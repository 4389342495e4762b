// SPDX-License-Identifier: Apache-2.0
// What an inference server's reads see: random direct reads of 128 KiB to 1 MiB, arriving at a fixed pace however long
// the earlier ones take. A read's latency counts from when it was due. Tells drains of its target, as a server would.
// Prints one JSON object.
//
// usage: interference_foreground FILE READS_PER_SECOND SECONDS TARGET_US    0: it has no target yet, and tells nobody
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "io/foreground_latency.h"

namespace infercluster {
namespace {

constexpr std::array<std::size_t, 4> kSizes{std::size_t{128} << 10, std::size_t{256} << 10, std::size_t{512} << 10,
                                            std::size_t{1} << 20};
constexpr std::size_t kLargest = kSizes.back();
constexpr unsigned kThreads = 32;  // reads at once, far more than the pace needs

[[noreturn]] void fail(const std::string& what) {
  std::perror(what.c_str());
  std::exit(1);
}

struct Load {
  int file = -1;
  std::uint64_t blocks = 0;  // of kLargest
  Clock::Duration pace{};
  std::uint64_t reads = 0;
  Clock::TimePoint begin;
  io::ForegroundLatency* told = nullptr;
  std::atomic<std::uint64_t> next{0};
  std::vector<Clock::Duration> latencies;  // of each read
};

void work(Load& load) {
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(4096, kLargest), &std::free);
  while (true) {
    const std::uint64_t number = load.next++;
    if (number >= load.reads) return;
    const Clock::TimePoint due = load.begin + static_cast<std::int64_t>(number) * load.pace;
    std::this_thread::sleep_until(due);
    std::mt19937_64 random(number);
    const std::size_t size = kSizes[random() % kSizes.size()];
    const auto offset = static_cast<off_t>(random() % load.blocks * kLargest);
    if (::pread(load.file, memory.get(), size, offset) != static_cast<ssize_t>(size)) fail("pread");
    const Clock::TimePoint now = steady_clock().now();
    load.latencies[number] = now - due;
    if (load.told != nullptr) load.told->add(now, now - due);
  }
}

double at(const std::vector<Clock::Duration>& sorted, double share) {
  const auto index = static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1));
  return std::chrono::duration<double>(sorted[index]).count();
}

int run(const std::string& path, double per_second, double seconds, std::int64_t target_us) {
  Load load;
  load.file = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  struct stat status {};
  if (load.file < 0 || ::fstat(load.file, &status) != 0) fail(path);
  load.blocks = static_cast<std::uint64_t>(status.st_size) / kLargest;
  load.pace = Clock::Duration(static_cast<std::int64_t>(1e9 / per_second));
  load.reads = static_cast<std::uint64_t>(seconds * per_second);
  if (load.blocks == 0 || load.reads == 0) {
    std::fprintf(stderr, "%s: it must hold 1 MiB and more, and there must be reads\n", path.c_str());
    return 1;
  }
  load.latencies.resize(load.reads);
  std::unique_ptr<io::ForegroundLatency> told;
  const std::chrono::microseconds target(target_us);
  if (target_us > 0) {
    auto opened = io::ForegroundLatency::open(io::latency_folder(), target);
    if (!opened.ok()) {
      std::fprintf(stderr, "%s\n", opened.error().to_string().c_str());
      return 1;
    }
    told = std::move(opened).value();
    load.told = told.get();
  }
  load.begin = steady_clock().now();
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back([&load] { work(load); });
  for (std::thread& thread : threads) thread.join();
  const auto late =
      std::count_if(load.latencies.begin(), load.latencies.end(), [target](auto each) { return each > target; });
  std::sort(load.latencies.begin(), load.latencies.end());
  std::printf("{\"reads\": %zu, \"p50_s\": %.6f, \"p99_s\": %.6f, \"p999_s\": %.6f, \"max_s\": %.6f, \"late\": %.6f}\n",
              load.latencies.size(), at(load.latencies, 0.5), at(load.latencies, 0.99), at(load.latencies, 0.999),
              at(load.latencies, 1), static_cast<double>(late) / static_cast<double>(load.reads));
  return 0;
}

}  // namespace
}  // namespace infercluster

int main(int argc, char** argv) {
  if (argc == 5) return infercluster::run(argv[1], std::atof(argv[2]), std::atof(argv[3]), std::atoll(argv[4]));
  std::fprintf(stderr, "usage: see the head of bench/interference/foreground.cc\n");
  return 2;
}
