// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace nb = nanobind;

namespace infercluster::python {

nb::dict report_dict(const load::Report& report) {
  nb::list files;
  for (const load::FileReport& file : report.files) {
    nb::dict entry;
    entry["path"] =
        nb::steal(PyUnicode_DecodeFSDefaultAndSize(file.path.data(), static_cast<Py_ssize_t>(file.path.size())));
    entry["bytes"] = file.bytes;
    entry["mode"] = file.mode;
    entry["reason"] = file.reason;
    entry["verification"] = file.verification;
    files.append(entry);
  }
  nb::dict waited;
  waited["storage"] = report.waited.storage;
  waited["memory"] = report.waited.memory;
  waited["verify"] = report.waited.verify;
  waited["other"] = report.waited.other;
  nb::dict result;
  result["bytes"] = report.bytes;
  result["tensors"] = report.tensors;
  result["seconds"] = report.seconds;
  result["gib_per_s"] = report.gib_per_s();
  result["backend"] = report.backend;
  result["backend_reason"] = report.backend_reason;
  result["peak_host_bytes"] = report.peak_host_bytes;
  result["working_bytes"] = report.working_bytes;
  result["files"] = files;
  result["waited"] = waited;
  result["moved_bytes"] = report.moved_bytes;
  result["bytes_read"] = report.bytes_read;
  result["requests"] = report.requests;
  result["retries"] = report.retries;
  result["page_cache_fill_bytes"] = report.page_cache_fill_bytes;
  result["donated_blocks"] = report.donated_blocks;
  result["notices"] = report.notices;
  return result;
}

}  // namespace infercluster::python
