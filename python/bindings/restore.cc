// SPDX-License-Identifier: Apache-2.0
#include "restore.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "errors.h"
#include "exchange.h"
#include "gil.h"
#include "safetensors/dtype.h"
#include "tensors.h"

namespace nb = nanobind;

namespace infercluster::python {
namespace {

using checkpoint::Checkpoint;

ErrorCode code_of(std::string_view name) {
  for (int i = 0; i < static_cast<int>(ErrorCode::internal); ++i) {
    const auto code = static_cast<ErrorCode>(i);
    if (name_of(code) == name) return code;
  }
  return ErrorCode::internal;
}

std::shared_ptr<Checkpoint> open_step(const nb::bytes& root, std::optional<std::uint64_t> step) {
  const std::string path = string_of(root);
  return unwrap(without_gil([&] { return checkpoint::open_at(path, step); }));
}

std::shared_ptr<Checkpoint> open_own(const nb::bytes& root, std::uint64_t step, std::uint64_t rank,
                                     std::uint64_t world) {
  const std::string path = string_of(root);
  return unwrap(without_gil([&] { return Checkpoint::open_own(io::system_files(), path, step, rank, world); }));
}

std::shared_ptr<Checkpoint> open_in(const nb::bytes& directory) {
  const std::string path = string_of(directory);
  return unwrap(without_gil([&]() -> Result<std::unique_ptr<Checkpoint>> {
    io::FileCalls& calls = io::system_files();
    IC_TRY(const io::Directory opened, calls.open_directory(path));
    return Checkpoint::open_directory(calls, opened);
  }));
}

bool is_stock(const nb::bytes& directory) {
  const std::string path = string_of(directory);
  return unwrap(without_gil([&]() -> Result<bool> {
    const auto opened = io::system_files().open_directory(path);
    return opened.ok() ? checkpoint::is_stock_dcp(io::system_files(), *opened) : Result<bool>(false);
  }));
}

// By tensor: offsets and lengths of what each chunk holds, but for chunks without elements.
nb::dict boxes_of(const Checkpoint& self) {
  nb::dict result;
  for (const auto& [name, tensor] : self.tensors()) {
    nb::list boxes;
    for (const auto& part : tensor.parts) {
      const manifest::Chunk& chunk = self.indexes()[part.index].chunks[part.chunk];
      if (chunk.bytes > 0)
        boxes.append(nb::make_tuple(nb::tuple(nb::cast(chunk.box.offsets)), nb::tuple(nb::cast(chunk.box.lengths))));
    }
    result[as_text(name)] = boxes;
  }
  return result;
}

// name -> (dtype, shape, how many chunks)
nb::dict tensors_of(const Checkpoint& self) {
  nb::dict result;
  for (const auto& [name, tensor] : self.tensors()) {
    result[as_text(name)] = nb::make_tuple(as_text(safetensors::name_of(tensor.dtype)),
                                           nb::tuple(nb::cast(tensor.shape)), tensor.parts.size());
  }
  return result;
}

// By rank that saved: key -> text
nb::list metadata_of(const Checkpoint& self) {
  nb::list result;
  for (const manifest::Index& index : self.indexes()) {
    nb::dict texts;
    for (const auto& [key, text] : index.metadata) texts[as_text(key)] = as_text(text);
    result.append(texts);
  }
  return result;
}

nb::dict restore(const Checkpoint& self, const Tensors& tensors) {
  const std::vector<checkpoint::Target> targets = tensors.targets();
  return load_report_of(unwrap(without_gil([&] { return self.restore(targets, tensors.restore_options()); })));
}

// By some ranks of a job, for the same save. On all of them the same error, if any.
nb::dict restore_by(const Ranks& self, const Checkpoint& checkpoint, const Tensors& tensors, double met_seconds,
                    double done_seconds) {
  const std::vector<checkpoint::Target> targets = tensors.targets();
  return load_report_of(unwrap(without_gil([&] {
    return checkpoint::restore_together(checkpoint, targets, tensors.restore_options(),
                                        {*self.exchange, exchange::deadline_in(in_nanoseconds(met_seconds)),
                                         exchange::deadline_in(in_nanoseconds(done_seconds))});
  })));
}

void bind_checkpoint_class(nb::module_& module) {
  nb::class_<Checkpoint>(module, "Checkpoint")
      .def_prop_ro("path", [](const Checkpoint& self) { return self.path(); })
      .def_prop_ro("step", [](const Checkpoint& self) { return self.commit().step; })
      .def_prop_ro("world", [](const Checkpoint& self) { return self.commit().world; })
      .def_prop_ro("epoch", [](const Checkpoint& self) { return self.commit().epoch; })
      .def_prop_ro("save_id", [](const Checkpoint& self) { return self.commit().save_id; })
      .def_prop_ro("is_whole", &Checkpoint::is_whole)
      .def(
          "covers", [](const Checkpoint& self, const Tensors& tensors) { return self.covers(tensors.targets()); },
          nb::arg("tensors"))
      .def("tensors", &tensors_of)
      .def("boxes", &boxes_of)
      .def("metadata", &metadata_of)
      .def("restore", &restore, nb::arg("tensors"));
  module.def("open_checkpoint", &open_step, nb::arg("root"), nb::arg("step"));
  module.def("open_own_checkpoint", &open_own, nb::arg("root"), nb::arg("step"), nb::arg("rank"), nb::arg("world"));
  module.def("is_stock_dcp", &is_stock, nb::arg("directory"));
  module.def("open_checkpoint_in", &open_in, nb::arg("directory"));
}

}  // namespace

Error error_of(const Described& failed) {
  const auto& [code, number, message] = failed;
  return Error(code_of(code), message).with_errno(number);
}

nb::dict load_report_of(const checkpoint::RestoreReport& report) {
  nb::dict result;
  result["bytes"] = report.bytes_wanted;
  result["bytes_read"] = report.bytes_read;
  result["bytes_received"] = report.bytes_received;
  result["node_ranks"] = report.node_ranks;
  result["node_bytes_read"] = report.node_bytes_read;
  result["index_bytes"] = report.index_bytes;
  result["segments"] = report.segments;
  result["seconds"] = report.seconds;
  result["tier"] = "root";  // the package knows better where it is not
  result["notice"] = "";
  return result;
}

void bind_restore(nb::module_& module) {
  bind_checkpoint_class(module);
  module.def("neighbourhood", &checkpoint::neighbourhood);
  module.def("restore_by", &restore_by, nb::arg("ranks"), nb::arg("checkpoint"), nb::arg("tensors"),
             nb::arg("met_seconds"), nb::arg("done_seconds"));
}

}  // namespace infercluster::python
