// SPDX-License-Identifier: Apache-2.0
// The copy of a state that its owner waits for.
#pragma once

#include "base/result.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/image_windows.h"
#include "checkpoint/layout.h"
#include "checkpoint/snapshot.h"

namespace infercluster::checkpoint {

// Whether it can be staged. Errors (invalid_argument, by the tensor's name): those of check_strides() and
// check_device_strides().
Status check_source(const HostPiece& source);

// Pushes the image of the segment, `layout` filled with `state`, in as few windows as the arenas allow. Waits for
// arenas that are still being written, and for copies from devices, unless the callers' streams wait for these
// (Wait::until_queued). Puts down the generations of live pieces in the layout's chunks, each before the window with
// the piece's end. `report`: its waits, copies and waves.
Status stage(Layout& layout, const State& state, Wait wait, SnapshotArenas& arenas, ImageWindows& image,
             SaveReport& report);

}  // namespace infercluster::checkpoint
