// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <nanobind/nanobind.h>

#include <cstdint>

#include "bindings.h"

namespace nb = nanobind;

namespace infercluster::python {
namespace {

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const auto* memory = nb::inst_ptr<Memory>(self);
  return PyBuffer_FillInfo(view, self, memory->data, static_cast<Py_ssize_t>(memory->bytes), 0, flags);
}

PyType_Slot memory_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)}, {0, nullptr}};

}  // namespace

void bind_memory(nb::module_& module) {
  nb::class_<Memory>(module, "Memory", nb::type_slots(memory_slots))
      .def("__len__", [](const Memory& memory) { return memory.bytes; })
      .def_prop_ro("address", [](const Memory& memory) { return reinterpret_cast<std::uintptr_t>(memory.data); });
}

}  // namespace infercluster::python
