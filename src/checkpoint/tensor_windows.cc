// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tensor_windows.h"

#include <algorithm>
#include <numeric>

#include "base/assert.h"

namespace infercluster::checkpoint {
namespace {

// The bits of a tensor that was checked fit 64 bits, and so does each product below.
std::uint64_t elements_of(const WindowedTensor& tensor) {
  std::uint64_t elements = 1;
  for (const std::uint64_t length : tensor.shape) elements *= length;
  return elements;
}

// The largest box of neighbours from `element` on that has at most `room` bytes, and a whole number of them.
std::optional<Box> neighbours(const WindowedTensor& tensor, std::uint64_t element, std::uint64_t room) {
  const std::uint64_t bits = safetensors::bits_of(tensor.dtype);
  Box box = manifest::whole_box(tensor.shape);
  std::uint64_t unit = elements_of(tensor);  // elements below the dimension at hand
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    const std::uint64_t outer = unit;
    unit /= tensor.shape[d];
    const std::uint64_t at = element % outer / unit;
    box.offsets[d] = at;
    box.lengths[d] = 1;
    if (element % unit != 0) continue;                                        // its inner dimensions are begun
    const std::uint64_t whole = 8 / std::gcd(unit * bits, std::uint64_t{8});  // so many units are whole bytes
    const std::uint64_t bytes = unit * bits * whole / 8;
    IC_ASSERT(bytes > 0);  // a tensor that has elements has some in each dimension
    const std::uint64_t fitting = room / bytes * whole;
    const std::uint64_t count = std::min(tensor.shape[d] - at, fitting) / whole * whole;
    if (count == 0) continue;
    box.lengths[d] = count;
    return box;
  }
  return std::nullopt;
}

std::uint64_t elements_of(const Box& box) {
  std::uint64_t elements = 1;
  for (const std::uint64_t length : box.lengths) elements *= length;
  return elements;
}

}  // namespace

Result<std::optional<TensorWindow>> TensorWindows::next() {
  TensorWindow window;
  while (tensor_ < tensors_.size()) {
    const WindowedTensor& tensor = tensors_[tensor_];
    const std::uint64_t bits = safetensors::bits_of(tensor.dtype);
    const std::uint64_t all = elements_of(tensor);
    const std::uint64_t bytes = (all - element_) * bits / 8;
    const std::uint64_t room = window_bytes_ - window.bytes;
    if (bytes > room && window.bytes > 0) break;  // a new window is worth more than a cut
    TensorPart part{tensor_, element_ * bits / 8, bytes, manifest::whole_box(tensor.shape)};
    if (bytes > 0 && (element_ > 0 || bytes > room)) {
      const auto box = neighbours(tensor, element_, room);
      if (!box) {
        return Error(ErrorCode::unsupported,
                     "it cannot be cut into windows of " + std::to_string(window_bytes_) + " bytes")
            .with_tensor(tensor.name)
            .with_hint("Allow a larger window");
      }
      part.box = *box;
      part.bytes = elements_of(*box) * bits / 8;
    }
    element_ += part.bytes * 8 / bits;
    if (element_ == all) {
      element_ = 0;
      ++tensor_;
    }
    if (part.bytes == 0) continue;
    window.bytes += part.bytes;
    window.parts.push_back(std::move(part));
  }
  if (window.parts.empty()) return std::optional<TensorWindow>();
  return std::optional<TensorWindow>(std::move(window));
}

}  // namespace infercluster::checkpoint
