// SPDX-License-Identifier: Apache-2.0
// The Hugging Face cache as huggingface_hub lays it out: HUB/models--org--name/{refs/main, snapshots/COMMIT/FILE,
// blobs/HASH}, where FILE is a link to ../../blobs/HASH and refs/main holds a COMMIT.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace infercluster::load {

// HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub, HOME/.cache/huggingface/hub: the
// first that is set and not empty. "" when none is. `get` is getenv outside of tests.
std::string hub_cache_directory(const std::function<const char*(const char*)>& get);
std::string hub_cache_directory();  // of this process

// "org/name" or "name", by the characters that the hub allows.
bool is_repository_id(std::string_view text);

// Whether `directory` looks like models--org--name: it has snapshots/ and (refs/ or blobs/).
bool is_hub_repository(const std::string& directory);
// "org/name" of ".../models--org--name"; "" for other names.
std::string repository_id_of(std::string_view hub_repository);

// The folder HUB/models--org--name of `id`. not_found says how to fetch it.
Result<std::string> find_hub_repository(const std::string& id, const std::string& hub);

struct Snapshot {
  std::string path;
  std::string commit;
};
// The snapshot of `revision` (empty: "main"): a ref, or a whole name of a snapshot. not_found lists what there is.
Result<Snapshot> find_snapshot(const std::string& hub_repository, const std::string& revision);

// Of a canonical path inside a snapshot (.../REPOSITORY/snapshots/COMMIT[/...]): REPOSITORY and COMMIT; empty when it
// is none.
struct SnapshotPlace {
  std::string hub_repository;
  std::string commit;
};
SnapshotPlace snapshot_place_of(const std::string& canonical_path);

// The command that fetches a repository, for hints.
std::string fetch_command(std::string_view repository_id, std::string_view revision);

}  // namespace infercluster::load
