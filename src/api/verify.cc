// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <optional>

#include "api/runtime.h"
#include "api/whole_files.h"
#include "infercluster/infercluster.h"
#include "load/check.h"
#include "load/hub_cache.h"
#include "load/seal.h"

namespace infercluster {
namespace {

// What is known of one shard before it is read.
struct Expectation {
  std::optional<load::Seal> seal;
  std::string sha256;
  std::string problem;  // its seal is damaged, or of a file of another size
};

Expectation expectation_of(const load::RepositoryShard& shard, const std::string& seal_directory) {
  Expectation expected;
  auto seal = load::find_seal(shard.path, seal_directory, shard.identity.size);
  if (seal.ok()) {
    expected.seal = std::move(*seal);
  } else if (seal.error().code() != ErrorCode::not_found) {
    expected.problem = seal.error().to_string();
  }
  if (load::BlobName blob = load::blob_name_of(shard.resolved_path); blob.kind == load::BlobName::Kind::sha256)
    expected.sha256 = std::move(blob.hex);
  return expected;
}

// An error is what ends the whole run; a file that cannot be read is a verdict.
Result<VerifyReport::File> verify_file(api::WholeFiles& files, const load::RepositoryShard& shard,
                                       const Expectation& expected) {
  VerifyReport::File verdict{shard.path, expected.sha256.empty() ? "seal" : "sha256", false, expected.problem};
  if (!expected.problem.empty()) return verdict;
  if (!expected.seal && expected.sha256.empty()) {
    verdict.method = "none";
    verdict.message = "unverified: it has no seal, and its name is no SHA-256";
    return verdict;
  }
  load::FileCheck check(expected.seal ? &*expected.seal : nullptr, expected.sha256);
  const Status read = files.read(shard, [&](std::span<const std::byte> bytes) -> Status {
    check.add(bytes);
    return {};
  });
  if (!read.ok()) {
    if (read.error().code() == ErrorCode::cancelled) return read.error();
    verdict.message = read.error().to_string();
    return verdict;
  }
  verdict.message = check.finish(shard.header).value_or("");
  verdict.good = verdict.message.empty();
  return verdict;
}

// How to fetch the bad files, and only these.
std::string repair_hint(const load::Repository& repository, const VerifyReport& report) {
  std::string names;
  for (const VerifyReport::File& file : report.files) {
    if (!file.good && file.method != "none") names += " " + std::filesystem::path(file.path).filename().string();
  }
  if (names.empty()) return {};
  std::error_code ignored;
  const load::SnapshotPlace place =
      load::snapshot_place_of(std::filesystem::weakly_canonical(repository.path(), ignored).string());
  const std::string id = load::repository_id_of(place.hub_repository);
  if (id.empty()) return "Nothing was changed. Fetch only these files again:" + names;
  return "Nothing was changed. Fetch only these files again: `hf download " + id + names + " --revision " +
         place.commit + " --force-download`";
}

}  // namespace

bool VerifyReport::good() const {
  return std::all_of(files.begin(), files.end(), [](const File& file) { return file.good; });
}

Result<VerifyReport> verify(const load::Repository& repository, const std::string& seal_directory,
                            const ProgressCallback& progress) {
  IC_TRY(const api::Runtime* const runtime, api::Runtime::get());
  const Clock::TimePoint start = steady_clock().now();
  std::vector<Expectation> expectations;
  std::uint64_t total = 0;
  for (const load::RepositoryShard& shard : repository.shards()) {
    const Expectation& expected = expectations.emplace_back(expectation_of(shard, seal_directory));
    if (expected.problem.empty() && (expected.seal || !expected.sha256.empty())) total += shard.identity.size;
  }
  IC_TRY(const auto files, api::WholeFiles::open(*runtime, total, progress));
  VerifyReport report;
  for (std::size_t i = 0; i < expectations.size(); ++i) {
    IC_TRY(VerifyReport::File verdict, verify_file(*files, repository.shards()[i], expectations[i]));
    report.files.push_back(std::move(verdict));
  }
  report.bytes = files->bytes_read();
  report.hint = repair_hint(repository, report);
  report.seconds = seconds_between(start, steady_clock().now());
  return report;
}

}  // namespace infercluster
