// SPDX-License-Identifier: Apache-2.0
#include "bench/scale/memory_meter.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::uint64_t> now{0};
std::atomic<std::uint64_t> peak{0};

void* allocate(std::size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  const std::uint64_t total = now += ::malloc_usable_size(memory);
  if (total > peak) peak = total;
  return memory;
}

void release(void* memory) {
  if (memory == nullptr) return;
  now -= ::malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes);
}
void* operator new[](std::size_t bytes) {
  return allocate(bytes);
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete[](void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  release(memory);
}

namespace infercluster::scale {

std::uint64_t heap_bytes() {
  return now;
}

std::uint64_t heap_peak() {
  return peak;
}

void restart_peak() {
  peak = now.load();
}

}  // namespace infercluster::scale
