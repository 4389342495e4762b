// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "checksum/sha256.h"
#include "infercluster/infercluster.h"
#include "load/seal.h"
#include "os/file.h"
#include "safetensors/header.h"
#include "testing/temp_dir.h"

namespace infercluster {
namespace {

// A safetensors file of three U8 tensors, 300 KiB together.
std::string file_bytes(char fill) {
  std::vector<safetensors::Tensor> tensors(3);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = std::string(1, static_cast<char>('a' + i));
    tensors[i].shape = {100, 1024};
  }
  std::string bytes = safetensors::build_header(tensors, std::nullopt).value();
  for (std::size_t i = 0; i < std::size_t{3} * 100 * 1024; ++i)
    bytes += static_cast<char>(fill + static_cast<char>(i % 61));
  return bytes;
}

std::string sha256_of(const std::string& bytes) {
  checksum::Sha256 digest;
  digest.add(std::as_bytes(std::span(bytes)));
  return digest.finish_hex();
}

void flip_byte(const std::string& path, std::uint64_t offset) {
  std::fstream stream(path, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekg(static_cast<std::streamoff>(offset));
  const char before = static_cast<char>(stream.get());
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(static_cast<char>(before ^ 1));
}

class Api : public ::testing::Test {
 protected:
  std::shared_ptr<const load::Repository> open_ok(const std::string& path) {
    auto repository = open(path);
    EXPECT_TRUE(repository.ok()) << repository.error().to_string();
    return *repository;
  }
  // Five shards, without an index.
  std::string make_model() {
    for (int i = 0; i < 5; ++i) {
      std::string bytes = file_bytes(static_cast<char>('A' + i));
      // Names must differ between shards: same length, so that the header stays valid.
      for (const char* const name : {"\"a\"", "\"b\"", "\"c\""})
        bytes.replace(bytes.find(name) + 1, 1, std::string(1, static_cast<char>(name[1] + 3 * i)));
      directory_.write("model/model-" + std::to_string(i) + ".safetensors", bytes);
    }
    return directory_.file("model");
  }
  std::string shard(int i) { return directory_.file("model/model-" + std::to_string(i) + ".safetensors"); }

  testing::TempDir directory_;
};

TEST_F(Api, SealsThenVerifiesAndNamesTheBadFilesOnly) {
  const std::string model = make_model();
  const auto sealed = seal(*open_ok(model), {});
  ASSERT_TRUE(sealed.ok()) << sealed.error().to_string();
  ASSERT_EQ(sealed->files.size(), 5U);
  const auto good = verify(*open_ok(model), "");
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(good->good());
  EXPECT_TRUE(good->hint.empty());
  EXPECT_GT(good->bytes, 5U * 300 * 1024);

  flip_byte(shard(1), 150'000);
  flip_byte(shard(3), 300'000);
  const auto bad = verify(*open_ok(model), "");
  ASSERT_TRUE(bad.ok());
  EXPECT_FALSE(bad->good());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(bad->files[static_cast<std::size_t>(i)].good, i != 1 && i != 3) << i;
  EXPECT_NE(bad->files[1].message.find("tensor \"e\""), std::string::npos) << bad->files[1].message;
  EXPECT_NE(bad->hint.find("model-1.safetensors model-3.safetensors"), std::string::npos) << bad->hint;
}

TEST_F(Api, ASealIsNotReplacedUnlessAskedFor) {
  const std::string model = make_model();
  ASSERT_TRUE(seal(*open_ok(model), {}).ok());
  ASSERT_TRUE(seal(*open_ok(model), {}).ok()) << "sealing the same bytes again is fine";
  flip_byte(shard(0), 100'000);
  const auto refused = seal(*open_ok(model), {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().path(), shard(0));
  EXPECT_FALSE(verify(*open_ok(model), "")->good());
  SealOptions options;
  options.replace = true;
  ASSERT_TRUE(seal(*open_ok(model), options).ok());
  EXPECT_TRUE(verify(*open_ok(model), "")->good());
}

TEST_F(Api, SealsGoToADirectoryOfTheirOwn) {
  const std::string model = make_model();
  SealOptions options;
  options.directory = directory_.file("seals");
  ASSERT_TRUE(seal(*open_ok(model), options).ok());
  EXPECT_FALSE(std::filesystem::exists(load::seal_path_of(shard(0), "")));
  EXPECT_TRUE(verify(*open_ok(model), options.directory)->good());
  const auto unsealed = verify(*open_ok(model), "");
  EXPECT_FALSE(unsealed->good());
  EXPECT_EQ(unsealed->files[0].method, "none");
  EXPECT_EQ(unsealed->bytes, 0U);
}

TEST_F(Api, BlobsOfTheHubCacheAreHeldAgainstTheirNames) {
  const std::string bytes = file_bytes('A');
  const std::string blob = directory_.write("hub/models--org--name/blobs/" + sha256_of(bytes), bytes);
  const std::filesystem::path snapshot = directory_.file("hub/models--org--name/snapshots/" + std::string(40, 'c'));
  std::filesystem::create_directories(snapshot);
  directory_.write("hub/models--org--name/refs/main", std::string(40, 'c'));
  std::filesystem::create_symlink("../../blobs/" + sha256_of(bytes), snapshot / "model.safetensors");
  const auto good = verify(*open_ok(snapshot.string()), "");
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(good->good());
  EXPECT_EQ(good->files[0].method, "sha256");

  flip_byte(blob, 150'000);
  const auto bad = verify(*open_ok(snapshot.string()), "");
  EXPECT_FALSE(bad->good());
  EXPECT_NE(bad->hint.find("hf download org/name model.safetensors --revision " + std::string(40, 'c')),
            std::string::npos)
      << bad->hint;
  const auto refused = seal(*open_ok(snapshot.string()), {});
  ASSERT_FALSE(refused.ok()) << "bytes that are known to be wrong are not sealed";
  EXPECT_EQ(refused.error().code(), ErrorCode::corrupt);
}

TEST_F(Api, ProgressCancels) {
  const std::string model = make_model();
  const auto cancelled = seal(*open_ok(model), {}, [](load::Progress) { return false; });
  ASSERT_FALSE(cancelled.ok());
  EXPECT_EQ(cancelled.error().code(), ErrorCode::cancelled);
  EXPECT_FALSE(std::filesystem::exists(load::seal_path_of(shard(0), "")));
}

TEST_F(Api, PlansWhatALoadThenDoes) {
  const auto repository = open_ok(make_model());
  const auto planned = plan(*repository, {}, Probe::yes);
  ASSERT_TRUE(planned.ok()) << planned.error().to_string();
  EXPECT_EQ(planned->tensors, 15U);
  EXPECT_EQ(planned->bytes_wanted, 15U * 100 * 1024);
  EXPECT_GE(planned->bytes_read, planned->bytes_wanted);
  EXPECT_GE(planned->memory_bytes, planned->bytes_wanted);
  EXPECT_GT(planned->predicted_seconds, 0);
  EXPECT_EQ(planned->files.size(), 5U);

  auto job = start_load(repository, {});
  ASSERT_TRUE(job.ok()) << job.error().to_string();
  const auto loaded = (*job)->finish();
  ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
  EXPECT_EQ(loaded->report.bytes, planned->bytes_wanted);
  EXPECT_EQ(loaded->tensors.size(), planned->tensors);
}

TEST_F(Api, ARankReadsItsShareOnly) {
  const auto repository = open_ok(make_model());
  load::Options options;
  options.slices.push_back({"*", {}, load::Shard{0, 1, 4}});
  const auto planned = plan(*repository, options, Probe::no);
  ASSERT_TRUE(planned.ok());
  EXPECT_EQ(planned->bytes_wanted, 15U * 25 * 1024);
  EXPECT_LE(planned->bytes_read, 15U * (25 * 1024 + 2 * 4096));
  EXPECT_EQ(planned->predicted_seconds, 0);
}

TEST_F(Api, DiagnosesTheMachineAndAPath) {
  const auto findings = diagnose(make_model());
  std::string subjects;
  for (const Finding& finding : findings) {
    subjects += finding.subject + ";";
    EXPECT_FALSE(finding.state.empty()) << finding.subject;
  }
  for (const char* const subject : {"io_uring", "locked memory", "huge pages", "NUMA", "memory", "file system",
                                    "direct I/O", "page cache", "checksums", "GPU"}) {
    EXPECT_NE(subjects.find(subject), std::string::npos) << subject << " in " << subjects;
  }
  const auto missing = diagnose(directory_.file("none"));
  EXPECT_EQ(missing.back().level, Finding::Level::warning);
}

TEST_F(Api, EveryCallInAForkedChildIsAnError) {
  const auto repository = open_ok(make_model());
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = !open("x").ok() && !start_load(repository, {}).ok() && !start_stream(repository, {}).ok() &&
                         !plan(*repository, {}, Probe::no).ok() && !seal(*repository, {}).ok() &&
                         !verify(*repository, "").ok() && open("x").error().code() == ErrorCode::unsupported;
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// The value of a series in the Prometheus text; -1: it is not there.
double metric(const std::string& series) {
  const std::string text = "\n" + metrics_text();
  const std::size_t at = text.find("\n" + series + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + series.size() + 2));
}

double sum_of(const std::string& name, const std::string& label, const std::vector<std::string>& values) {
  double sum = 0;
  for (const std::string& value : values) {
    const double one = metric(name + "{" + label + "=\"" + value + "\"}");
    EXPECT_GE(one, 0) << name << " " << value << "\n" << metrics_text();
    sum += one;
  }
  return sum;
}

double loaded_bytes() {
  return sum_of("infercluster_loaded_bytes_total", "mode", {"direct", "buffered", "resident"});
}

TEST_F(Api, CountsLoadsBytesAndWaits) {
  const auto repository = open_ok(make_model());
  const auto waited = [] {
    return sum_of("infercluster_load_wait_seconds_total", "cause", {"storage", "memory", "verify", "other"});
  };
  const double loads = metric("infercluster_loads_total{kind=\"load\"}");
  const double before = loaded_bytes();
  const double waited_before = waited();
  load::Options options;
  options.direct = io::DirectPolicy::never;
  auto job = start_load(repository, options);
  ASSERT_TRUE(job.ok());
  const auto loaded = (*job)->finish();
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(metric("infercluster_loads_total{kind=\"load\"}"), loads + 1);
  EXPECT_EQ(loaded_bytes() - before, static_cast<double>(repository->bytes()));
  EXPECT_NEAR(waited() - waited_before, loaded->report.seconds, 0.001);
  EXPECT_GE(metric("infercluster_read_retries_total"), 0);
}

TEST_F(Api, CountsWhatDirectLoadsPutIntoThePageCache) {
  const auto repository = open_ok(make_model());
  const double before = metric("infercluster_page_cache_fill_bytes_total");
  const double direct_before = metric("infercluster_loaded_bytes_total{mode=\"direct\"}");
  load::Options options;
  options.direct = io::DirectPolicy::always;
  options.page_cache = load::PageCache::keep;
  auto job = start_load(repository, options);
  if (!job.ok()) GTEST_SKIP() << job.error().to_string();
  while (!(*job)->wait_for_page_cache(std::chrono::seconds(10))) {
  }
  double file_bytes = 0;
  for (const load::RepositoryShard& shard : repository->shards())
    file_bytes += static_cast<double>(shard.identity.size);
  EXPECT_EQ(metric("infercluster_page_cache_fill_bytes_total") - before, file_bytes);
  EXPECT_EQ(metric("infercluster_loaded_bytes_total{mode=\"direct\"}") - direct_before,
            static_cast<double>(repository->bytes()));
}

TEST_F(Api, CountsFailuresByTheirCode) {
  const std::string path = make_model();
  ASSERT_TRUE(seal(*open_ok(path), {}).ok());
  flip_byte(path + "/model-1.safetensors", 200'000);
  const std::string corrupt = "infercluster_load_failures_total{code=\"corrupt\"}";
  const std::string refused = "infercluster_load_failures_total{code=\"not found\"}";
  const double corrupt_before = metric(corrupt);
  const double refused_before = metric(refused);
  const double bytes_before = loaded_bytes();
  ASSERT_GE(corrupt_before, 0);
  const auto repository = open_ok(path);
  auto job = start_load(repository, {});
  ASSERT_TRUE(job.ok());
  EXPECT_FALSE((*job)->finish().ok());
  EXPECT_EQ(metric(corrupt), corrupt_before + 1);
  {
    auto stream = start_stream(repository, {});
    ASSERT_TRUE(stream.ok());
    while (true) {
      const auto next = (*stream)->next(std::chrono::seconds(10));
      if (!next.ok() || next->state == load::Stream::State::ended) break;
    }
  }
  EXPECT_EQ(metric(corrupt), corrupt_before + 2);
  load::Options options;
  options.names = {"no such tensor"};
  EXPECT_FALSE(start_load(repository, options).ok());
  EXPECT_EQ(metric(refused), refused_before + 1);
  EXPECT_EQ(loaded_bytes(), bytes_before);
}

}  // namespace
}  // namespace infercluster
