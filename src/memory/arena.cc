// SPDX-License-Identifier: Apache-2.0
#include "memory/arena.h"

#include <algorithm>

#include "base/units.h"
#include "os/limits.h"

namespace infercluster::memory {
namespace {

Result<os::Mapping> map(std::uint64_t bytes) {
  constexpr std::uint64_t kHugePage = 2 * kMiB;
  if (bytes >= kHugePage && os::free_explicit_huge_pages() >= align_up(bytes, kHugePage)) {
    auto explicit_pages = os::Mapping::create(bytes, {os::PageKind::explicit_huge});
    if (explicit_pages.ok()) return explicit_pages;  // else somebody was faster: transparent ones do as well
  }
  return os::Mapping::create(bytes, {os::PageKind::transparent_huge});
}

}  // namespace

Arena::Arena(os::Mapping mapping) : mapping_(std::move(mapping)) {
  steps_ = (bytes() + kPopulateStep - 1) / kPopulateStep;
  populated_ = std::make_unique<std::atomic<bool>[]>(steps_);
}

Result<std::shared_ptr<Arena>> Arena::allocate(std::uint64_t bytes) {
  IC_TRY(os::Mapping mapping, map(bytes));
  auto arena = std::make_shared<Arena>(std::move(mapping));
  IC_ASSERT(arena->span().address % kArenaAlignment == 0);
  IC_CHECK(arena->exclude_from_fork());
  return arena;
}

Status Arena::populate_step(std::uint64_t step) {
  IC_ASSERT(step < steps_);
  const std::uint64_t offset = step * kPopulateStep;
  IC_CHECK(mapping_.populate(offset, std::min(kPopulateStep, bytes() - offset)));
  populated_[step].store(true, std::memory_order_release);
  return {};
}

bool Arena::is_populated(std::uint64_t offset, std::uint64_t length) const {
  if (length == 0) return true;
  for (std::uint64_t step = offset / kPopulateStep; step <= (offset + length - 1) / kPopulateStep; ++step) {
    if (!populated_[step].load(std::memory_order_acquire)) return false;
  }
  return true;
}

Status Arena::inherit_on_fork() {
  return mapping_.set_on_fork(os::OnFork::inherit);
}
Status Arena::exclude_from_fork() {
  return mapping_.set_on_fork(os::OnFork::exclude);
}

}  // namespace infercluster::memory
