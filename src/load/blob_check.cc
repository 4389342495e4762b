// SPDX-License-Identifier: Apache-2.0
#include "load/blob_check.h"

#include <vector>

#include "checksum/sha256.h"
#include "os/file.h"

namespace infercluster::load {

bool covers_whole_file(const Unit& unit, const safetensors::Header& header) {
  if (unit.transfers.empty() || unit.transfers.front().file_offset > header.data_begin()) return false;
  std::uint64_t at = unit.transfers.front().file_offset;
  for (const PlannedTransfer& transfer : unit.transfers) {
    if (!transfer.landed || transfer.file_offset != at) return false;
    at = transfer.end_of_data;
  }
  return at == header.file_size();
}

Status check_blob(const Unit& unit, const memory::Arena& arena, const io::FileSource& source,
                  const std::string& sha256) {
  checksum::Sha256 hash;
  std::vector<std::byte> head(unit.transfers.front().file_offset);
  if (!head.empty()) IC_CHECK(os::read_exactly(source.buffered_fd(), head, 0, source.name()));
  hash.add(head);
  for (const PlannedTransfer& transfer : unit.transfers) {
    hash.add({arena.data() + transfer.arena_offset, transfer.end_of_data - transfer.file_offset});
  }
  const std::string found = hash.finish_hex();
  if (found == sha256) return {};
  return Error(ErrorCode::corrupt, "its SHA-256 is " + found + ", and its name in the cache says " + sha256)
      .with_path(source.name())
      .with_hint("The blob is damaged: remove this one file and fetch it again");
}

}  // namespace infercluster::load
