// SPDX-License-Identifier: Apache-2.0
// A model repository that is ready to be planned: which files, which tensors, all headers read and checked. Nothing is
// ever fetched or changed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "load/selection.h"
#include "os/file.h"
#include "os/mount.h"
#include "safetensors/hashed_names.h"
#include "safetensors/header.h"
#include "safetensors/index.h"

namespace infercluster::load {

struct RepositoryOptions {
  std::string revision{};  // of a repository in the Hugging Face cache: a ref (branch, tag, "refs/pr/1") or a whole
                           // commit hash; empty: "main". Refused for anything else
  safetensors::Compatibility compatibility = safetensors::Compatibility::strict;
  bool allow_trailing_bytes = false;
  std::string hub_cache{};  // the Hugging Face cache; empty: as load/hub_cache.h finds it in the environment
};

// One safetensors file, open.
struct RepositoryShard {
  std::string path;           // as the user knows it: below the folder that was asked for
  std::string resolved_path;  // canonical: where links lead, such as a blob of the Hugging Face cache
  Fd fd;                      // for reading, through the page cache
  os::FileIdentity identity;  // when it was opened
  os::FileSystem file_system;
  safetensors::Header header;
};

// Immutable; thread-safe. Move-only; what it hands out by reference stays valid over a move.
class Repository {
 public:
  // All shards, as opened, sorted by name. With an index, `tensors` of a shard's header that the index does not assign
  // to that shard are not part of the repository.
  Repository(std::string path, std::vector<RepositoryShard> shards, std::vector<TensorRef> tensors);
  Repository(Repository&&) noexcept = default;
  Repository& operator=(Repository&&) noexcept = default;
  Repository(const Repository&) = delete;
  Repository& operator=(const Repository&) = delete;
  ~Repository() = default;

  [[nodiscard]] const std::string& path() const {
    return path_;
  }  // the file or folder, after a repository id was looked up
  [[nodiscard]] const std::vector<RepositoryShard>& shards() const { return shards_; }
  [[nodiscard]] const Tables& tables() const { return tables_; }     // the tensors of the repository
  [[nodiscard]] const TensorRef* find(std::string_view name) const;  // nullptr: no such tensor
  [[nodiscard]] const safetensors::Tensor& tensor(const TensorRef& ref) const { return tables_.tensor(ref); }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }  // of all tensors of the repository
  [[nodiscard]] const safetensors::Metadata& metadata() const;  // of the first file that has any

  // The following are set by open_repository().
  std::optional<safetensors::Index> index;
  std::string commit;                 // of a Hugging Face snapshot; else empty
  std::vector<std::string> warnings;  // whole sentences for the user, such as a total_size that is wrong

 private:
  // All tensors of one file, in its order: its header's own lookup does.
  [[nodiscard]] bool is_one_table() const;

  std::string path_;
  std::vector<RepositoryShard> shards_;
  Tables tables_;
  std::vector<safetensors::HashedName> by_name_;  // of tables_.tensors; empty when it is one table
  std::uint64_t bytes_ = 0;
};

// `source`: a safetensors file; a folder of them, with or without one *.safetensors.index.json
// (model.safetensors.index.json comes before others); such an index; a Hugging Face cache snapshot or repository folder
// (models--org--name); or a repository id "org/name" that the cache has. Only indexed files are opened; links in a
// folder may lead within that folder, in a snapshot within its repository's cache. Errors: not_found names every
// missing file and tensor in one message, with how to fetch them; corrupt and others name the bad file, or all bad
// files when there are several.
Result<Repository> open_repository(const std::string& source, const RepositoryOptions& options = {});

}  // namespace infercluster::load
