// SPDX-License-Identifier: Apache-2.0
// Checkpoints. Every call that may wait gives up the GIL; the package calls those from a thread of its own, so that
// Ctrl-C gets through.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "errors.h"
#include "exchange.h"
#include "gil.h"
#include "infercluster/checkpoint.h"
#include "running.h"
#include "safetensors/dtype.h"

namespace nb = nanobind;

namespace infercluster::python {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Piece;

// Keeps the ranks that its checkpointer talks to.
struct Owner {
  std::shared_ptr<exchange::Exchange> ranks;  // null: this process alone
  std::unique_ptr<checkpoint::Checkpointer> checkpointer;
};
using Checkpointer = Running<Owner>;
using Numbers = std::vector<std::uint64_t>;
using Saved = std::shared_ptr<checkpoint::Save>;

std::string path_of(const nb::bytes& path) {
  return {static_cast<const char*>(path.data()), path.size()};
}

std::chrono::nanoseconds in_nanoseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

nb::str as_text(std::string_view text) {
  return nb::str(text.data(), text.size());
}

// Of one rank, to save or to load into. Memory at addresses is the caller's, who keeps it until the call returns.
class Tensors {
 public:
  void add(std::string name, const std::string& dtype, Numbers shape, Numbers offsets, Numbers lengths,
           std::uintptr_t address, checkpoint::Strides strides) {
    const auto known = safetensors::parse_dtype(dtype);
    if (!known) raise(Error(ErrorCode::invalid_argument, "there is no dtype \"" + dtype + "\"").with_tensor(name));
    pieces.push_back({std::move(name), *known, std::move(shape), {std::move(offsets), std::move(lengths)}});
    memory.push_back({reinterpret_cast<std::byte*>(address), std::move(strides)});  // NOLINT: the caller's tensor
  }

  // Of the tensor that was added last. `cuts`: dimension of the mesh, dimension of the tensor, in the order they are
  // made.
  void shard(const std::shared_ptr<checkpoint::Mesh>& mesh,
             const std::vector<std::pair<std::uint64_t, std::uint64_t>>& cuts) {
    if (pieces.empty()) raise(Error(ErrorCode::invalid_argument, "no tensor was added"));
    checkpoint::Sharding sharding{mesh, {}};
    for (const auto& [mesh_dimension, tensor_dimension] : cuts)
      sharding.cuts.push_back({mesh_dimension, tensor_dimension});
    pieces.back().sharding = std::move(sharding);
  }

