// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <vector>

#include "bindings.h"
#include "errors.h"
#include "infercluster/infercluster.h"

namespace nb = nanobind;

namespace infercluster::python {
namespace {

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const auto* memory = nb::inst_ptr<Memory>(self);
  return PyBuffer_FillInfo(view, self, memory->data, static_cast<Py_ssize_t>(memory->bytes), 0, flags);
}

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)}, {0, nullptr}};

constexpr int kCuda = 2;  // kDLCUDA of dlpack.h

// An object with __dlpack__ and __dlpack_device__ that keeps `self`. `code` and `bits` are those of a DLDataType.
nb::object dlpack(nb::handle self, std::uint8_t code, std::uint8_t bits, const std::vector<std::size_t>& shape) {
  const auto& memory = nb::cast<const DeviceMemory&>(self);
  using Array = nb::ndarray<nb::array_api>;
  return nb::cast(Array(memory.data, shape.size(), shape.data(), self, nullptr, nb::dlpack::dtype{code, bits, 1}, kCuda,
                        memory.device));
}

DeviceMemory allocate(int device, std::size_t bytes) {
  memory::Block block = unwrap(without_gil([&] { return allocate_on_device(device, bytes); }));
  return {std::move(block.owner), block.span.host(), bytes, device};
}

void copy_to_host(const DeviceMemory& memory, std::uintptr_t address) {
  const memory::Span from{memory::Kind::cuda, memory.device, reinterpret_cast<std::uintptr_t>(memory.data),
                          memory.bytes};
  auto* const to = reinterpret_cast<std::byte*>(address);  // NOLINT: the caller's array
  unwrap(without_gil([&] { return infercluster::copy_to_host(from, to); }));
}

void bind_device_memory(nb::module_& module) {
  nb::class_<DeviceMemory>(module, "DeviceMemory")
      .def("__len__", [](const DeviceMemory& memory) { return memory.bytes; })
      .def_ro("device", &DeviceMemory::device)
      .def_prop_ro("address", [](const DeviceMemory& memory) { return reinterpret_cast<std::uintptr_t>(memory.data); })
      .def("copy_to_host", &copy_to_host, nb::arg("address"));
  module.def("dlpack", &dlpack, nb::arg("memory"), nb::arg("code"), nb::arg("bits"), nb::arg("shape"));
  module.def("allocate_on_device", &allocate, nb::arg("device"), nb::arg("bytes"));
}

}  // namespace

void bind_memory(nb::module_& module) {
  bind_device_memory(module);
  nb::class_<Memory>(module, "Memory", nb::type_slots(memory_slots))
      .def("__len__", [](const Memory& memory) { return memory.bytes; })
      .def_prop_ro("address", [](const Memory& memory) { return reinterpret_cast<std::uintptr_t>(memory.data); });
}

}  // namespace infercluster::python
