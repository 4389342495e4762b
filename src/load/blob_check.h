// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/result.h"
#include "io/source.h"
#include "load/plan.h"
#include "load/target.h"
#include "memory/block.h"

namespace infercluster::load {

// Does the unit bring all of the file's data, so that a checksum of the whole file can be taken from memory?
bool covers_whole_file(const Plan& plan, const Unit& unit, const safetensors::Header& header);

struct BlobCheck {
  const Plan& plan;
  const Unit& unit;  // covers the file, and is complete
  const memory::Block& block;
  const safetensors::Header& header;
  const io::FileSource& source;
  const std::string& sha256;  // expected, 64 hexadecimal digits
};
// Holds the unit's tensors, and the header before them, which is read again, against the SHA-256 of the whole file.
// Bytes on a device are copied back for it.
Status check_blob(const BlobCheck& check, Target& target);

}  // namespace infercluster::load
