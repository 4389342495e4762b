// SPDX-License-Identifier: Apache-2.0
// One open file, for small reads that a load job would be too much for.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>

#include "base/fd.h"
#include "bindings.h"
#include "errors.h"
#include "os/file.h"

namespace nb = nanobind;

namespace infercluster::python {
namespace {

using Identity = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::int64_t, std::int64_t>;

// Thread-safe: nothing changes after open.
struct File {
  Fd fd;
  std::string path;
};

File open_file(nb::bytes name) {
  std::string path = string_of(name);
  Fd fd = unwrap(without_gil([&] { return os::open_for_reading(path); }));
  return {std::move(fd), std::move(path)};
}

Identity identity(const File& file) {
  const os::FileIdentity found = unwrap(without_gil([&] { return os::identity_of(file.fd); }));
  return {found.device, found.inode, found.size, found.mtime_ns, found.ctime_ns};
}

// Into memory at `address` that the caller keeps.
void read_into(const File& file, std::uintptr_t address, std::uint64_t bytes, std::uint64_t offset) {
  auto* memory = reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
  unwrap(without_gil([&] { return os::read_exactly(file.fd, {memory, bytes}, offset, file.path); }));
}

nb::bytes read(const File& file, std::uint64_t bytes, std::uint64_t offset) {
  nb::object result = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
  if (!result.is_valid()) throw nb::python_error();
  read_into(file, reinterpret_cast<std::uintptr_t>(PyBytes_AsString(result.ptr())), bytes, offset);
  return nb::bytes(result);
}

}  // namespace

void bind_file(nb::module_& module) {
  nb::class_<File>(module, "File")
      .def_prop_ro("identity", &identity)  // device, inode, size, mtime_ns, ctime_ns
      .def("read_into", &read_into, nb::arg("address"), nb::arg("bytes"), nb::arg("offset"))
      .def("read", &read, nb::arg("bytes"), nb::arg("offset"));
  module.def("open_file", &open_file, nb::arg("path"));
}

}  // namespace infercluster::python
