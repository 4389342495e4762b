// SPDX-License-Identifier: Apache-2.0
// The copy of a state that its owner waits for.
#pragma once

#include "base/result.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/image_windows.h"
#include "checkpoint/layout.h"
#include "checkpoint/snapshot.h"

namespace infercluster::checkpoint {

// Pushes the image of the segment, `layout` filled with `state`, in as few windows as the arenas allow. Waits for
// arenas that are still being written. Puts down the generations of live pieces in the layout's chunks, each before
// the window with the piece's end. `report`: its waits, copies and waves.
Status stage(Layout& layout, const State& state, SnapshotArenas& arenas, ImageWindows& image, SaveReport& report);

}  // namespace infercluster::checkpoint
