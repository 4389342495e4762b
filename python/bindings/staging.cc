// SPDX-License-Identifier: Apache-2.0
// Memory that states are copied to before they are saved.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "errors.h"
#include "gil.h"
#include "infercluster/checkpoint.h"
#include "memory.h"

namespace nb = nanobind;

namespace infercluster::python {
namespace {

Memory acquire(checkpoint::StagingPool& self, std::uint64_t bytes) {
  checkpoint::StagingPool::Block block = unwrap(without_gil([&] { return self.acquire(bytes); }));
  return {std::move(block.owner), block.memory.data(), block.memory.size()};
}

// (from, to, bytes) each: addresses of the caller's.
void copy_memory(const std::vector<std::tuple<std::uintptr_t, std::uintptr_t, std::uint64_t>>& ranges) {
  std::vector<checkpoint::StridedCopy> copies;
  for (const auto& [from, to, bytes] : ranges)
    copies.push_back(
        {reinterpret_cast<const std::byte*>(from), reinterpret_cast<std::byte*>(to), bytes, {}});  // NOLINT
  without_gil([&] { checkpoint::copy_all(std::move(copies)); });
}

}  // namespace

void bind_staging(nb::module_& module) {
  nb::class_<checkpoint::StagingPool>(module, "StagingPool")
      .def(nb::init<>())
      .def("acquire", &acquire, nb::arg("bytes"))
      .def("trim", [](checkpoint::StagingPool& self) { without_gil([&] { self.trim(); }); });
  module.def("copy_memory", &copy_memory, nb::arg("ranges"));
}

}  // namespace infercluster::python
