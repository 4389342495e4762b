// SPDX-License-Identifier: Apache-2.0
#include "errors.h"

#include <string_view>

namespace nb = nanobind;

namespace infercluster::python {

namespace {

// Text of the core may hold bytes of hostile files and names.
nb::object text(std::string_view bytes) {
  return nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
}

nb::object file_name(std::string_view bytes) {
  return nb::steal(PyUnicode_DecodeFSDefaultAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
}

}  // namespace

void raise(const Error& error) {
  const nb::object make = nb::module_::import_("infercluster._errors").attr("exception");
  nb::object offset = nb::none();
  if (error.offset()) offset = nb::int_(*error.offset());
  const nb::object exception =
      make(text(name_of(error.code())), error.system_errno(), text(error.message()), file_name(error.path()), offset,
           text(error.tensor()), text(error.hint()), text(error.kind()));
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

}  // namespace infercluster::python
