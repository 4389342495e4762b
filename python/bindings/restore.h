// SPDX-License-Identifier: Apache-2.0
// What the bindings of checkpoints and of restores share.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>
#include <tuple>

#include "infercluster/checkpoint.h"

namespace infercluster::python {

inline nanobind::str as_text(std::string_view text) {
  return nanobind::str(text.data(), text.size());
}

// An exception as infercluster._checkpoint.arguments.described() gives it: the code's name, errno and message.
using Described = std::tuple<std::string, int, std::string>;
Error error_of(const Described& failed);

nanobind::dict load_report_of(const checkpoint::RestoreReport& report);

// Open checkpoints, and restores from them: by this process, or by ranks together.
void bind_restore(nanobind::module_& module);

}  // namespace infercluster::python
