// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "api/runtime.h"
#include "infercluster/infercluster.h"
#include "load/scan.h"

namespace infercluster::api {

std::uint64_t bytes_of(const std::vector<load::RepositoryShard>& shards);  // of the whole files

// Reads shards from end to end as the environment's options say, and reports progress over all of them. One thread.
class WholeFiles {
 public:
  // `total`: bytes that will be read. `progress` is called between reads, and may be empty.
  static Result<std::unique_ptr<WholeFiles>> open(const Runtime& runtime, std::uint64_t total,
                                                  ProgressCallback progress);

  // All bytes of the shard, in order. Error `changed` when the file is not the one that the repository opened.
  Status read(const load::RepositoryShard& shard, const load::Scanner::Visit& visit);
  [[nodiscard]] std::uint64_t bytes_read() const { return progress_.bytes_done; }

 private:
  WholeFiles() = default;
  const Runtime* runtime_ = nullptr;
  std::unique_ptr<load::Scanner> scanner_;
  ProgressCallback callback_;
  load::Progress progress_;
};

}  // namespace infercluster::api
