// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/live_copy.h"

#include <cstring>
#include <thread>

#include "base/clock.h"

namespace infercluster::checkpoint {
namespace {

// Each word is read once, whatever is written to it meanwhile, and before what is read after it. An atomic_ref of a
// const object comes with C++26.
template <typename Word>
void copy_word(const std::byte* from, std::byte* to) {
  const Word word =
      __atomic_load_n(reinterpret_cast<const Word*>(from), __ATOMIC_ACQUIRE);  // NOLINT: memory of the caller
  std::memcpy(to, &word, sizeof(Word));
}

void copy_words(const std::byte* from, std::byte* to, std::size_t bytes) {
  std::size_t at = 0;
  for (; at < bytes && reinterpret_cast<std::uintptr_t>(from + at) % sizeof(std::uint64_t) != 0; ++at)
    copy_word<std::uint8_t>(from + at, to + at);
  for (; bytes - at >= sizeof(std::uint64_t); at += sizeof(std::uint64_t)) copy_word<std::uint64_t>(from + at, to + at);
  for (; at < bytes; ++at) copy_word<std::uint8_t>(from + at, to + at);
}

}  // namespace

std::uint64_t load_generation(const std::uint64_t& generation) {
  return __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
}

Result<std::uint64_t> copy_live(std::span<const LiveRange> ranges, const std::uint64_t& generation,
                                std::chrono::nanoseconds patience) {
  const Clock::TimePoint end = steady_clock().now() + patience;
  while (true) {
    const std::uint64_t before = load_generation(generation);
    if (is_at_rest(before)) {
      for (const LiveRange& range : ranges) copy_words(range.from, range.to, range.bytes);
      if (__atomic_load_n(&generation, __ATOMIC_RELAXED) == before) return before;
    }
    if (steady_clock().now() >= end) {
      return Error(ErrorCode::changed,
                   "it changed each time it was copied, or its generation stays odd (" + std::to_string(before) + ")")
          .with_hint("The generation must be odd only while the content changes, and even afterwards");
    }
    std::this_thread::yield();
  }
}

}  // namespace infercluster::checkpoint