  struct Memory {
    std::byte* data = nullptr;
    checkpoint::Strides strides;
  };
  std::vector<Piece> pieces;
  std::vector<Memory> memory;
};

Checkpointer open(const nb::bytes& root, const std::optional<Ranks>& ranks, std::uint64_t keep,
                  std::uint64_t keep_every, std::uint64_t arena_bytes, std::uint64_t max_write_rate,
                  double call_seconds, double write_seconds) {
  const std::string path = path_of(root);
  auto owner = std::make_unique<Owner>();
  checkpoint::Options options;
  options.retention = {.keep = keep, .keep_every = keep_every};
  options.arena_bytes = arena_bytes;
  options.max_write_rate = max_write_rate;
  options.call_deadline = in_nanoseconds(call_seconds);
  options.write_deadline = in_nanoseconds(write_seconds);
  if (ranks) {
    owner->ranks = ranks->exchange;
    options.exchange = owner->ranks.get();
  }
  owner->checkpointer = unwrap(without_gil([&] { return checkpoint::Checkpointer::open(path, options); }));
  return Checkpointer(std::move(owner));
}

Saved save(const Checkpointer& self, std::uint64_t step, const Tensors& tensors, manifest::Metadata metadata,
           bool replace, bool wait) {
  const auto owner = self.get();
  checkpoint::State state;
  for (std::size_t i = 0; i < tensors.pieces.size(); ++i)
    state.pieces.push_back({tensors.pieces[i], tensors.memory[i].data, tensors.memory[i].strides});
  state.metadata = std::move(metadata);
  checkpoint::SaveOptions options;
  if (wait) options.wait = checkpoint::Wait::until_durable;
  options.exists = replace ? checkpoint::Exists::replace : checkpoint::Exists::error;
  // Const for everybody, which Python cannot say.
  return std::const_pointer_cast<checkpoint::Save>(
      unwrap(without_gil([&] { return owner->checkpointer->save(step, state, options); })));
}

ErrorCode code_of(std::string_view name) {
  for (int i = 0; i < static_cast<int>(ErrorCode::internal); ++i) {
    const auto code = static_cast<ErrorCode>(i);
    if (name_of(code) == name) return code;
  }
  return ErrorCode::internal;
}

// `failed`: the code's name, errno and message of what this rank met with, or None.
void conclude(const Checkpointer& self, const std::optional<std::tuple<std::string, int, std::string>>& failed) {
  const auto owner = self.get();
  Status own;
  if (failed) {
    const auto& [code, number, message] = *failed;
    own = Error(code_of(code), message).with_errno(number);
  }
  unwrap(without_gil([&] { return owner->checkpointer->conclude(own); }));
}

nb::dict report_of(const checkpoint::Save& save) {
  const checkpoint::SaveReport report = save.report();
  nb::dict result;
  result["step"] = report.step;
  result["epoch"] = report.epoch;
  result["bytes"] = report.bytes;
  result["stall_seconds"] = report.stall_seconds;
  result["arena_wait_seconds"] = report.arena_wait_seconds;
  result["agree_seconds"] = report.agree_seconds;
  result["copy_seconds"] = report.copy_seconds;
  result["write_seconds"] = report.write_seconds;
  result["durable_seconds"] = report.durable_seconds;
  result["direct"] = report.direct;
  result["layout"] = report.layout;
  result["plan_reused"] = report.plan_reused;
  result["waves"] = report.waves;
  return result;
}

void bind_save(nb::module_& module) {
  nb::class_<checkpoint::Save>(module, "Save")
      .def_prop_ro("status", [](const checkpoint::Save& self) { return as_text(name_of(self.status())); })
      .def("wait_for",
           [](const checkpoint::Save& self, double seconds) {
             return without_gil([&] { return self.wait_for(in_nanoseconds(seconds)); });
           })
      .def("raise_error", [](const checkpoint::Save& self) { unwrap(without_gil([&] { return self.wait(); })); })
      .def("report", &report_of);
}

void bind_checkpointer(nb::module_& module) {
  nb::class_<Checkpointer>(module, "Checkpointer")
      .def("save", &save, nb::arg("step"), nb::arg("tensors"), nb::arg("metadata"), nb::arg("replace"), nb::arg("wait"))
      .def("conclude", &conclude, nb::arg("failed").none())
      .def("cancel",
           [](const Checkpointer& self) {
             const auto owner = self.get();
             without_gil([&] { owner->checkpointer->cancel(); });
           })
      .def("wait_idle",
           [](const Checkpointer& self) {
             const auto owner = self.get();
             without_gil([&] { owner->checkpointer->wait_idle(); });
           })
      .def("steps",
           [](const Checkpointer& self) {
             const auto owner = self.get();
             return unwrap(without_gil([&] { return owner->checkpointer->steps(); }));
           })
      .def("latest",
           [](const Checkpointer& self) {
             const auto owner = self.get();
             return unwrap(without_gil([&] { return owner->checkpointer->latest(); }));
           })
      .def("agree_on_latest",
           [](const Checkpointer& self) {
             const auto owner = self.get();
             return unwrap(without_gil([&] { return owner->checkpointer->agree_on_latest(); }));
           })
      .def("prepare",
           [](const Checkpointer& self, std::uint64_t bytes) {
             const auto owner = self.get();
             unwrap(without_gil([&] { return owner->checkpointer->prepare(bytes); }));
           })
      .def("close", &Checkpointer::close);
  module.def("open_checkpointer", &open, nb::arg("root"), nb::arg("ranks").none(), nb::arg("keep"),
             nb::arg("keep_every"), nb::arg("arena_bytes"), nb::arg("max_write_rate"), nb::arg("call_seconds"),
             nb::arg("write_seconds"));
}

std::shared_ptr<Checkpoint> open_step(const nb::bytes& root, std::uint64_t step) {
  const std::string path = path_of(root);
  return unwrap(without_gil([&] { return checkpoint::open_at(path, step); }));
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
  std::vector<checkpoint::Target> targets;
  for (std::size_t i = 0; i < tensors.pieces.size(); ++i)
    targets.push_back({tensors.pieces[i], tensors.memory[i].data, tensors.memory[i].strides});
  const checkpoint::RestoreReport report =
      unwrap(without_gil([&] { return self.restore(targets, checkpoint::RestoreOptions{}); }));
  nb::dict result;
  result["bytes"] = report.bytes_wanted;
  result["bytes_read"] = report.bytes_read;
  result["segments"] = report.segments;
  result["seconds"] = report.seconds;
  return result;
}

void bind_restore(nb::module_& module) {
  nb::class_<Checkpoint>(module, "Checkpoint")
      .def_prop_ro("path", [](const Checkpoint& self) { return self.path(); })
      .def_prop_ro("world", [](const Checkpoint& self) { return self.commit().world; })
      .def_prop_ro("epoch", [](const Checkpoint& self) { return self.commit().epoch; })
      .def("tensors", &tensors_of)
      .def("metadata", &metadata_of)
      .def("restore", &restore, nb::arg("tensors"));
  module.def("open_checkpoint", &open_step, nb::arg("root"), nb::arg("step"));
}

}  // namespace

void bind_checkpoint(nb::module_& module) {
  nb::class_<Tensors>(module, "Tensors")
      .def(nb::init<>())
      .def("add", &Tensors::add, nb::arg("name"), nb::arg("dtype"), nb::arg("shape"), nb::arg("offsets"),
           nb::arg("lengths"), nb::arg("address"), nb::arg("strides"))
      .def("shard", &Tensors::shard, nb::arg("mesh"), nb::arg("cuts"))
      .def("__len__", [](const Tensors& self) { return self.pieces.size(); });
  nb::class_<checkpoint::Mesh>(module, "Mesh");
  module.def(
      "mesh",
      [](Numbers shape, Numbers ranks) {
        return std::make_shared<checkpoint::Mesh>(unwrap(checkpoint::Mesh::of(std::move(shape), std::move(ranks))));
      },
      nb::arg("shape"), nb::arg("ranks"));
  bind_save(module);
  bind_checkpointer(module);
  bind_restore(module);
}

}  // namespace infercluster::python
