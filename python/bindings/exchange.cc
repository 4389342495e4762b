// SPDX-License-Identifier: Apache-2.0
// The ranks of a job: in a shared directory, or over a store of the caller, such as torch's.
#include "exchange.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "errors.h"
#include "gil.h"
#include "infercluster/checkpoint.h"
#include "restore.h"

namespace nb = nanobind;

namespace infercluster::python {
namespace {

exchange::Deadline deadline_after(double seconds) {
  return exchange::deadline_in(in_nanoseconds(seconds));
}

nb::bytes as_bytes(const std::string& text) {
  return nb::bytes(text.data(), text.size());
}

std::string as_string(nb::handle object) {
  return string_of(nb::cast<nb::bytes>(object));
}

// A Python object that threads of the core hold and call: they take the GIL for it.
class PythonStore {
 public:
  explicit PythonStore(nb::object store) : store_(new nb::object(std::move(store)), &drop) {}

  // `call` gets the object, with the GIL held. A Python exception becomes one that can leave it.
  template <typename Call>
  auto with_gil(const Call& call) const {
    if (is_exiting()) throw std::runtime_error("the interpreter is exiting");
    const nb::gil_scoped_acquire gil;
    try {
      return call(*store_);
    } catch (const nb::python_error& error) {
      throw std::runtime_error(error.what());  // made here: what() needs the GIL
    }
  }

 private:
  static void drop(nb::object* store) {
    if (is_exiting()) return;  // it goes with the process
    const nb::gil_scoped_acquire gil;
    delete store;  // NOLINT: owned by store_
  }

  std::shared_ptr<nb::object> store_;
};

exchange::StoreCallbacks callbacks_of(const PythonStore& store) {
  exchange::StoreCallbacks callbacks;
  callbacks.set = [store](const std::string& key, const std::string& value) {
    store.with_gil([&](const nb::object& it) { it.attr("set")(key, as_bytes(value)); });
  };
  callbacks.get = [store](const std::string& key, std::chrono::milliseconds wait) {
    return store.with_gil([&](const nb::object& it) {
      const nb::object found = it.attr("get")(key, std::chrono::duration<double>(wait).count());
      return found.is_none() ? std::nullopt : std::optional<std::string>(as_string(found));
    });
  };
  callbacks.set_if_absent = [store](const std::string& key, const std::string& value) {
    return store.with_gil(
        [&](const nb::object& it) { return as_string(it.attr("set_if_absent")(key, as_bytes(value))); });
  };
  callbacks.erase = [store](const std::string& key) {
    store.with_gil([&](const nb::object& it) { it.attr("erase")(key); });
  };
  return callbacks;
}

Ranks in_directory(const nb::bytes& directory, const std::string& name, int rank, int world, double seconds) {
  const std::string path = string_of(directory);
  const exchange::Deadline deadline = deadline_after(seconds);
  return {unwrap(without_gil([&] { return exchange::open_in_directory(path, name, {rank, world}, deadline); }))};
}

// `in_job`: exchange::Member has it.
Ranks over_store(nb::object store, int rank, int world, double seconds, std::vector<int> in_job, int job_world) {
  auto shared = exchange::make_callback_store(callbacks_of(PythonStore(std::move(store))));
  const exchange::Deadline deadline = deadline_after(seconds);
  exchange::Member member{rank, world, std::move(in_job), job_world};
  return {
      unwrap(without_gil([&] { return exchange::open_over_store(std::move(shared), std::move(member), deadline); }))};
}

std::vector<nb::bytes> gather(const Ranks& self, const std::string& tag, const nb::bytes& given, double seconds) {
  const std::string bytes = string_of(given);
  std::vector<nb::bytes> all;
  for (const std::string& of_rank :
       unwrap(without_gil([&] { return self.exchange->gather(tag, bytes, deadline_after(seconds)); })))
    all.push_back(as_bytes(of_rank));
  return all;
}

// Raises the first cause.
void end_with(const Ranks& self, const Described& failed, double seconds) {
  raise(without_gil([&] { return self.exchange->abort(error_of(failed), 0, deadline_after(seconds)); }));
}

}  // namespace

void bind_exchange(nb::module_& module) {
  nb::class_<Ranks>(module, "Ranks")
      .def_prop_ro("rank", [](const Ranks& self) { return self.exchange->rank(); })
      .def_prop_ro("world", [](const Ranks& self) { return self.exchange->world(); })
      .def("gather", &gather, nb::arg("tag"), nb::arg("given"), nb::arg("seconds"))
      .def("end_with", &end_with, nb::arg("failed"), nb::arg("seconds"));
  module.def("ranks_in_directory", &in_directory, nb::arg("directory"), nb::arg("name"), nb::arg("rank"),
             nb::arg("world"), nb::arg("seconds"));
  module.def("ranks_over_store", &over_store, nb::arg("store"), nb::arg("rank"), nb::arg("world"), nb::arg("seconds"),
             nb::arg("in_job") = std::vector<int>(), nb::arg("job_world") = 0);
}

}  // namespace infercluster::python
