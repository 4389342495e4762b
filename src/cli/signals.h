// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace infercluster::cli {

// From here on the first SIGINT or SIGTERM is remembered, for the work at hand to end cleanly; a second one kills, as
// without this.
void catch_signals();

// For what serves until it is told to end. From hold_signals() on, which comes before any thread is started, SIGINT and
// SIGTERM wait; wait_for_signal() returns the first of them, and a second one kills, as without this.
void hold_signals();
int wait_for_signal();

// The signal that came, or 0. Any thread.
int caught_signal();

}  // namespace infercluster::cli
