// SPDX-License-Identifier: Apache-2.0
// Jobs and streams. Every call that may wait gives up the GIL. Nothing here looks at signals: waits are short, and
// Python looks between them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "errors.h"
#include "infercluster/infercluster.h"
#include "memory.h"
#include "repository.h"
#include "running.h"
#include "safetensors/dtype.h"

namespace nb = nanobind;

namespace infercluster::python {
namespace {

using Job = Running<load::Job>;
using Stream = Running<load::Stream>;

// name, dtype, shape, memory (None: it went into memory of the caller)
nb::tuple tensor_tuple(load::LoadedTensor&& tensor) {
  const std::string_view dtype = safetensors::name_of(tensor.dtype);
  nb::object memory = nb::none();
  if (tensor.owner != nullptr && tensor.device < 0) {
    memory = nb::cast(Memory{std::move(tensor.owner), tensor.data, tensor.bytes});
  } else if (tensor.owner != nullptr) {
    memory = nb::cast(DeviceMemory{std::move(tensor.owner), tensor.data, tensor.bytes, tensor.device});
  }
  return nb::make_tuple(nb::str(tensor.name.c_str(), tensor.name.size()), nb::str(dtype.data(), dtype.size()),
                        nb::tuple(nb::cast(tensor.shape)), memory);
}

nb::tuple finish(const Job& self) {
  const auto job = self.get();
  load::Loaded loaded = unwrap(without_gil([&] { return job->finish(); }));
  nb::list tensors;
  for (load::LoadedTensor& tensor : loaded.tensors) tensors.append(tensor_tuple(std::move(tensor)));
  nb::dict metadata;
  for (const auto& [key, value] : loaded.metadata) metadata[nb::str(key.c_str(), key.size())] = value;
  return nb::make_tuple(tensors, metadata, report_dict(loaded.report));
}

// A tensor's tuple; None: none came in time; False: the stream has ended.
nb::object next(const Stream& self, double seconds) {
  const auto stream = self.get();
  load::Stream::Next found = unwrap(without_gil([&] { return stream->next(in_nanoseconds(seconds)); }));
  switch (found.state) {
    case load::Stream::State::waiting:
      return nb::none();
    case load::Stream::State::ended:
      return nb::bool_(false);
    case load::Stream::State::tensor:
      break;
  }
  return tensor_tuple(std::move(*found.tensor));
}

template <typename T>
std::pair<std::uint64_t, std::uint64_t> progress(const Running<T>& self) {
  const auto running = self.get();
  const load::Progress progress = without_gil([&] { return running->progress(); });
  return {progress.bytes_done, progress.bytes_total};
}

void set_verify(load::Options& options, const std::string& name) {
  if (name == "auto") {
    options.verify = load::Verify::automatic;
  } else if (name == "always") {
    options.verify = load::Verify::always;
  } else if (name == "never") {
    options.verify = load::Verify::never;
  } else {
    raise(Error(ErrorCode::invalid_argument, "verify is \"" + name + "\"; expected \"auto\", \"always\" or \"never\""));
  }
}

void add_slice(load::Options& options, std::string pattern,
               const std::vector<std::pair<std::uint64_t, std::uint64_t>>& ranges) {
  load::SliceRule rule{.pattern = std::move(pattern), .ranges = {}, .shard = std::nullopt};
  for (const auto& [begin, end] : ranges) rule.ranges.push_back({begin, end});
  options.slices.push_back(std::move(rule));
}

void add_shard(load::Options& options, std::string pattern, std::uint32_t dimension, std::uint32_t rank,
               std::uint32_t world) {
  options.slices.push_back({.pattern = std::move(pattern), .ranges = {}, .shard = load::Shard{dimension, rank, world}});
}

// `device`: -1 is the host.
void add_into(load::Options& options, std::string name, std::uintptr_t address, std::uint64_t bytes, int device) {
  const memory::Kind kind = device < 0 ? memory::Kind::host : memory::Kind::cuda;
  options.into.push_back(
      {.name = std::move(name), .destination = {.kind = kind, .device = device, .address = address, .bytes = bytes}});
}

// A Python object that keeps memory, let go on any thread. One that is left when the interpreter ends stays: nobody
// could take the GIL any more.
std::shared_ptr<void> owner_of(nb::object object) {
  PyObject* const kept = object.release().ptr();
  return {kept, [](void* held) {
            if (!Py_IsInitialized() || is_exiting()) return;
            const nb::gil_scoped_acquire gil;
            Py_DECREF(static_cast<PyObject*>(held));
          }};
}

// `allocate(bytes)` gives an object that keeps the memory, and its address; called with the GIL, on threads of ours
// too.
memory::Allocate caller_allocator(nb::object allocate, int ordinal) {
  const std::shared_ptr<void> callable = owner_of(std::move(allocate));
  return [callable, ordinal](std::uint64_t bytes) -> Result<memory::Block> {
    if (is_exiting()) return Error(ErrorCode::cancelled, "the interpreter is exiting");
    const nb::gil_scoped_acquire gil;
    try {
      nb::object made = nb::borrow(static_cast<PyObject*>(callable.get()))(bytes);
      const auto [owner, address] = nb::cast<std::pair<nb::object, std::uintptr_t>>(made);
      return memory::Block{{memory::Kind::cuda, ordinal, address, bytes}, owner_of(owner), nullptr};
    } catch (const std::exception& error) {  // a Python exception: torch's "CUDA out of memory", which says enough
      return Error(ErrorCode::out_of_memory, "the device's allocator failed: " + std::string(error.what()))
          .with_hint("Load fewer tensors or slices of them, stream them, or free memory of the device");
    }
  };
}

void set_device(load::Options& options, int ordinal, std::uintptr_t stream, nb::object allocate) {
  load::DeviceOptions& device = options.device.emplace();
  device.ordinal = ordinal;
  device.stream = stream;
  if (!allocate.is_none()) device.allocate = caller_allocator(std::move(allocate), ordinal);
}

void bind_options(nb::module_& module) {
  nb::class_<load::Options>(module, "Options")
      .def_rw("names", &load::Options::names)
      .def_rw("memory", &load::Options::memory)
      .def_prop_rw(
          "latency_target",
          [](const load::Options& options) { return std::chrono::duration<double>(options.latency_target).count(); },
          [](load::Options& options, double seconds) { options.latency_target = in_nanoseconds(seconds); })
      .def("set_verify", &set_verify)
      .def("add_slice", &add_slice, nb::arg("pattern"), nb::arg("ranges"))
      .def("add_shard", &add_shard, nb::arg("pattern"), nb::arg("dimension"), nb::arg("rank"), nb::arg("world"))
      .def("add_into", &add_into, nb::arg("name"), nb::arg("address"), nb::arg("bytes"), nb::arg("device") = -1)
      .def("set_device", &set_device, nb::arg("ordinal"), nb::arg("stream"), nb::arg("allocate").none())
      .def_prop_ro("device",
                   [](const load::Options& options) { return options.device ? options.device->ordinal : -1; });
  module.def("options_from_environment", [] { return unwrap(options_from_environment()); });
}

}  // namespace

void bind_job(nb::module_& module) {
  bind_options(module);
  nb::class_<Job>(module, "Job")
      .def("wait",
           [](const Job& self, double seconds) {
             const auto job = self.get();
             return without_gil([&] { return job->wait_for(in_nanoseconds(seconds)); });
           })
      .def("wait_for_page_cache",
           [](const Job& self, double seconds) {
             const auto job = self.get();
             return without_gil([&] { return job->wait_for_page_cache(in_nanoseconds(seconds)); });
           })
      .def("cancel", [](const Job& self) { self.get()->cancel(); })
      .def("progress", &progress<load::Job>)
      .def("finish", &finish)
      .def("close", &Job::close);
  nb::class_<Stream>(module, "Stream")
      .def("next", &next)
      .def("cancel", [](const Stream& self) { self.get()->cancel(); })
      .def("progress", &progress<load::Stream>)
      .def("report",
           [](const Stream& self) {
             const auto stream = self.get();  // without the GIL: its lock may be held by who waits for the GIL
             return report_dict(without_gil([&] { return stream->report(); }));
           })
      .def("close", &Stream::close);
  module.def("start_load", [](const Repository& repository, const load::Options& options) {
    return Job(unwrap(without_gil([&] { return start_load(repository.inner, options); })));
  });
  module.def("start_stream", [](const Repository& repository, const load::Options& options) {
    return Stream(unwrap(without_gil([&] { return start_stream(repository.inner, options); })));
  });
}

}  // namespace infercluster::python
