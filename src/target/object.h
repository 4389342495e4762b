// SPDX-License-Identifier: Apache-2.0
// A file that hosts read as blocks, with the CRC32C of each block taken when it was added: what is sent later is held
// against it, whatever has become of the disk meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "os/file.h"
#include "os/sealed_map.h"

namespace infercluster::target {

inline constexpr std::uint64_t kBlockBytes = 4096;

// Its content never changes, so any thread may use it. Whoever holds one keeps the file open, also when it was unmapped or unlinked.
class Object {
 public:
  // Reads the whole file once. Errors: those of opening and reading; invalid_argument (an empty file); changed (it was
  // written to meanwhile).
  static Result<std::shared_ptr<const Object>> open(const std::string& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const { return identity_.size; }        // bytes, never 0
  [[nodiscard]] std::uint64_t blocks() const { return block_crcs_.size(); }  // the last one is padded with zeros
  [[nodiscard]] const Fd& fd() const { return fd_; }
  [[nodiscard]] const os::FileIdentity& identity() const { return identity_; }
  // All of it but for the padding, where nobody can change it any more: a sealed memfd. Empty: it is to be read from
  // the file.
  [[nodiscard]] std::span<const std::byte> memory() const { return map_ ? map_->data() : std::span<const std::byte>(); }
  // Its file lies in memory, where reading it is a copy and no wait; io_uring would hand such a read to another thread.
  [[nodiscard]] bool on_tmpfs() const { return on_tmpfs_; }
  // CRC32C of a block, with its padding.
  [[nodiscard]] std::uint32_t crc(std::uint64_t block) const { return block_crcs_[block]; }

  // A block in sealed memory that was once held against its checksum needs no second look: nobody can change it. Never
  // so of a block in a file.
  [[nodiscard]] bool verified(std::uint64_t block) const {
    return map_ && (verified_[block / 64].load(std::memory_order_relaxed) >> block % 64 & 1) != 0;
  }
  void set_verified(std::uint64_t block) const {
    if (map_) verified_[block / 64].fetch_or(std::uint64_t{1} << block % 64, std::memory_order_relaxed);
  }

 private:
  Object() = default;

  std::string path_;
  Fd fd_;
  os::FileIdentity identity_;
  std::optional<os::SealedMap> map_;
  bool on_tmpfs_ = false;
  std::vector<std::uint32_t> block_crcs_;
  mutable std::vector<std::atomic<std::uint64_t>> verified_;  // a bit per block; empty: not in sealed memory
};

}  // namespace infercluster::target
