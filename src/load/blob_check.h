// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/result.h"
#include "io/source.h"
#include "load/plan.h"
#include "memory/arena.h"

namespace infercluster::load {

// Does the unit bring all of the file's data, in one piece and in order, so that a checksum of the whole file can be
// taken from memory?
bool covers_whole_file(const Unit& unit, const safetensors::Header& header);

// Holds the unit's landed bytes (before moves), and the header before them, which is read again, against the SHA-256 of
// the whole file.
Status check_blob(const Unit& unit, const memory::Arena& arena, const io::FileSource& source,
                  const std::string& sha256);

}  // namespace infercluster::load
