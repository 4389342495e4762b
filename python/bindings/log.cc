// SPDX-License-Identifier: Apache-2.0
// Log lines wait in a bounded queue until a Python thread takes them: a sink that called Python would need the GIL
// while the logger's lock is held.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "bindings.h"

namespace infercluster::python {
namespace {

constexpr std::size_t kLinesMax = 1024;  // the oldest go first

struct Queue {
  std::mutex mutex;
  std::deque<std::pair<int, std::string>> lines;  // guarded by mutex
};

Queue& queue() {
  static Queue* const instance = new Queue;  // NOLINT: never destroyed, threads may log until the process ends
  return *instance;
}

void enqueue(LogLevel level, std::string_view text) {
  Queue& shared = queue();
  const std::lock_guard lock(shared.mutex);
  if (shared.lines.size() == kLinesMax) shared.lines.pop_front();
  shared.lines.emplace_back(static_cast<int>(level), std::string(text));
}

std::vector<std::pair<int, std::string>> take() {
  Queue& shared = queue();
  const std::lock_guard lock(shared.mutex);
  std::vector<std::pair<int, std::string>> taken(shared.lines.begin(), shared.lines.end());
  shared.lines.clear();
  return taken;
}

}  // namespace

void bind_log(nanobind::module_& module) {
  module.def("log_to_queue", [] { set_log_sink(&enqueue); });
  module.def("log_to_stderr", [] { set_log_sink({}); });
  module.def("take_log", &take);  // [(level: 0 debug .. 3 error, text)]
  module.def("set_log_level", [](int level) { set_log_level(static_cast<LogLevel>(level)); });
}

}  // namespace infercluster::python
