// SPDX-License-Identifier: Apache-2.0
#include "repository.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "errors.h"
#include "infercluster/infercluster.h"
#include "load/selection.h"
#include "safetensors/dtype.h"

namespace nb = nanobind;

namespace infercluster::python {
namespace {

using Identity = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::int64_t, std::int64_t>;

Repository open_source(nb::bytes source, std::string revision) {
  const std::string path = string_of(source);
  OpenOptions options;
  options.revision = std::move(revision);
  return {unwrap(without_gil([&] { return open(path, options); }))};
}

nb::object file_name(const std::string& path) {
  return nb::steal(PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
}

nb::list files(const Repository& repository) {
  nb::list result;
  for (const auto& shard : repository.inner->shards()) result.append(file_name(shard.path));
  return result;
}

std::vector<Identity> identities(const Repository& repository) {
  std::vector<Identity> result;
  for (const auto& shard : repository.inner->shards()) {
    const os::FileIdentity& found = shard.identity;
    result.emplace_back(found.device, found.inode, found.size, found.mtime_ns, found.ctime_ns);
  }
  return result;
}

nb::dict metadata(const Repository& repository) {
  nb::dict result;
  for (const auto& [key, value] : repository.inner->metadata()) result[nb::str(key.c_str(), key.size())] = value;
  return result;
}

std::vector<std::string> names(const Repository& repository) {
  std::vector<std::string> result;
  result.reserve(repository.inner->tables().tensors.size());
  for (const load::TensorRef& ref : repository.inner->tables().tensors)
    result.push_back(repository.inner->tensor(ref).name);
  return result;
}

// dtype, shape, bytes, file
nb::object find(const Repository& repository, std::string_view name) {
  const load::TensorRef* ref = repository.inner->find(name);
  if (ref == nullptr) return nb::none();
  const safetensors::Tensor& tensor = repository.inner->tensor(*ref);
  const std::string_view dtype = safetensors::name_of(tensor.dtype);
  return nb::make_tuple(nb::str(dtype.data(), dtype.size()), nb::tuple(nb::cast(tensor.shape)), tensor.bytes(),
                        file_name(repository.inner->shards()[ref->shard].path));
}

// Writes the checksums of a source's files; returns the paths of the seals.
std::vector<std::string> write_seals(nb::bytes source, std::string directory) {
  const Repository repository = open_source(std::move(source), "");
  SealOptions options;
  options.directory = std::move(directory);
  const SealReport report = unwrap(without_gil([&] { return seal(*repository.inner, options); }));
  std::vector<std::string> paths;
  for (const auto& file : report.files) paths.push_back(file.seal_path);
  return paths;
}

}  // namespace

void bind_repository(nb::module_& module) {
  nb::class_<Repository>(module, "Repository")
      .def_prop_ro("metadata", &metadata)
      .def_prop_ro("files", &files)
      .def_prop_ro("identities", &identities)  // of the files: device, inode, size, mtime_ns, ctime_ns
      .def_prop_ro("warnings", [](const Repository& repository) { return repository.inner->warnings; })
      .def("names", &names)  // in the order of files and offsets
      .def("find", &find);
  module.def("open", &open_source, nb::arg("source"), nb::arg("revision"));
  module.def("matches", &load::matches);
  module.def("seal", &write_seals, nb::arg("source"), nb::arg("directory") = "");
}

}  // namespace infercluster::python
