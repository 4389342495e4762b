// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace infercluster::os {

enum class PageKind : std::uint8_t {
  plain,             // the system's pages, and its default for transparent huge ones
  transparent_huge,  // 2 MiB aligned, MADV_HUGEPAGE: huge where the kernel can, plain where not
  explicit_huge,     // reserved 2 MiB pages (vm.nr_hugepages); creation fails when there are not enough
};

enum class OnFork : std::uint8_t {
  inherit,  // the child gets a copy, page by page as either side writes
  exclude,  // the memory is not there in the child (MADV_DONTFORK)
};

// Private anonymous memory, zeroed, given back by the destructor. Move-only; addresses stay when it is moved. Thread
// rule: any thread may call the const functions at once, each on ranges of its own.
class Mapping {
 public:
  struct Options {
    PageKind pages = PageKind::plain;
  };

  // At least one byte; rounded up to whole pages of the kind (data().size() is `bytes` all the same). No page is there
  // yet but for explicit_huge, which are reserved. Error out_of_memory names the bytes wanted and the free memory.
  static Result<Mapping> create(std::uint64_t bytes, Options options);

  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  [[nodiscard]] std::span<std::byte> data() const { return data_; }
  [[nodiscard]] std::uint64_t page_bytes() const { return page_bytes_; }  // what bytes are rounded up to, at least

  // Brings the pages that [offset, offset + length) touches into memory, writable; what they hold stays. May run while
  // I/O goes on in them. A process over its cgroup's limit is killed, not told: look at memory_limits() before.
  [[nodiscard]] Status populate(std::uint64_t offset, std::uint64_t length) const;

  // Gives back the pages that lie wholly within [offset, offset + length) (MADV_DONTNEED); they read as zeros
  // afterwards.
  [[nodiscard]] Status release(std::uint64_t offset, std::uint64_t length) const;

  // For the whole mapping. Memory that I/O is in flight for is excluded, lest a fork makes it land in the wrong copy.
  [[nodiscard]] Status set_on_fork(OnFork behaviour) const;

 private:
  [[nodiscard]] Status check_range(std::uint64_t offset, std::uint64_t length) const;
  void unmap() noexcept;

  std::span<std::byte> data_;       // what the caller asked for, from the mapping's start
  std::uint64_t mapped_bytes_ = 0;  // whole pages
  std::uint64_t page_bytes_ = 0;
};

}  // namespace infercluster::os
