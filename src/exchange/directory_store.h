// SPDX-License-Identifier: Apache-2.0
// A store in a directory of a shared file system (NFS, Lustre, GPFS, CephFS, or a local one for the ranks of one node).
//
// What it asks of it: rename and link of small files are atomic, and seen by others in the end. No locks (they may say
// yes to everybody). A client may believe for a while that a file is absent (attribute caching): a fresh listing of the
// directory is asked for before each new try, and tries go on until the deadline. Answers that were lost (link was
// done, the reply says EEXIST or EIO) are settled by reading what is there. A file system without hard links is
// refused. A file system that answers no call at all (a hard NFS mount whose server is away) holds the caller longer.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "exchange/shared_files.h"
#include "exchange/store.h"

namespace infercluster::exchange {

class DirectoryStore final : public Store {
 public:
  // `directory` is made when it is missing, its parent must be there. `world` decides how often to look: all ranks ask
  // the same metadata server.
  DirectoryStore(std::string directory, int world, std::shared_ptr<SharedFiles> files);
  DirectoryStore(const DirectoryStore&) = delete;
  DirectoryStore& operator=(const DirectoryStore&) = delete;
  ~DirectoryStore() override;

  Status set(const std::string& key, std::string_view value, Deadline deadline) override;
  Result<std::optional<std::string>> get(const std::string& key, Deadline until) override;
  Result<std::string> set_if_absent(const std::string& key, std::string_view value, Deadline deadline) override;
  void erase(const std::string& key) override;
  bool erase_folder_if_empty(const std::string& folder) override;
  void erase_folder(const std::string& folder) override;
  void erase_all() override;

 private:
  [[nodiscard]] std::string path_of(const std::string& key) const;
  [[nodiscard]] std::string temporary_beside(const std::string& path);
  Status create(const std::string& path, std::string_view framed, Deadline deadline);
  Status make_parents(const std::string& path);
  Result<std::string> link_or_read(const std::string& temporary, const std::string& key, std::string_view value,
                                   Deadline deadline);
  Result<std::string> set_in_spare(const std::string& key, std::string_view value, Deadline deadline,
                                   const Error& cause);
  void keep_spare(const std::string& key);
  void erase_below(const std::string& path, int depth);

  const std::string directory_;
  const Clock::Duration pause_max_;
  const std::shared_ptr<SharedFiles> files_;
  const std::string own_;  // in the names of this store's temporary files
  std::atomic<std::uint64_t> counter_{0};
  std::mutex mutex_;
  // A file with space of its own, for an abort when the file system is full; empty: none. Guarded by mutex_.
  std::string spare_;
};

// The ranks that give the same directory and job name meet there; see open_over_store for the rest. `name` (1 to 64 of
// letters, digits, '.', '_', '-') tells jobs apart that use the directory at once: a launcher's job id. `files`: for
// tests.
Result<std::unique_ptr<Exchange>> open_in_directory(
    const std::string& directory, const std::string& name, Member member, Deadline deadline,
    std::shared_ptr<SharedFiles> files = std::make_shared<SharedFiles>());

}  // namespace infercluster::exchange
