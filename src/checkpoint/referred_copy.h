// SPDX-License-Identifier: Apache-2.0
// A segment once more, where it cannot be linked.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "checkpoint/segment_writer.h"
#include "io/files.h"
#include "manifest/index.h"

namespace infercluster::checkpoint {

struct NewFile {
  const io::Directory& directory;
  const std::string& name;
};

// As write_segment() writes. Error corrupt: the file is not what `segment` says; `to` is of no use then.
Status copy_referred(io::FileCalls& calls, const io::Directory& from, const manifest::Segment& segment, NewFile to,
                     const WriteOptions& options, std::atomic<std::uint64_t>& written);

}  // namespace infercluster::checkpoint
