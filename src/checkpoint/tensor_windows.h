// SPDX-License-Identifier: Apache-2.0
// Cuts whole tensors, one after another, into windows of bounded size, so that however large a tensor is it can be read
// and used in order. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/plan.h"
#include "safetensors/dtype.h"

namespace infercluster::checkpoint {

struct WindowedTensor {
  std::string name;
  safetensors::Dtype dtype = safetensors::Dtype::u8;
  std::vector<std::uint64_t> shape;
};

// A box whose elements are neighbours in the tensor's row-major bytes.
struct TensorPart {
  std::size_t tensor = 0;   // of those given
  std::uint64_t begin = 0;  // byte of the tensor
  std::uint64_t bytes = 0;
  Box box;
};

struct TensorWindow {
  std::vector<TensorPart> parts;  // in order, without gaps: together all bytes of the tensors
  std::uint64_t bytes = 0;
};

class TensorWindows {
 public:
  // `tensors` outlive it, and have a whole number of bytes each (safetensors::tensor_bytes).
  TensorWindows(std::span<const WindowedTensor> tensors, std::uint64_t window_bytes)
      : tensors_(tensors), window_bytes_(window_bytes) {}

  // Nothing: that was all. Only a tensor larger than a window is cut. Error unsupported: it cannot be, since its
  // elements are parts of bytes and its rows no whole number of these, or since one element is larger than a window.
  Result<std::optional<TensorWindow>> next();

 private:
  std::span<const WindowedTensor> tensors_;
  std::uint64_t window_bytes_;
  std::size_t tensor_ = 0;     // of the next part
  std::uint64_t element_ = 0;  // of it, row-major
};

}  // namespace infercluster::checkpoint
