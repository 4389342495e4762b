// SPDX-License-Identifier: Apache-2.0
// What the model of bench/scale/model.py is held against, on this machine; a line of JSON each.
//   scale_runs probe DIRECTORY MIB         bare speeds: memory copy, CRC32C, direct writes and reads, fsync
//   scale_runs run DIRECTORY RANKS MIB     a checkpoint of MIB, saved and restored by so many processes
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>
#include <vector>

#include "base/assert.h"
#include "base/log.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/restore.h"
#include "checksum/crc32c.h"
#include "exchange/directory_store.h"

namespace infercluster::scale {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kWriteBytes = 8 * kMiB;  // of the checkpointer's requests
constexpr std::uint64_t kReadBytes = 4 * kMiB;
constexpr unsigned kManyThreads = 8;
constexpr auto kAmple = std::chrono::minutes(5);

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "scale_runs: %s\n", what.c_str());
  std::exit(1);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Populated, in huge pages where there are any.
std::span<std::byte> memory_of(std::uint64_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("no memory");
  (void)::madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 0x5A, bytes);
  return {static_cast<std::byte*>(memory), bytes};
}

enum class Way : std::uint8_t { write, read };

// Bytes per second of direct requests, `threads` at once.
double rate_of(int file, Way way, std::span<std::byte> memory, unsigned threads) {
  const std::uint64_t each = way == Way::write ? kWriteBytes : kReadBytes;
  std::atomic<std::uint64_t> next{0};
  const double begin = now();
  std::vector<std::thread> workers;
  for (unsigned i = 0; i < threads; ++i) {
    workers.emplace_back([&] {
      for (std::uint64_t at = next.fetch_add(each); at < memory.size(); at = next.fetch_add(each)) {
        const auto offset = static_cast<off_t>(at);
        const ssize_t moved = way == Way::write ? ::pwrite(file, memory.data() + at, each, offset)
                                                : ::pread(file, memory.data() + at, each, offset);
        if (moved != static_cast<ssize_t>(each)) fail("a direct request came up short");
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  return static_cast<double>(memory.size()) / (now() - begin);
}

// Bytes per second of a copy by all processors.
double copy_rate(std::span<const std::byte> from, std::span<std::byte> to) {
  const std::uint64_t threads = std::max(1U, std::thread::hardware_concurrency());
  const std::uint64_t each = from.size() / threads;
  const double begin = now();
  std::vector<std::thread> workers;
  for (std::uint64_t i = 0; i < threads; ++i)
    workers.emplace_back([=] { std::memcpy(to.data() + i * each, from.data() + i * each, each); });
  for (std::thread& worker : workers) worker.join();
  return static_cast<double>(each * threads) / (now() - begin);
}

double sync_seconds(int file) {
  const double begin = now();
  if (::fsync(file) != 0) fail("fsync failed");
  return now() - begin;
}

int probe(const std::string& directory, std::uint64_t bytes) {
  const std::span<std::byte> memory = memory_of(bytes);
  const std::span<std::byte> other = memory_of(bytes);
  const double copy = copy_rate(memory, other);
  double begin = now();
  const std::uint32_t crc = checksum::crc32c(memory);
  const double checksum = static_cast<double>(bytes) / (now() - begin);
  const std::string path = directory + "/probe";
  Json found{{"probe", true}, {"crc", crc}, {"copy", copy}, {"checksum", checksum}};
  // A fresh file each time, as a segment is.
  for (const auto& [threads, name] : {std::pair{kManyThreads, "many"}, std::pair{1U, "one"}}) {
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0644);
    if (file < 0 || ::posix_fallocate(file, 0, static_cast<off_t>(bytes)) != 0) fail("cannot make " + path);
    found[std::string("write_") + name] = rate_of(file, Way::write, memory, threads);
    found[std::string("sync_s_") + name] = sync_seconds(file);
    found[std::string("read_") + name] = rate_of(file, Way::read, other, threads);
    ::close(file);
    std::filesystem::remove(path);
  }
  // What a small file costs: created, written, made durable.
  begin = now();
  const int small = ::open((path + ".small").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (small < 0 || ::write(small, "x", 1) != 1) fail("cannot write a small file");
  (void)sync_seconds(small);
  found["small_file_s"] = now() - begin;
  ::close(small);
  std::filesystem::remove(path + ".small");
  std::printf("%s\n", found.dump().c_str());
  return 0;
}

struct Work {
  std::string directory;
  std::uint64_t ranks = 1;
  std::uint64_t bytes = 0;
};

checkpoint::Piece piece_of(const Work& work, std::uint64_t rank) {
  auto mesh = checkpoint::Mesh::regular({work.ranks}, 0, {1});
  checkpoint::Piece piece{
      "state",
      safetensors::Dtype::u8,
      {work.bytes / kMiB, kMiB},
      {},
      checkpoint::Sharding{std::make_shared<const checkpoint::Mesh>(std::move(mesh).value()), {{0, 0}}}};
  piece.box = shard_box(*piece.sharding, piece.shape, rank);
  return piece;
}

// One rank's process. Says a line of JSON.
void be_rank(const Work& work, std::uint64_t rank, int into) {
  const auto member = exchange::Member{static_cast<int>(rank), static_cast<int>(work.ranks)};
  auto ranks = exchange::open_in_directory(work.directory, "meeting", member, exchange::deadline_in(kAmple));
  if (!ranks.ok()) fail(ranks.error().to_string());
  const auto meet = [&](const char* where) {
    const Status met = (*ranks)->agree(where, "", exchange::deadline_in(kAmple));
    if (!met.ok()) fail(met.error().to_string());
  };
  const checkpoint::Piece piece = piece_of(work, rank);
  const std::span<std::byte> memory = memory_of(*check_piece(piece));
  checkpoint::Options options;
  options.retention.keep = 0;
  options.exchange = ranks->get();
  auto checkpointer = checkpoint::Checkpointer::open(work.directory, options);
  if (!checkpointer.ok()) fail(checkpointer.error().to_string());
  checkpoint::State state;
  state.pieces.push_back({piece, memory.data()});
  Json found;
  constexpr int kRounds = 20;
  meet("rounds");
  const double rounds = now();
  for (int i = 0; i < kRounds; ++i) meet("round");
  found["round_s"] = (now() - rounds) / kRounds;
  // The first two bring both generations of the arena into being.
  for (std::uint64_t step = 1; step <= 5; ++step) {
    meet("save");
    const auto saved = (*checkpointer)->save(step, state, {.wait = checkpoint::Wait::until_durable});
    if (!saved.ok()) fail(saved.error().to_string());
    const checkpoint::SaveReport report = (*saved)->report();
    if (step <= 2) continue;
    found["durable"].push_back(report.durable_seconds);
    found["stall"].push_back(report.stall_seconds);
    found["write"].push_back(report.write_seconds);
    found["direct"] = report.direct;
  }
  for (std::uint64_t step = 3; step <= 5; ++step) {
    meet("restore");
    const double begin = now();
    const auto stored = checkpoint::Checkpoint::open(io::system_files(), work.directory, step);
    if (!stored.ok()) fail(stored.error().to_string());
    const checkpoint::Target target{piece, memory.data()};
    const auto report = (*stored)->restore(std::span(&target, 1), {.backend = {}, .direct = io::DirectPolicy::always});
    if (!report.ok()) fail(report.error().to_string());
    found["restore"].push_back(now() - begin);
  }
  const std::string line = found.dump() + "\n";
  if (::write(into, line.data(), line.size()) != static_cast<ssize_t>(line.size())) fail("cannot report");
}

int run(const Work& work) {
  set_log_level(LogLevel::warning);
  int ends[2];
  if (::pipe(ends) != 0) fail("no pipe");
  std::vector<pid_t> children;
  for (std::uint64_t rank = 0; rank < work.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      be_rank(work, rank, ends[1]);
      ::_exit(0);
    }
    children.push_back(child);
  }
  ::close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t count = 0; (count = ::read(ends[0], part, sizeof part)) > 0;)
    text.append(part, static_cast<std::size_t>(count));
  for (const pid_t child : children) {
    int status = 0;
    if (::waitpid(child, &status, 0) != child || status != 0) fail("a rank failed");
  }
  Json lines = Json::array();
  for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
    lines.push_back(Json::parse(text.substr(begin, text.find('\n', begin) - begin)));
  std::printf("%s\n", Json{{"ranks", work.ranks}, {"bytes", work.bytes}, {"of_ranks", lines}}.dump().c_str());
  return 0;
}

int run_program(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  const auto number = [&](int i) { return std::strtoull(arguments[i], nullptr, 10); };
  if (what == "probe" && count == 4) return probe(arguments[2], number(3) * kMiB);
  if (what == "run" && count == 5) return run({arguments[2], number(3), number(4) * kMiB});
  fail("usage: probe DIRECTORY MIB, or run DIRECTORY RANKS MIB");
}

}  // namespace
}  // namespace infercluster::scale

int main(int count, char** arguments) {
  return infercluster::scale::run_program(count, arguments);
}
