// SPDX-License-Identifier: Apache-2.0
// What readers of a report see, by name and in this order: one list for the program's JSON and the Python package.
// `visit(name, value)` is called with a number, text, a list of either, a Waited, or a list of FileReports.
#pragma once

#include "load/report.h"

namespace infercluster::load {

template <typename Visit>
void visit_fields(const FileReport& file, const Visit& visit) {
  visit("path", file.path);
  visit("bytes", file.bytes);
  visit("mode", file.mode);
  visit("reason", file.reason);
  visit("verification", file.verification);
}

template <typename Visit>
void visit_fields(const Waited& waited, const Visit& visit) {
  visit("storage", waited.storage);
  visit("memory", waited.memory);
  visit("verify", waited.verify);
  visit("other", waited.other);
}

template <typename Visit>
void visit_fields(const Report& report, const Visit& visit) {
  visit("bytes", report.bytes);
  visit("tensors", report.tensors);
  visit("seconds", report.seconds);
  visit("gib_per_s", report.gib_per_s());
  visit("backend", report.backend);
  visit("backend_reason", report.backend_reason);
  visit("peak_host_bytes", report.peak_host_bytes);
  visit("working_bytes", report.working_bytes);
  visit("files", report.files);
  visit("waited", report.waited);
  visit("moved_bytes", report.moved_bytes);
  visit("device_copies", report.device_copies);
  visit("device_copy_bytes", report.device_copy_bytes);
  visit("gds_bytes", report.gds_bytes);
  visit("bytes_read", report.bytes_read);
  visit("requests", report.requests);
  visit("retries", report.retries);
  visit("page_cache_fill_bytes", report.page_cache_fill_bytes);
  visit("donated_blocks", report.donated_blocks);
  visit("notices", report.notices);
}

}  // namespace infercluster::load
