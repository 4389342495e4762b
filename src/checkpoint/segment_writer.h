// SPDX-License-Identifier: Apache-2.0
// Brings a segment's image and its index to storage, durably.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/image_windows.h"
#include "io/drain_governor.h"
#include "io/files.h"
#include "io/governor.h"
#include "pfs/calls.h"

namespace infercluster::checkpoint {

struct WriteOptions {
  std::uint64_t request_bytes = std::uint64_t{8} << 20;  // 8 to 16 MiB; a multiple of 64 KiB
  unsigned threads = 4;                                  // requests at once
  io::Governor* governor = nullptr;                      // asked at priority `drain` before each request
  std::uint64_t device = 0;                              // for the governor
  io::DrainGovernor* drain = nullptr;                    // gives way to foreground I/O; null: to nobody
  pfs::Calls* layouts = nullptr;                         // lays the file out at create; null: as it comes
  unsigned files_at_once = 1;                            // that all ranks write beside each other
};

struct WrittenSegment {
  std::vector<std::uint32_t> block_crcs;  // of each 64 KiB, taken from memory before it was written
  bool direct = false;                    // whether the page cache was left out
  std::string layout;                     // on a parallel file system: how it lies there, as read back; else empty
};

// The next part of the image, in order and without gaps; nothing: that was all. It may wait for it.
using NextWindow = std::function<Result<std::optional<ImageWindow>>()>;

// Creates `name`, writes `bytes` bytes that come in windows, fsyncs and closes it. `written` grows as it goes. On error
// the file is left as it is, and never written again: the kernel may have dropped what could not be written.
Result<WrittenSegment> write_segment(io::FileCalls& calls, const io::Directory& directory, const std::string& name,
                                     std::uint64_t bytes, const NextWindow& next, const WriteOptions& options,
                                     std::atomic<std::uint64_t>& written);

// For who writes a segment otherwise. The new file, laid out for `bytes` where the file system has layouts: `layout`
// says how then.
Result<io::OutputFile> create_segment(io::FileCalls& calls, const io::Directory& directory, const std::string& name,
                                      std::uint64_t bytes, const WriteOptions& options, std::string& layout);
// How much of `length` may be written now, which it may wait for: whole blocks, or all. Returns early at `stop`.
std::uint64_t wait_for_turn(const WriteOptions& options, std::uint64_t length, const std::atomic<bool>& stop);

// A small file, fsynced.
Status write_small_file(io::FileCalls& calls, const io::Directory& directory, const std::string& name,
                        const std::string& text);

}  // namespace infercluster::checkpoint
