// SPDX-License-Identifier: Apache-2.0
// One function per file that adds its part to the module.
#pragma once

#include <nanobind/nanobind.h>

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

nanobind::dict report_dict(const load::Report& report);  // infercluster.Report

}  // namespace infercluster::python
