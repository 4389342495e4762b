// SPDX-License-Identifier: Apache-2.0
#include "api/whole_files.h"

#include <utility>

namespace infercluster::api {

std::uint64_t bytes_of(const std::vector<load::RepositoryShard>& shards) {
  std::uint64_t bytes = 0;
  for (const load::RepositoryShard& shard : shards) bytes += shard.identity.size;
  return bytes;
}

Result<std::unique_ptr<WholeFiles>> WholeFiles::open(const Runtime& runtime, std::uint64_t total,
                                                     ProgressCallback progress) {
  IC_TRY(const load::Options options, options_from_environment());
  std::unique_ptr<WholeFiles> files(new WholeFiles());
  files->runtime_ = &runtime;
  IC_TRY(files->scanner_, load::Scanner::open({options.direct, options.backend}, runtime.environment()));
  files->callback_ = std::move(progress);
  files->progress_.bytes_total = total;
  return files;
}

Status WholeFiles::read(const load::RepositoryShard& shard, const load::Scanner::Visit& visit) {
  const auto count = [&](std::span<const std::byte> bytes) {
    progress_.bytes_done += bytes.size();
    runtime_->metrics().checked(bytes.size());
    return visit(bytes);
  };
  const auto keep_going = [&] { return !callback_ || callback_(progress_); };
  IC_TRY(const load::Scanner::Scanned scanned, scanner_->scan(shard.path, count, keep_going));
  if (scanned.identity != shard.identity) {
    return Error(ErrorCode::changed, "was replaced after its header was read")
        .with_path(shard.path)
        .with_hint("Try again once nothing writes to it");
  }
  return {};
}

}  // namespace infercluster::api
