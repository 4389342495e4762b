// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/device_copies.h"

#include <algorithm>
#include <utility>

#include "gpu/copier.h"
#include "gpu/event.h"
#include "gpu/stream.h"

namespace infercluster::checkpoint {
namespace {

using memory::Kind;
using memory::Span;
using Dimension = StridedCopy::Dimension;

bool are_rows(const Dimension& dimension, std::uint64_t run_bytes) {
  const auto run = static_cast<std::int64_t>(run_bytes);
  return dimension.from_stride >= run && dimension.to_stride >= run;
}

// One call of the copier for all indexes of `rows`, at each index of the other dimensions.
struct RowCopy {
  memory::Copier& copier;
  Span from;  // of one byte, wherever the next rows begin
  Span to;
  std::uint64_t run_bytes = 0;
  Dimension rows;  // count 1: single runs

  [[nodiscard]] Status at(std::int64_t from_offset, std::int64_t to_offset) const {
    const auto span = [&](const Span& base, std::int64_t offset, std::int64_t pitch) {
      const std::uint64_t reach = (rows.count - 1) * static_cast<std::uint64_t>(pitch) + run_bytes;
      return Span{base.kind, base.device, base.address + static_cast<std::uintptr_t>(offset), reach};
    };
    if (rows.count == 1) return copier.copy(span(from, from_offset, 0), span(to, to_offset, 0));
    const memory::RowLayout layout{.rows = rows.count,
                                   .row_bytes = run_bytes,
                                   .from_pitch = static_cast<std::uint64_t>(rows.from_stride),
                                   .to_pitch = static_cast<std::uint64_t>(rows.to_stride)};
    return copier.copy_rows(span(from, from_offset, rows.from_stride), span(to, to_offset, rows.to_stride), layout);
  }
  [[nodiscard]] Status each(const std::vector<Dimension>& others, std::size_t next, std::int64_t from_offset,
                            std::int64_t to_offset) const {
    if (next == others.size()) return at(from_offset, to_offset);
    for (std::uint64_t i = 0; i < others[next].count; ++i) {
      IC_CHECK(each(others, next + 1, from_offset, to_offset));
      from_offset += others[next].from_stride;
      to_offset += others[next].to_stride;
    }
    return {};
  }
};

Span host_side(const std::byte* at) {
  return memory::host_span(at, 1);
}
Span device_side(const std::byte* at, int ordinal) {
  return {Kind::cuda, ordinal, reinterpret_cast<std::uintptr_t>(at), 1};
}

}  // namespace

Status check_device_strides(const Piece& piece, const Strides& strides) {
  IC_TRY(const std::uint64_t bytes, check_piece(piece));
  if (bytes == 0 || strides.empty()) return {};
  const manifest::Chunk whole{piece.tensor, piece.dtype, piece.shape, piece.box, 0, 0, bytes};
  IC_TRY(const auto box, BoxCopy::between(whole, piece.box, strides));
  const std::vector<BoxCopy::Part> parts = box->parts(0, bytes);
  const auto& dimensions = parts[0].dimensions;
  const bool one_copy =
      dimensions.empty() ||
      (dimensions.size() == 1 && dimensions[0].memory_stride >= static_cast<std::int64_t>(parts[0].run_bytes));
  if (one_copy) return {};
  return Error(ErrorCode::invalid_argument, "in the device's memory its elements lie apart in more than one way")
      .with_tensor(piece.tensor)
      .with_hint("Make it contiguous there (tensor.contiguous()): the device does that faster than any copy from it");
}

Arrival::~Arrival() {
  const std::lock_guard lock(mutex_);
  if (!settled_) static_cast<void>(copies_->drain());
}

Status Arrival::settle(Status done) {
  if (!done.ok()) static_cast<void>(copies_->drain());  // what came first is the error
  settled_ = done;
  return done;
}

Status Arrival::wait() {
  const std::lock_guard lock(mutex_);
  if (settled_) return *settled_;
  for (const auto& mark : marks_) {
    Status passed = mark->wait();
    if (!passed.ok()) return settle(std::move(passed));
  }
  return settle({});
}

Result<bool> Arrival::passed() {
  const std::lock_guard lock(mutex_);
  if (settled_) {
    IC_CHECK(*settled_);
    return true;
  }
  for (const auto& mark : marks_) {
    const auto passed = mark->passed();
    if (!passed.ok()) return settle(passed.error()).error();
    if (!*passed) return false;
  }
  IC_CHECK(settle({}));
  return true;
}

std::shared_ptr<DeviceCopies> DeviceCopies::make(DeviceStreams streams) {
  return std::shared_ptr<DeviceCopies>(new DeviceCopies(std::move(streams)));  // NOLINT: the constructor is private
}

std::uintptr_t DeviceCopies::stream_of(int ordinal) const {
  const auto found = streams_.find(ordinal);
  return found == streams_.end() ? 0 : found->second;
}

Result<std::shared_ptr<gpu::Device>> DeviceCopies::open(int ordinal) {
  const std::lock_guard lock(mutex_);
  const auto found = sides_.find(ordinal);
  if (found != sides_.end()) return found->second.device;
  IC_TRY(std::shared_ptr<gpu::Device> device, gpu::Device::open(ordinal));
  IC_TRY(auto copier, gpu::make_copier(device, {.after = gpu::StreamId{stream_of(ordinal)}}));
  sides_[ordinal] = {device, std::move(copier)};
  return device;
}

Status DeviceCopies::copy(int ordinal, Direction direction, const StridedCopy& item) {
  const bool to_host = direction == Direction::to_host;
  const std::lock_guard lock(mutex_);
  RowCopy copy{.copier = *sides_.at(ordinal).copier,
               .from = to_host ? device_side(item.from, ordinal) : host_side(item.from),
               .to = to_host ? host_side(item.to) : device_side(item.to, ordinal),
               .run_bytes = item.run_bytes,
               .rows = {}};
  std::vector<Dimension> others = item.dimensions;
  auto longest = others.end();
  for (auto next = others.begin(); next != others.end(); ++next) {
    if (are_rows(*next, item.run_bytes) && (longest == others.end() || next->count > longest->count)) longest = next;
  }
  if (longest != others.end()) {
    copy.rows = *longest;
    others.erase(longest);
  }
  return copy.each(others, 0, 0, 0);
}

Result<std::shared_ptr<Arrival>> DeviceCopies::arrival() {
  std::shared_ptr<Arrival> arrival(new Arrival(shared_from_this()));  // NOLINT: the constructor is private
  const std::lock_guard lock(mutex_);
  for (auto& [ordinal, side] : sides_) {
    IC_TRY(auto mark, side.copier->mark());
    arrival->marks_.push_back(std::move(mark));
  }
  return arrival;
}

Status DeviceCopies::hold_callers_back() {
  const std::lock_guard lock(mutex_);
  for (const auto& [ordinal, side] : sides_) {
    IC_TRY(const auto mark, side.copier->mark());
    IC_CHECK(gpu::hold_back(*side.device, gpu::StreamId{stream_of(ordinal)}, *mark));
  }
  return {};
}

Status DeviceCopies::drain() {
  const std::lock_guard lock(mutex_);
  Status first;
  for (auto& [ordinal, side] : sides_) {
    Status done = side.copier->drain();
    if (!done.ok() && first.ok()) first = std::move(done);
  }
  return first;
}

}  // namespace infercluster::checkpoint
