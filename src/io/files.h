// SPDX-License-Identifier: Apache-2.0
// The file-system calls of those who write: relative to directories that stay open, one system call each, so that a
// test can fail any of them, or cut the power between two (testing/fault_files.h, testing/power_cut_files.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace infercluster::io {

struct Directory {
  Fd fd;
  std::string path;  // for messages: a rename does not change it
};

struct OutputFile {
  Fd fd;
  std::string path;
};

enum class DirectIo : std::uint8_t { off, on };

struct Entry {
  std::string name;
  bool is_directory = false;
};

// Errors name the path, and keep the errno. `name` is a plain file name. Thread-safe; the caller sees to it that no two
// threads contend for one file.
class FileCalls {
 public:
  virtual ~FileCalls() = default;

  virtual Result<Directory> open_directory(const std::string& path) = 0;
  virtual Result<Directory> open_directory_in(const Directory& parent, const std::string& name) = 0;
  virtual Status make_directory(const Directory& parent, const std::string& name) = 0;  // EEXIST when it is there
  virtual Status sync_directory(const Directory& directory) = 0;
  virtual Result<std::vector<Entry>> list(const Directory& directory) = 0;  // without "." and ".."; in no order
  // Whether `name` in `parent` is this very directory; false too when there is nothing of that name.
  virtual Result<bool> is_entry(const Directory& parent, const std::string& name, const Directory& directory) = 0;
  virtual Status remove_directory(const Directory& parent, const std::string& name) = 0;

  // A new file (EEXIST when it is there), mode 0666 less the umask.
  virtual Result<OutputFile> create(const Directory& directory, const std::string& name) = 0;
  // A regular file that is there, to write in it; nothing of it is cut off.
  virtual Result<OutputFile> open_to_write(const Directory& directory, const std::string& name) = 0;
  virtual Status set_direct(const OutputFile& file, DirectIo direct) = 0;  // EINVAL where the mount refuses
  // Room for so many bytes, where the file system can promise it; elsewhere nothing.
  virtual Status reserve(const OutputFile& file, std::uint64_t bytes) = 0;
  virtual Result<std::uint64_t> write(const OutputFile& file, std::span<const std::byte> bytes,
                                      std::uint64_t offset) = 0;  // bytes written: may be fewer, never 0
  virtual Status set_size(const OutputFile& file, std::uint64_t bytes) = 0;
  virtual Status sync(const OutputFile& file) = 0;  // a failure is final: the kernel may have dropped the pages
  virtual Status close(OutputFile file) = 0;
  // Of a file that was removed: whether no name of it is left, nobody else has it open or mapped, and so its bytes are
  // nobody's. False too where the file system cannot say so for all of its nodes.
  virtual Result<bool> is_forgotten(const OutputFile& file) = 0;

  virtual Status link(const Directory& directory, const std::string& from, const std::string& to) = 0;
  // The same from a directory into another.
  virtual Status link_into(const Directory& from_directory, const std::string& from, const Directory& to_directory,
                           const std::string& to) = 0;
  virtual Status rename(const Directory& directory, const std::string& from, const std::string& to) = 0;
  virtual Status remove(const Directory& directory, const std::string& name) = 0;
  virtual Result<std::uint64_t> size_of(const Directory& directory, const std::string& name) = 0;  // a regular file's
  // Bytes read: may be fewer than asked for, 0 at the end.
  virtual Result<std::uint64_t> read_at(const Directory& directory, const std::string& name, std::span<std::byte> to,
                                        std::uint64_t offset) = 0;
  virtual Result<std::string> read_small(const Directory& directory, const std::string& name, std::uint64_t limit) = 0;
};

// The operating system's. Lives for ever.
FileCalls& system_files();

// Writes all of `bytes` from `offset` on, in as many calls as it takes.
Status write_fully(FileCalls& calls, const OutputFile& file, std::span<const std::byte> bytes, std::uint64_t offset);

}  // namespace infercluster::io
