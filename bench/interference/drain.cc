// SPDX-License-Identifier: Apache-2.0
// A trainer that does nothing but save: one checkpoint after the other, each scheduled when the one before is staged,
// so that the disk never waits for it; none is removed. Prints "ready", and at each line that it reads one line with
// the bytes that it had written to the device by then; ends with its input.
//
// usage: interference_drain ROOT BYTES free|fixed|governed BYTES_PER_SECOND
//   free: as fast as it can; fixed: at max_write_rate; governed: gives way to the foreground of the node
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/checkpointer.h"

namespace infercluster::checkpoint {
namespace {

constexpr std::uint64_t kTensorBytes = std::uint64_t{16} << 20;

[[noreturn]] void fail(const Error& error) {
  std::fprintf(stderr, "%s\n", error.to_string().c_str());
  std::exit(1);
}

// proc_pid_io(5): that this process caused to be sent to storage.
std::uint64_t bytes_written() {
  std::ifstream in("/proc/self/io");
  std::string key;
  std::uint64_t value = 0;
  while (in >> key >> value) {
    if (key == "write_bytes:") return value;
  }
  std::fprintf(stderr, "/proc/self/io has no write_bytes\n");
  std::exit(1);
}

State state_of(const std::vector<std::vector<std::byte>>& tensors) {
  State state;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    HostPiece piece;
    piece.piece = {
        "layers." + std::to_string(i), safetensors::Dtype::u8, {tensors[i].size()}, {{0}, {tensors[i].size()}}};
    piece.data = tensors[i].data();
    state.pieces.push_back(std::move(piece));
  }
  return state;
}

void save_on(Checkpointer& checkpointer, const State& state, const std::atomic<bool>& stop) {
  for (std::uint64_t step = 1; !stop; ++step) {
    const auto saved = checkpointer.save(step, state, {});
    if (!saved.ok()) fail(saved.error());
  }
}

int run(const std::string& root, std::uint64_t bytes, const std::string& how, std::uint64_t rate) {
  std::vector<std::vector<std::byte>> tensors;
  for (std::uint64_t at = 0; at < bytes; at += kTensorBytes)
    tensors.emplace_back(std::min(kTensorBytes, bytes - at), static_cast<std::byte>(tensors.size() * 37 + 1));
  const State state = state_of(tensors);
  Options options;
  options.retention = {.keep = 0, .keep_every = 0};
  options.arena_bytes = 2 * (bytes + (std::uint64_t{64} << 20));
  options.foreground.node = how == "governed";
  options.max_write_rate = how == "fixed" ? rate : 0;
  auto opened = Checkpointer::open(root, options);
  if (!opened.ok()) fail(opened.error());
  Checkpointer& checkpointer = **opened;
  const Status prepared = checkpointer.prepare(bytes);
  if (!prepared.ok()) fail(prepared.error());
  std::puts("ready");
  std::fflush(stdout);
  std::atomic<bool> stop{false};
  std::thread saver;
  std::string line;
  while (std::getline(std::cin, line)) {
    if (!saver.joinable()) saver = std::thread([&] { save_on(checkpointer, state, stop); });
    std::printf("%llu\n", static_cast<unsigned long long>(bytes_written()));
    std::fflush(stdout);
  }
  stop = true;
  if (saver.joinable()) saver.join();
  return 0;
}

}  // namespace
}  // namespace infercluster::checkpoint

int main(int argc, char** argv) {
  if (argc == 5)
    return infercluster::checkpoint::run(argv[1], std::strtoull(argv[2], nullptr, 10), argv[3],
                                         std::strtoull(argv[4], nullptr, 10));
  std::fprintf(stderr, "usage: see the head of bench/interference/drain.cc\n");
  return 2;
}
