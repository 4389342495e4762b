// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace infercluster::cli {

// From here on the first SIGINT or SIGTERM is remembered, for the work at hand to end cleanly; a second one kills, as
// without this.
void catch_signals();

// The signal that came, or 0. Any thread.
int caught_signal();

}  // namespace infercluster::cli
