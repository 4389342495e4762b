// SPDX-License-Identifier: Apache-2.0
// Reads tensors of a checkpoint in order, a window at a time, whatever boxes they were saved in. Every byte is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/restore.h"
#include "checkpoint/tensor_windows.h"

namespace infercluster::checkpoint {

// Of the checkpoint's tensor `name`, which is there.
WindowedTensor windowed(const Checkpoint& checkpoint, const std::string& name);

// Memory that a window is read into; one allocation, as large as the largest window so far. One thread.
class WindowReader {
 public:
  WindowReader(const Checkpoint& checkpoint, std::span<const WindowedTensor> tensors, const RestoreOptions& options)
      : checkpoint_(checkpoint), tensors_(tensors), options_(options) {}

  // The bytes of the window's parts, one behind the other; valid until the next call.
  Result<std::span<const std::byte>> read(const TensorWindow& window);
  [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }  // from storage
  [[nodiscard]] std::uint64_t memory_bytes() const { return capacity_; }  // that it holds

 private:
  const Checkpoint& checkpoint_;
  std::span<const WindowedTensor> tensors_;
  const RestoreOptions& options_;
  std::unique_ptr<std::byte[]> memory_;
  std::uint64_t capacity_ = 0;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace infercluster::checkpoint
