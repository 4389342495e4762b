// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string_view>
#include <type_traits>

#include "bindings.h"
#include "load/report_fields.h"

namespace nb = nanobind;

namespace infercluster::python {

namespace {

// Of whatever visit_fields() knows. A path is what the file system has, UTF-8 or not.
template <typename Fields>
nb::dict document(const Fields& fields) {
  nb::dict result;
  load::visit_fields(fields, [&result]<typename Value>(std::string_view name, const Value& value) {
    const nb::str key(name.data(), name.size());
    if constexpr (std::is_same_v<Value, load::Waited>) {
      result[key] = document(value);
    } else if constexpr (std::is_same_v<Value, std::vector<load::FileReport>>) {
      nb::list files;
      for (const load::FileReport& file : value) files.append(document(file));
      result[key] = files;
    } else if constexpr (std::is_same_v<Value, std::string>) {
      result[key] = name == "path" ? nb::steal<nb::str>(PyUnicode_DecodeFSDefaultAndSize(
                                         value.data(), static_cast<Py_ssize_t>(value.size())))
                                   : nb::str(value.data(), value.size());
    } else {
      result[key] = value;
    }
  });
  return result;
}

}  // namespace

nb::dict report_dict(const load::Report& report) {
  return document(report);
}

}  // namespace infercluster::python
