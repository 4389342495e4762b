// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings.h"
#include "errors.h"
#include "safetensors/dtype.h"
#include "safetensors/header.h"

namespace nb = nanobind;
namespace st = infercluster::safetensors;

namespace infercluster::python {
namespace {

using Described = std::tuple<std::string, std::string, std::vector<std::uint64_t>>;  // name, dtype, shape
using Placed = std::tuple<std::string, std::uint64_t, std::uint64_t>;                // name, begin, end

nb::tuple shape_tuple(const std::vector<std::uint64_t>& shape) {
  return nb::tuple(nb::cast(shape));
}

nb::tuple info(const st::Header& header, const st::Tensor& tensor) {
  const std::string_view dtype = st::name_of(tensor.dtype);
  return nb::make_tuple(nb::str(dtype.data(), dtype.size()), shape_tuple(tensor.shape),
                        header.data_begin() + tensor.begin, header.data_begin() + tensor.end);
}

st::Dtype dtype_named(const std::string& name) {
  const auto dtype = st::parse_dtype(name);
  if (!dtype) raise(Error(ErrorCode::invalid_argument, "unknown dtype " + name));
  return *dtype;
}

std::uint64_t header_length(nb::bytes prefix, std::uint64_t file_size) {
  return unwrap(st::parse_header_length({static_cast<const std::byte*>(prefix.data()), prefix.size()}, file_size));
}

st::Header parse(nb::bytes json, std::uint64_t file_size) {
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(json.data()), json.size());
  return unwrap(without_gil([&] { return st::parse_header(bytes, file_size); }));
}

// The bytes before the data, and where each tensor goes in the data section, in the file's order.
std::pair<nb::bytes, std::vector<Placed>> build(
    const std::vector<Described>& described,
    const std::optional<std::vector<std::pair<std::string, std::string>>>& metadata) {
  std::vector<st::Tensor> tensors;
  tensors.reserve(described.size());
  for (const auto& [name, dtype, shape] : described) {
    tensors.push_back({.name = name, .dtype = dtype_named(dtype), .shape = shape});
  }
  const std::string header = unwrap(st::build_header(tensors, metadata));
  std::vector<Placed> placed;
  placed.reserve(tensors.size());
  for (const auto& tensor : tensors) placed.emplace_back(tensor.name, tensor.begin, tensor.end);
  return {nb::bytes(header.data(), header.size()), std::move(placed)};
}

std::vector<std::string> names(const st::Header& header) {
  std::vector<std::string> all;
  all.reserve(header.tensors().size());
  for (const auto& tensor : header.tensors()) all.push_back(tensor.name);
  return all;
}

}  // namespace

void bind_safetensors(nb::module_& module) {
  nb::class_<st::Header>(module, "Header")
      .def("names", &names)  // in the file's order
      .def("find",
           [](const st::Header& header, std::string_view name) -> nb::object {
             const st::Tensor* tensor = header.find(name);
             return tensor == nullptr ? nb::object(nb::none()) : nb::object(info(header, *tensor));
           })
      .def_prop_ro("metadata", [](const st::Header& header) { return header.metadata(); })
      .def_prop_ro("data_begin", &st::Header::data_begin);
  module.def("parse_header_length", &header_length, nb::arg("prefix"), nb::arg("file_size"));
  module.def("parse_header", &parse, nb::arg("json"), nb::arg("file_size"));
  module.def("build_header", &build, nb::arg("tensors"), nb::arg("metadata").none());
  module.def("tensor_bytes", [](const std::string& dtype, const std::vector<std::uint64_t>& shape) {
    return unwrap(st::tensor_bytes(dtype_named(dtype), shape));
  });
}

}  // namespace infercluster::python
