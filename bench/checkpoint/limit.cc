// SPDX-License-Identifier: Apache-2.0
// What a checkpoint of host memory is measured against. Prints one JSON object.
//
// usage: checkpoint_limit copy BYTES ROUNDS THREADS...   the fastest parallel memcpy of so many bytes, out of many
//          allocations as a state has them, into warm memory in huge pages: seconds of each round, by number of threads
//        checkpoint_limit write FILE BYTES BLOCK THREADS  the same bytes from huge pages, direct, then fsync of the
//        file
//          and of its directory
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kHuge = std::size_t{2} << 20;
constexpr std::size_t kTensor = std::size_t{64} << 20;
constexpr std::size_t kStep = std::size_t{4} << 20;

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

char* huge_memory(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  std::size_t space = bytes + kHuge;
  char* aligned = static_cast<char*>(std::align(kHuge, bytes, memory, space));
  madvise(aligned, bytes, MADV_HUGEPAGE);
  std::memset(aligned, 1, bytes);
  return aligned;
}

template <typename Work>
void in_parallel(unsigned threads, const Work& work) {
  std::vector<std::thread> helpers;
  for (unsigned i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
}

int copy(std::size_t bytes, int rounds, const std::vector<unsigned>& thread_counts) {
  std::vector<char*> sources;
  for (std::size_t at = 0; at < bytes; at += kTensor) {
    sources.push_back(static_cast<char*>(std::malloc(kTensor)));
    std::memset(sources.back(), 2, kTensor);
  }
  char* to = huge_memory(bytes);
  std::printf("{\"bytes\": %zu, \"seconds\": {", bytes);
  for (std::size_t k = 0; k < thread_counts.size(); ++k) {
    std::printf("%s\"%u\": [", k > 0 ? ", " : "", thread_counts[k]);
    for (int round = 0; round < rounds; ++round) {
      std::atomic<std::size_t> next{0};
      const auto begin = std::chrono::steady_clock::now();
      in_parallel(thread_counts[k], [&] {
        for (std::size_t at = next.fetch_add(kStep); at < bytes; at = next.fetch_add(kStep))
          std::memcpy(to + at, sources[at / kTensor] + at % kTensor, std::min(kStep, bytes - at));
      });
      std::printf("%s%.6f", round > 0 ? ", " : "", seconds_since(begin));
    }
    std::printf("]");
  }
  std::printf("}}\n");
  return 0;
}

int write_file(const std::string& path, std::size_t bytes, std::size_t block, unsigned threads) {
  const char* memory = huge_memory(bytes);
  const auto begin = std::chrono::steady_clock::now();
  const int file = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_DIRECT | O_CLOEXEC, 0644);
  if (file < 0) fail(path.c_str());
  if (posix_fallocate(file, 0, static_cast<off_t>(bytes)) != 0) fail("posix_fallocate");
  std::atomic<std::size_t> next{0};
  in_parallel(threads, [&] {
    for (std::size_t at = next.fetch_add(block); at < bytes; at = next.fetch_add(block)) {
      const std::size_t length = std::min(block, bytes - at);
      if (pwrite(file, memory + at, length, static_cast<off_t>(at)) != static_cast<ssize_t>(length)) fail("pwrite");
    }
  });
  if (fsync(file) != 0 || close(file) != 0) fail("fsync");
  const int directory = open(path.substr(0, path.rfind('/')).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0 || fsync(directory) != 0) fail("fsync of the directory");
  std::printf("{\"bytes\": %zu, \"seconds\": %.6f}\n", bytes, seconds_since(begin));
  return unlink(path.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() >= 4 && words[0] == "copy") {
    std::vector<unsigned> threads;
    for (std::size_t i = 3; i < words.size(); ++i) threads.push_back(static_cast<unsigned>(std::stoul(words[i])));
    return copy(std::stoull(words[1]), std::stoi(words[2]), threads);
  }
  if (words.size() == 5 && words[0] == "write")
    return write_file(words[1], std::stoull(words[2]), std::stoull(words[3]),
                      static_cast<unsigned>(std::stoul(words[4])));
  std::fprintf(stderr, "usage: see the head of bench/checkpoint/limit.cc\n");
  return 2;
}
