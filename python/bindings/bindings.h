// SPDX-License-Identifier: Apache-2.0
// One function per file that adds its part to the module.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <string>

#include "load/report.h"

namespace infercluster::python {

void bind_log(nanobind::module_& module);
void bind_memory(nanobind::module_& module);
void bind_safetensors(nanobind::module_& module);
void bind_file(nanobind::module_& module);
void bind_repository(nanobind::module_& module);
void bind_job(nanobind::module_& module);
void bind_exchange(nanobind::module_& module);
void bind_checkpoint(nanobind::module_& module);
void bind_staging(nanobind::module_& module);

// What Python calls a path, or any other bytes.
inline std::string string_of(const nanobind::bytes& bytes) {
  return {static_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::chrono::nanoseconds in_nanoseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

nanobind::dict report_dict(const load::Report& report);  // infercluster.Report

}  // namespace infercluster::python
