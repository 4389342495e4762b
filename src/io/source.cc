// SPDX-License-Identifier: Apache-2.0
#include "io/source.h"

#include "base/assert.h"

namespace infercluster::io {

void Source::start(const Attempt&, const AttemptDone&) {
  IC_FAIL("a source without operations must override start()");
}
void Source::abort(std::uint64_t) {
  IC_FAIL("an abortable source must override abort()");
}
ErrorAction Source::on_error(int) {
  return ErrorAction::fail;
}
std::string Source::hint_for(int) const {
  return {};
}

std::string_view name_of(FileMode mode) {
  switch (mode) {
    case FileMode::direct:
      return "direct";
    case FileMode::buffered:
      return "buffered";
    case FileMode::resident:
      return "resident";
  }
  return "unknown";
}

}  // namespace infercluster::io
