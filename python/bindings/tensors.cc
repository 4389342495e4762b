// SPDX-License-Identifier: Apache-2.0
#include "tensors.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>

#include "errors.h"
#include "gil.h"
#include "safetensors/dtype.h"

namespace nb = nanobind;

namespace infercluster::python {
namespace {

safetensors::Dtype dtype_of(const std::string& name, const std::string& dtype) {
  const auto known = safetensors::parse_dtype(dtype);
  if (!known) raise(Error(ErrorCode::invalid_argument, "there is no dtype \"" + dtype + "\"").with_tensor(name));
  return *known;
}

std::uint64_t* counter_at(std::uintptr_t generations, std::uint64_t slot) {
  return reinterpret_cast<std::uint64_t*>(generations) + slot;  // NOLINT: the caller's array
}

// Before the content of slots is changed: their generations are odd then, and nothing of the change is seen before.
void begin_changes(std::uintptr_t generations, const Numbers& slots) {
  for (const std::uint64_t slot : slots) __atomic_fetch_add(counter_at(generations, slot), 1, __ATOMIC_RELAXED);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

// Afterwards: everything of the change is seen before the generations are even.
void end_changes(std::uintptr_t generations, const Numbers& slots) {
  for (const std::uint64_t slot : slots) __atomic_fetch_add(counter_at(generations, slot), 1, __ATOMIC_RELEASE);
}

}  // namespace

void Tensors::add(std::string name, const std::string& dtype, Numbers shape, Numbers offsets, Numbers lengths,
                  std::uintptr_t address, checkpoint::Strides strides, int device) {
  const safetensors::Dtype known = dtype_of(name, dtype);
  pieces_.push_back({std::move(name), known, std::move(shape), {std::move(offsets), std::move(lengths)}});
  Memory& memory = memory_.emplace_back();
  memory.data = reinterpret_cast<std::byte*>(address);  // NOLINT: the caller's tensor
  memory.strides = std::move(strides);
  memory.device = device;
}

void Tensors::shard(const std::shared_ptr<checkpoint::Mesh>& mesh,
                    const std::vector<std::pair<std::uint64_t, std::uint64_t>>& cuts) {
  if (pieces_.empty()) raise(Error(ErrorCode::invalid_argument, "no tensor was added"));
  checkpoint::Sharding sharding{mesh, {}};
  for (const auto& [mesh_dimension, tensor_dimension] : cuts)
    sharding.cuts.push_back({mesh_dimension, tensor_dimension});
  pieces_.back().sharding = std::move(sharding);
}

void Tensors::add_pages(const std::vector<std::string>& names, const Numbers& slots, const std::vector<Pool>& pools,
                        std::uintptr_t generations, std::uint64_t first_page) {
  if (names.size() != slots.size())
    raise(Error(ErrorCode::invalid_argument, "as many names of pages are needed as slots"));
  std::vector<safetensors::Dtype> dtypes;
  for (const Pool& pool : pools) dtypes.push_back(dtype_of(std::get<0>(pool), std::get<1>(pool)));
  without_gil([&] {
    pieces_.reserve(pieces_.size() + names.size() * pools.size());
    memory_.reserve(pieces_.capacity());
    for (std::size_t i = 0; i < names.size(); ++i) {
      for (std::size_t of = 0; of < pools.size(); ++of) {
        const auto& [suffix, dtype, shape, offsets, lengths, address, stride] = pools[of];
        checkpoint::Piece& piece =
            pieces_.emplace_back(checkpoint::Piece{names[i] + suffix, dtypes[of], shape, {offsets, lengths}});
        piece.sole = true;
        const auto at = address + static_cast<std::uintptr_t>(static_cast<std::int64_t>(slots[i]) * stride);
        Memory& memory = memory_.emplace_back();
        memory.data = reinterpret_cast<std::byte*>(at);  // NOLINT: the caller's pool
        if (generations == 0) continue;
        memory.generation = counter_at(generations, slots[i]);
        memory.page = first_page + slots[i];
      }
    }
  });
}

checkpoint::State Tensors::state(manifest::Metadata metadata) const {
  checkpoint::State state;
  state.pieces.reserve(pieces_.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    checkpoint::HostPiece& piece = state.pieces.emplace_back();
    piece.piece = pieces_[i];
    piece.data = memory_[i].data;
    piece.strides = memory_[i].strides;
    piece.device = memory_[i].device;
    piece.live_generation = memory_[i].generation;
    piece.page = memory_[i].page;
  }
  state.metadata = std::move(metadata);
  state.streams = streams_;
  return state;
}

std::vector<checkpoint::Target> Tensors::targets() const {
  std::vector<checkpoint::Target> targets;
  targets.reserve(pieces_.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Memory& memory = memory_[i];
    targets.push_back({pieces_[i], memory.data, memory.strides, memory.device});
  }
  return targets;
}

checkpoint::RestoreOptions Tensors::restore_options() const {
  checkpoint::RestoreOptions options;
  options.streams = streams_;
  return options;
}

void bind_tensors(nb::module_& module) {
  nb::class_<Tensors>(module, "Tensors")
      .def(nb::init<>())
      .def("add", &Tensors::add, nb::arg("name"), nb::arg("dtype"), nb::arg("shape"), nb::arg("offsets"),
           nb::arg("lengths"), nb::arg("address"), nb::arg("strides"), nb::arg("device") = -1)
      .def("follow_stream", &Tensors::follow_stream, nb::arg("device"), nb::arg("stream"))
      .def("shard", &Tensors::shard, nb::arg("mesh"), nb::arg("cuts"))
      .def("add_pages", &Tensors::add_pages, nb::arg("names"), nb::arg("slots"), nb::arg("pools"),
           nb::arg("generations"), nb::arg("first_page"))
      .def("__len__", &Tensors::size);
  module.def("begin_changes", &begin_changes, nb::arg("generations"), nb::arg("slots"));
  module.def("end_changes", &end_changes, nb::arg("generations"), nb::arg("slots"));
}

}  // namespace infercluster::python
