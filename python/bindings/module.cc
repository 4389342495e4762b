// SPDX-License-Identifier: Apache-2.0
// infercluster._core: the public C++ API as Python sees it. No logic here; the typed package above it is the interface
// for users.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include "bindings.h"
#include "gil.h"
#include "infercluster/infercluster.h"

NB_MODULE(_core, module) {
  using namespace infercluster::python;
  nanobind::set_leak_warnings(false);  // tensors may outlive the interpreter's teardown
  module.def("version", &infercluster::version);
  module.def("metrics_text", [] { return infercluster::metrics_text(); });
  module.def("prepare_exit", &prepare_exit);
  bind_log(module);
  bind_memory(module);
  bind_safetensors(module);
  bind_file(module);
  bind_repository(module);
  bind_job(module);
  bind_exchange(module);
  bind_checkpoint(module);
  bind_staging(module);
}
