// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/reading.h"

#include <new>

#include "base/units.h"

namespace infercluster::checkpoint {

WindowedTensor windowed(const Checkpoint& checkpoint, const std::string& name) {
  const StoredTensor& stored = checkpoint.tensors().at(name);
  return {name, stored.dtype, stored.shape};
}

Result<std::span<const std::byte>> WindowReader::read(const TensorWindow& window) {
  if (window.bytes > capacity_) {
    capacity_ = 0;
    memory_.reset();
    memory_.reset(new (std::nothrow) std::byte[window.bytes]);
    if (memory_ == nullptr) {
      return Error(ErrorCode::out_of_memory, "there is no memory for a window of " + format_bytes(window.bytes))
          .with_hint("Allow a smaller window");
    }
    capacity_ = window.bytes;
  }
  std::vector<Target> targets;
  std::uint64_t at = 0;
  for (const TensorPart& part : window.parts) {
    const WindowedTensor& tensor = tensors_[part.tensor];
    targets.push_back({.piece = {tensor.name, tensor.dtype, tensor.shape, part.box}, .data = memory_.get() + at});
    at += part.bytes;
  }
  IC_TRY(const RestoreReport report, checkpoint_.restore(targets, options_));
  bytes_read_ += report.bytes_read;
  return std::span<const std::byte>(memory_.get(), window.bytes);
}

}  // namespace infercluster::checkpoint
