// SPDX-License-Identifier: Apache-2.0
// The tensors of one rank, to save or to load into. Memory at addresses is the caller's, who keeps it until the call
// returns.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "infercluster/checkpoint.h"

namespace infercluster::python {

using Numbers = std::vector<std::uint64_t>;

class Tensors {
 public:
  // `device`: the CUDA device's ordinal, whose address it is; -1: the host.
  void add(std::string name, const std::string& dtype, Numbers shape, Numbers offsets, Numbers lengths,
           std::uintptr_t address, checkpoint::Strides strides, int device);
  // Of the tensor that was added last. `cuts`: dimension of the mesh, dimension of the tensor, in the order they are
  // made.
  void shard(const std::shared_ptr<checkpoint::Mesh>& mesh,
             const std::vector<std::pair<std::uint64_t, std::uint64_t>>& cuts);

  // Copies from and to that device begin behind what is queued there (torch.cuda.Stream.cuda_stream).
  void follow_stream(int device, std::uintptr_t stream) { streams_[device] = stream; }

  // What each page has in a pool: suffix of its name, dtype, shape of the whole, offsets and lengths of the box; the
  // address of slot 0, and the bytes between two slots.
  using Pool = std::tuple<std::string, std::string, Numbers, Numbers, Numbers, std::uintptr_t, std::int64_t>;
  // Pages: names and slots, in one order. `generations`: the address of the slots' counters; 0: to load into.
  // `first_page`: HostPiece::page of slot 0.
  void add_pages(const std::vector<std::string>& names, const Numbers& slots, const std::vector<Pool>& pools,
                 std::uintptr_t generations, std::uint64_t first_page);

  [[nodiscard]] std::size_t size() const { return pieces_.size(); }
  [[nodiscard]] const checkpoint::Pieces& pieces() const { return pieces_; }
  [[nodiscard]] checkpoint::State state(manifest::Metadata metadata) const;
  [[nodiscard]] std::vector<checkpoint::Target> targets() const;
  [[nodiscard]] checkpoint::RestoreOptions restore_options() const;

 private:
  struct Memory {
    std::byte* data = nullptr;
    checkpoint::Strides strides;
    const std::uint64_t* generation = nullptr;  // live
    std::uint64_t page = 0;
    int device = -1;
  };
  checkpoint::Pieces pieces_;
  std::vector<Memory> memory_;  // of each piece
  checkpoint::DeviceStreams streams_;
};

void bind_tensors(nanobind::module_& module);

}  // namespace infercluster::python
