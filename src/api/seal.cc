// SPDX-License-Identifier: Apache-2.0
#include "load/seal.h"

#include <sys/stat.h>

#include "api/runtime.h"
#include "api/whole_files.h"
#include "checksum/sha256.h"
#include "infercluster/infercluster.h"
#include "os/file.h"

namespace infercluster {
namespace {

// The seal of the shard's bytes as they are now.
Result<load::Seal> seal_bytes(api::WholeFiles& files, const load::RepositoryShard& shard) {
  load::SealBuilder builder;
  const load::BlobName blob = load::blob_name_of(shard.resolved_path);
  const bool has_digest = blob.kind == load::BlobName::Kind::sha256;
  checksum::Sha256 digest;
  IC_CHECK(files.read(shard, [&](std::span<const std::byte> bytes) -> Status {
    builder.add(bytes);
    if (has_digest) digest.add(bytes);
    return {};
  }));
  if (has_digest) {
    if (const std::string found = digest.finish_hex(); found != blob.hex) {
      return Error(ErrorCode::corrupt,
                   "is not sealed: its SHA-256 is " + found + ", and the blob's name says " + blob.hex)
          .with_path(shard.path)
          .with_hint("Fetch this file again");
    }
  }
  return builder.finish();
}

Status write_seal(const load::RepositoryShard& shard, const load::Seal& seal, const SealOptions& options) {
  const std::string place = load::seal_path_of(shard.path, options.directory);
  const auto existing = load::find_seal(shard.path, options.directory, shard.identity.size);
  if (existing.ok() && *existing == seal) return {};
  if (!options.replace && (existing.ok() || existing.error().code() != ErrorCode::not_found)) {
    const std::string why = existing.ok() ? "is already sealed, and its bytes are not those that were sealed"
                                          : existing.error().to_string();
    return Error(ErrorCode::corrupt, why)
        .with_path(shard.path)
        .with_hint("If the file was changed on purpose, seal it with --replace; else fetch it again");
  }
  Status written = os::write_file_atomically(place, seal.serialize());
  if (written.ok() || written.error().code() != ErrorCode::permission) return written;
  return Error(written.error())
      .with_hint("Where the repository is read-only, write the seals to a directory of your own: --seal-dir DIR");
}

}  // namespace

Result<SealReport> seal(const load::Repository& repository, const SealOptions& options,
                        const ProgressCallback& progress) {
  IC_TRY(const api::Runtime* const runtime, api::Runtime::get());
  const Clock::TimePoint start = steady_clock().now();
  if (!options.directory.empty() && ::mkdir(options.directory.c_str(), 0777) != 0 && errno != EEXIST) {
    return Error::from_errno(errno, "cannot make the directory for seals").with_path(options.directory);
  }
  IC_TRY(const auto files, api::WholeFiles::open(*runtime, api::bytes_of(repository.shards()), progress));
  SealReport report;
  for (const load::RepositoryShard& shard : repository.shards()) {
    IC_TRY(const load::Seal seal, seal_bytes(*files, shard));
    IC_CHECK(write_seal(shard, seal, options));
    report.files.push_back(
        {shard.path, load::seal_path_of(shard.path, options.directory), shard.identity.size, seal.root_hex()});
  }
  report.seconds = seconds_between(start, steady_clock().now());
  return report;
}

}  // namespace infercluster
