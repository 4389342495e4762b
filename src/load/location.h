// SPDX-License-Identifier: Apache-2.0
// From what a user calls a model to the files that make it: which folder, which index, how far links may lead.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace infercluster::load {

struct Location {
  std::string path;                       // the file or folder as the user knows it
  std::optional<std::string> file;        // a single safetensors file: its canonical path
  std::optional<std::string> index_name;  // in the folder `path`
  std::vector<std::string> shard_names;   // without an index: every *.safetensors in the folder, sorted, one at least
  std::string link_root;                  // canonical: links of a folder's files may lead only below it
  std::string hub_repository;             // of a Hugging Face snapshot; else empty
  std::string commit;
};

// See open_repository() for what `source` may be. `hub` is the Hugging Face cache, "" if there is none.
struct LocateOptions {
  std::string revision;
  std::string hub;
};
Result<Location> locate(const std::string& source, const LocateOptions& options);

// How to get what is missing at `location`, for hints.
std::string fetch_hint(const Location& location);

}  // namespace infercluster::load
