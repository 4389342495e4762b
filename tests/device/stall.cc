// SPDX-License-Identifier: Apache-2.0
// How long a checkpoint of a state on GPU 0 holds its caller up, beside what copies of the same bytes to pinned memory
// take. One JSON document on standard output; "seconds" are left out where the driver is the double.
//
// usage: device_stall FOLDER BYTES
//
// The state lies in tensors of 64 MiB. Each of the rounds: the copies alone, a save that returns when it is copied, one
// that returns when it is queued; arenas were made and pinned ahead. The last checkpoint is loaded again and compared.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/restore.h"
#include "gpu/copier.h"
#include "gpu/memory.h"
#include "memory/arena.h"

namespace infercluster {
namespace {

using namespace checkpoint;

constexpr std::uint64_t kTensorBytes = 64 * kMiB;
constexpr std::uint64_t kLimitBytes = kGiB;  // of pinned memory that the limit's copies go to, over and over
constexpr int kRounds = 3;

struct GpuState {
  std::vector<std::shared_ptr<gpu::DeviceMemory>> memory;
  State state;
  std::vector<Target> targets;
};

std::byte byte_of(std::uint64_t tensor, std::uint64_t at) {
  return static_cast<std::byte>((tensor * 31 + at * 7 + at / 4096) & 0x7F);
}

Result<GpuState> make_state(const std::shared_ptr<gpu::Device>& device, std::uint64_t bytes) {
  GpuState all;
  std::vector<std::byte> content(std::min(bytes, kTensorBytes));
  for (std::uint64_t at = 0; at < bytes; at += kTensorBytes) {
    const std::uint64_t length = std::min(kTensorBytes, bytes - at);
    const std::uint64_t number = all.memory.size();
    for (std::uint64_t i = 0; i < length; ++i) content[i] = byte_of(number, i);
    IC_TRY(auto memory, gpu::DeviceMemory::allocate(device, length));
    IC_CHECK(gpu::copy_to_device(device, content.data(), memory->span()));
    const Piece piece{
        "tensor." + std::to_string(number), safetensors::Dtype::u8, {length}, manifest::whole_box({length})};
    auto* const address = reinterpret_cast<std::byte*>(memory->span().address);  // NOLINT: an address of the device
    all.state.pieces.push_back({piece, address, {}, device->ordinal()});
    all.targets.push_back({piece, address, {}, device->ordinal()});
    all.memory.push_back(std::move(memory));
  }
  return all;
}

// The same bytes to pinned memory, from the same tensors.
Result<double> copy_seconds(const std::shared_ptr<gpu::Device>& device, const GpuState& all,
                            const memory::Span& pinned) {
  IC_TRY(const auto copier, gpu::make_copier(device));
  const auto begin = steady_clock().now();
  std::uint64_t at = 0;
  for (const auto& memory : all.memory) {
    if (at + memory->span().bytes > pinned.bytes) at = 0;
    IC_CHECK(copier->copy(memory->span(), pinned.part(at, memory->span().bytes)));
    at += memory->span().bytes;
  }
  IC_CHECK(copier->drain());
  return seconds_between(begin, steady_clock().now());
}

Status compare(const std::shared_ptr<gpu::Device>& device, const GpuState& all, const std::string& folder,
               std::uint64_t step) {
  IC_TRY(const auto found, Checkpoint::open(io::system_files(), folder, step));
  const std::vector<std::byte> nothing(kTensorBytes);
  for (const auto& memory : all.memory) IC_CHECK(gpu::copy_to_device(device, nothing.data(), memory->span()));
  IC_CHECK(found->restore(all.targets, {}));
  std::vector<std::byte> bytes(kTensorBytes);
  for (std::size_t i = 0; i < all.memory.size(); ++i) {
    IC_CHECK(gpu::copy_to_host(device, all.memory[i]->span(), bytes.data()));
    for (std::uint64_t at = 0; at < all.memory[i]->span().bytes; ++at) {
      if (bytes[at] != byte_of(i, at))
        return Error(ErrorCode::corrupt, "tensor " + std::to_string(i) + " has a wrong byte at " + std::to_string(at));
    }
  }
  return {};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Status run(const std::string& folder, std::uint64_t bytes) {
  IC_TRY(const auto device, gpu::Device::open(0));
  IC_TRY(const GpuState all, make_state(device, bytes));
  IC_TRY(const auto arena, memory::Arena::allocate(std::max(std::min(bytes, kLimitBytes), kTensorBytes)));
  for (std::uint64_t step = 0; step < arena->steps(); ++step) IC_CHECK(arena->populate_step(step));
  IC_TRY(const auto pinned, gpu::Pinned::make(device, arena->span()));
  Options options;
  options.retention.keep = 1;
  options.arena_bytes = 2 * (bytes + 2 * kMiB);
  IC_TRY(const auto checkpointer, Checkpointer::open(folder, options));
  IC_CHECK(checkpointer->prepare(bytes, 0));
  std::vector<double> limit;
  std::vector<double> stall;
  std::vector<double> queued;
  std::uint64_t step = 0;
  for (int round = 0; round < kRounds; ++round) {
    IC_TRY(const double seconds, copy_seconds(device, all, arena->span()));
    limit.push_back(seconds);
    for (const Wait wait : {Wait::until_staged, Wait::until_queued}) {
      IC_TRY(const auto save, checkpointer->save(++step, all.state, {.wait = wait}));
      IC_CHECK(save->wait());
      checkpointer->wait_idle();
      (wait == Wait::until_staged ? stall : queued).push_back(save->report().stall_seconds);
    }
  }
  IC_CHECK(compare(device, all, folder, step));
  if (device->is_double()) {
    std::printf("{\"double\": true, \"bytes\": %llu}\n", static_cast<unsigned long long>(bytes));
    return {};
  }
  std::printf(
      "{\"double\": false, \"bytes\": %llu, \"pinned_copy_seconds\": %.6f, \"stall_seconds\": %.6f, "
      "\"stall_over_copy\": %.3f, \"queued_stall_seconds\": %.6f}\n",
      static_cast<unsigned long long>(bytes), median(limit), median(stall), median(stall) / median(limit),
      median(queued));
  return {};
}

}  // namespace
}  // namespace infercluster

int main(int count, char** values) {
  if (count != 3 || std::strtoull(values[2], nullptr, 10) == 0) {
    std::fprintf(stderr, "usage: device_stall FOLDER BYTES\n");
    return 2;
  }
  const infercluster::Status done = infercluster::run(values[1], std::strtoull(values[2], nullptr, 10));
  if (done.ok()) return 0;
  std::fprintf(stderr, "device_stall: %s\n", done.error().to_string().c_str());
  return 1;
}
