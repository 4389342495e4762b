// SPDX-License-Identifier: Apache-2.0
#include "load/repository.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "testing/temp_dir.h"

namespace infercluster::load {
namespace {

namespace fs = std::filesystem;
using infercluster::testing::TempDir;
using safetensors::Dtype;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::string_view kIndexName = "model.safetensors.index.json";

// A file with a U8 tensor of `bytes` bytes for each name.
std::string file_of(const std::vector<std::string>& names, std::uint64_t bytes = 4) {
  std::vector<safetensors::Tensor> tensors;
  tensors.reserve(names.size());
  for (const std::string& name : names) tensors.push_back({.name = name, .dtype = Dtype::u8, .shape = {bytes}});
  return safetensors::build_header(tensors, safetensors::Metadata{{"format", "pt"}}).value() +
         std::string(bytes * names.size(), 'x');
}

std::string index_of(std::vector<std::pair<std::string, std::string>> map, std::optional<std::uint64_t> total = {}) {
  return safetensors::build_index({.weight_map = std::move(map), .total_size = total});
}

std::vector<std::string> names_of(const Repository& repository) {
  std::vector<std::string> names;
  for (const TensorRef& ref : repository.tables().tensors) names.push_back(repository.tensor(ref).name);
  return names;
}

// Three shards and an index, in `folder` of `dir`.
void write_sharded(const TempDir& dir, const std::string& folder = "") {
  const std::string prefix = folder.empty() ? "" : folder + "/";
  dir.write(prefix + "1.safetensors", file_of({"a", "b"}));
  dir.write(prefix + "2.safetensors", file_of({"c"}));
  dir.write(prefix + "3.safetensors", file_of({"d", "e"}));
  dir.write(prefix + std::string(kIndexName), index_of({{"a", "1.safetensors"},
                                                        {"b", "1.safetensors"},
                                                        {"c", "2.safetensors"},
                                                        {"d", "3.safetensors"},
                                                        {"e", "3.safetensors"}},
                                                       20));
}

// HUB/models--org--name with one snapshot of the three shards, as links into blobs/.
std::string write_hub(const TempDir& hub) {
  write_sharded(hub, "models--org--name/blobs");
  hub.write("models--org--name/refs/main", "abcd");
  const fs::path repository = hub.path() / "models--org--name";
  fs::create_directories(repository / "snapshots/abcd");
  for (const auto& blob : fs::directory_iterator(repository / "blobs")) {
    fs::create_symlink("../../blobs/" + blob.path().filename().string(),
                       repository / "snapshots/abcd" / blob.path().filename());
  }
  return repository.string();
}

Error error_of(const std::string& source, const RepositoryOptions& options = {}) {
  const Result<Repository> repository = open_repository(source, options);
  EXPECT_FALSE(repository.ok()) << source;
  return repository.ok() ? Error(ErrorCode::internal, "it was opened") : repository.error();
}

TEST(Repository, AFileIsOne) {
  const TempDir dir;
  const std::string path = dir.write("m.safetensors", file_of({"y", "x"}, 3));
  Result<Repository> opened = open_repository(path);
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  const Repository repository = std::move(opened).value();
  EXPECT_EQ(repository.path(), path);
  ASSERT_EQ(repository.shards().size(), 1U);
  EXPECT_EQ(repository.shards()[0].path, path);
  EXPECT_EQ(repository.shards()[0].identity.size, fs::file_size(path));
  EXPECT_TRUE(repository.shards()[0].fd.valid());
  EXPECT_FALSE(repository.shards()[0].file_system.name.empty());
  EXPECT_THAT(names_of(repository), ElementsAre("x", "y"));
  EXPECT_EQ(repository.bytes(), 6U);
  ASSERT_NE(repository.find("y"), nullptr);
  EXPECT_EQ(repository.tensor(*repository.find("y")).name, "y");
  EXPECT_EQ(repository.find("z"), nullptr);
  EXPECT_EQ(repository.metadata().at(0).second, "pt");
  EXPECT_THAT(repository.warnings, IsEmpty());
}

TEST(Repository, AFolderWithAnIndexIsOneAndOnlyIndexedFilesAreOpened) {
  const TempDir dir;
  write_sharded(dir);
  dir.write("consolidated.safetensors", "not opened");
  const Result<Repository> repository = open_repository(dir.path().string());
  ASSERT_TRUE(repository.ok()) << repository.error().to_string();
  EXPECT_EQ(repository->shards().size(), 3U);
  EXPECT_THAT(names_of(*repository), ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_EQ(repository->find("e")->shard, 2U);
  EXPECT_EQ(repository->bytes(), 20U);
  EXPECT_THAT(repository->warnings, IsEmpty());
  ASSERT_TRUE(repository->index);
  // The same by the path of the index.
  EXPECT_EQ(open_repository(dir.file(kIndexName)).value().tables().tensors.size(), 5U);
}

TEST(Repository, TensorsThatTheIndexPutsElsewhereAreNotPartOfIt) {
  const TempDir dir;
  dir.write("1.safetensors", file_of({"a", "b", "unused"}));
  dir.write("2.safetensors", file_of({"b", "c"}));
  dir.write(kIndexName, index_of({{"c", "2.safetensors"}, {"a", "1.safetensors"}, {"b", "2.safetensors"}}));
  const Result<Repository> repository = open_repository(dir.path().string());
  ASSERT_TRUE(repository.ok()) << repository.error().to_string();
  EXPECT_THAT(names_of(*repository), ElementsAre("a", "b", "c"));
  EXPECT_EQ(repository->find("b")->shard, 1U);
  EXPECT_EQ(repository->find("unused"), nullptr);
}

TEST(Repository, AFolderWithoutAnIndexIsAllItsFiles) {
  const TempDir dir;
  dir.write("b.safetensors", file_of({"b"}));
  dir.write("a.safetensors", file_of({"a"}));
  dir.write("config.json", "{}");
  EXPECT_THAT(names_of(open_repository(dir.path().string()).value()), ElementsAre("a", "b"));

  dir.write("c.safetensors", file_of({"a"}));  // L01, over files
  const Error error = error_of(dir.path().string());
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_THAT(error.to_string(), HasSubstr("duplicate name"));
  EXPECT_THAT(error.to_string(), HasSubstr("a.safetensors and c.safetensors"));
  EXPECT_EQ(error.tensor(), "a");
}

TEST(Repository, TheUsualIndexComesFirstAndOthersAreAmbiguous) {
  const TempDir dir;
  dir.write("1.safetensors", file_of({"a"}));
  dir.write("x.safetensors.index.json", index_of({{"a", "1.safetensors"}}));
  EXPECT_TRUE(open_repository(dir.path().string()).ok());
  dir.write("y.safetensors.index.json", "{}");
  const Error error = error_of(dir.path().string());
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), HasSubstr("x.safetensors.index.json, y.safetensors.index.json"));
  EXPECT_TRUE(open_repository(dir.file("x.safetensors.index.json")).ok());
  dir.write(kIndexName, index_of({{"a", "1.safetensors"}}));
  EXPECT_TRUE(open_repository(dir.path().string()).ok());
}

TEST(Repository, AllThatIsMissingIsToldAtOnce) {  // L05
  const TempDir dir;
  write_sharded(dir);
  fs::remove(dir.file("2.safetensors"));
  fs::rename(dir.file("3.safetensors"), dir.file("model-3.safetensors"));
  dir.write("1.safetensors", file_of({"a"}));
  const Error error = error_of(dir.path().string());
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  const std::string text = error.to_string();
  EXPECT_THAT(text, HasSubstr("file 2.safetensors (not there, with 1 tensor)"));
  EXPECT_THAT(text, HasSubstr("file 3.safetensors (not there, with 2 tensors)"));
  EXPECT_THAT(text, HasSubstr("tensor \"b\" (not in 1.safetensors)"));
  EXPECT_THAT(text, HasSubstr("model-3.safetensors"));  // which the index does not know
  EXPECT_THAT(text, HasSubstr("hf download"));
  EXPECT_THAT(text, Not(HasSubstr("\"a\"")));
}

TEST(Repository, ABrokenIndexIsRefusedByName) {  // L05
  const TempDir dir;
  write_sharded(dir);
  for (const char* json : {"not json", R"({"weight_map":{}})", R"({"weight_map":{"a":"../x/secret.safetensors"}})",
                           R"({"weight_map":{"a":"/etc/passwd"}})", R"({"weight_map":{"a":"x\u0000y"}})"}) {
    dir.write(kIndexName, json);
    const Error error = error_of(dir.path().string());
    EXPECT_EQ(error.code(), ErrorCode::corrupt) << json;
    EXPECT_EQ(error.path(), dir.file(kIndexName)) << json;
  }
}

TEST(Repository, AWrongTotalSizeIsAWarning) {  // L05
  const TempDir dir;
  dir.write("1.safetensors", file_of({"a"}));
  dir.write(kIndexName, index_of({{"a", "1.safetensors"}}, 5));
  const Result<Repository> repository = open_repository(dir.path().string());
  ASSERT_TRUE(repository.ok());
  ASSERT_EQ(repository->warnings.size(), 1U);
  EXPECT_THAT(repository->warnings[0], HasSubstr("total_size of 5 bytes"));
  EXPECT_THAT(repository->warnings[0], HasSubstr("4"));
}

TEST(Repository, ACutShardIsNamedWithBothSizes) {  // L02, T02
  const TempDir dir;
  write_sharded(dir);
  const std::uint64_t whole = fs::file_size(dir.file("2.safetensors"));
  for (const std::uint64_t size : {whole - 1, whole - 4, whole / 2, std::uint64_t{7}, std::uint64_t{0}}) {
    fs::resize_file(dir.file("2.safetensors"), size);
    const Error error = error_of(dir.path().string());
    EXPECT_EQ(error.code(), ErrorCode::corrupt) << size;
    EXPECT_EQ(error.path(), dir.file("2.safetensors")) << size;
    EXPECT_FALSE(error.kind().empty()) << size;
    if (size < whole - 4) continue;
    EXPECT_EQ(error.kind(), "MetadataIncompleteBuffer");
    EXPECT_THAT(error.message(), HasSubstr(std::to_string(size)));
    EXPECT_THAT(error.message(), HasSubstr(std::to_string(whole)));
  }
  fs::resize_file(dir.file("3.safetensors"), 20);
  const Error both = error_of(dir.path().string());
  EXPECT_THAT(both.to_string(), HasSubstr("2 bad files"));
  EXPECT_THAT(both.to_string(), HasSubstr(dir.file("2.safetensors")));
  EXPECT_THAT(both.to_string(), HasSubstr(dir.file("3.safetensors")));
  EXPECT_TRUE(fs::exists(dir.file("1.safetensors")));
  EXPECT_EQ(fs::file_size(dir.file("3.safetensors")), 20U);  // nothing is repaired unasked
}

TEST(Repository, TrailingBytesAreAllowedOnlyWhenAsked) {
  const TempDir dir;
  const std::string path = dir.write("m.safetensors", file_of({"a"}) + "more");
  EXPECT_EQ(error_of(path).kind(), "MetadataIncompleteBuffer");
  EXPECT_TRUE(open_repository(path, {.allow_trailing_bytes = true}).ok());
}

TEST(Repository, DuplicateNamesAreRefusedWithTheFile) {  // L01
  const TempDir dir;
  const std::string json =
      R"({"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::string path = dir.write(
      "m.safetensors", std::string(1, static_cast<char>(json.size())) + std::string(7, '\0') + json + "12345678");
  EXPECT_THAT(error_of(path).to_string(), HasSubstr("duplicate name \"a\""));
  EXPECT_EQ(error_of(path).path(), path);
  EXPECT_TRUE(open_repository(path, {.compatibility = safetensors::Compatibility::reference}).ok());
}

TEST(Repository, WhatIsNoWeightsFileIsSaidInWords) {  // L04
  const TempDir dir;
  const std::string name = "model-00001-of-00002.safetensors";
  dir.write(name,
            "version https://git-lfs.github.com/spec/v1\noid "
            "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n");
  dir.write(kIndexName, index_of({{"a", name}}));
  const Error error = error_of(dir.path().string());
  EXPECT_THAT(error.to_string(), HasSubstr(name));
  EXPECT_THAT(error.to_string(), HasSubstr("Git LFS pointer"));
  EXPECT_THAT(error.to_string(), HasSubstr("git lfs pull"));
  EXPECT_THAT(error_of(dir.write("page.safetensors", "<!DOCTYPE html><html></html>")).to_string(), HasSubstr("HTML"));
}

TEST(Repository, LinksMayNotLeaveTheFolder) {  // L07
  const TempDir dir;
  const TempDir outside;
  write_sharded(dir, "model");
  outside.write("secret.safetensors", file_of({"c"}));
  fs::remove(dir.file("model/2.safetensors"));
  fs::create_symlink(outside.file("secret.safetensors"), dir.file("model/2.safetensors"));
  const Error error = error_of(dir.file("model"));
  EXPECT_EQ(error.code(), ErrorCode::permission);
  EXPECT_EQ(error.path(), dir.file("model/2.safetensors"));
  EXPECT_THAT(error.message(), HasSubstr(outside.file("secret.safetensors")));

  // A sibling whose name begins like the folder's is outside too.
  dir.write("model-other/2.safetensors", file_of({"c"}));
  fs::remove(dir.file("model/2.safetensors"));
  fs::create_symlink("../model-other/2.safetensors", dir.file("model/2.safetensors"));
  EXPECT_EQ(error_of(dir.file("model")).code(), ErrorCode::permission);

  // Within the folder a link is fine, and so is a link to the folder, or to a single file.
  fs::remove(dir.file("model/2.safetensors"));
  dir.write("model/real/x", file_of({"c"}));
  fs::create_symlink("real/x", dir.file("model/2.safetensors"));
  EXPECT_TRUE(open_repository(dir.file("model")).ok());
  fs::create_symlink(dir.file("model"), outside.file("link"));
  EXPECT_EQ(open_repository(outside.file("link")).value().shards()[1].path, outside.file("link/2.safetensors"));
  EXPECT_TRUE(open_repository(outside.file("link/2.safetensors")).ok());

  fs::remove(dir.file("model/" + std::string(kIndexName)));
  fs::create_symlink("/etc/passwd", dir.file("model/" + std::string(kIndexName)));
  EXPECT_EQ(error_of(dir.file("model")).code(), ErrorCode::permission);
}

TEST(Repository, WhatIsNoFileIsRefusedWithoutBlocking) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo(dir.file("m.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(error_of(dir.file("m.safetensors")).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of(dir.path().string()).path(), dir.file("m.safetensors"));
  EXPECT_EQ(error_of("/dev/null").code(), ErrorCode::invalid_argument);
  fs::remove(dir.file("m.safetensors"));
  fs::create_directory(dir.file("m.safetensors"));
  EXPECT_THAT(error_of(dir.path().string()).message(), HasSubstr("directory"));
}

TEST(Repository, HubSnapshotsAreFoundByPathFolderAndId) {
  const TempDir hub;
  const std::string repository = write_hub(hub);
  const RepositoryOptions options{.hub_cache = hub.path().string()};
  for (const std::string& source : {repository + "/snapshots/abcd", repository, std::string("org/name")}) {
    const Result<Repository> opened = open_repository(source, options);
    ASSERT_TRUE(opened.ok()) << opened.error().to_string();
    EXPECT_EQ(opened->tables().tensors.size(), 5U) << source;
    EXPECT_EQ(opened->commit, "abcd") << source;
    EXPECT_EQ(opened->path(), repository + "/snapshots/abcd");
    EXPECT_EQ(opened->shards()[0].path, repository + "/snapshots/abcd/1.safetensors");
    EXPECT_EQ(opened->shards()[0].resolved_path, fs::canonical(repository).string() + "/blobs/1.safetensors");
  }
  EXPECT_TRUE(open_repository("org/name", {.revision = "main", .hub_cache = options.hub_cache}).ok());
  EXPECT_TRUE(open_repository(repository, {.revision = "abcd"}).ok());
  EXPECT_EQ(error_of("org/name", {.revision = "v9", .hub_cache = options.hub_cache}).code(), ErrorCode::not_found);
  EXPECT_EQ(error_of(repository + "/snapshots/abcd", {.revision = "v9"}).code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error_of("org/other", options).to_string(), HasSubstr("hf download org/other"));
}

TEST(Repository, AMissingBlobIsSaidToBeMissing) {  // L07
  const TempDir hub;
  const std::string repository = write_hub(hub);
  fs::remove(repository + "/blobs/2.safetensors");
  hub.write("models--org--name/blobs/2.safetensors.incomplete", "");
  const Error error = error_of("org/name", {.hub_cache = hub.path().string()});
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_THAT(error.to_string(), HasSubstr("file 2.safetensors (blob missing"));
  EXPECT_THAT(error.to_string(), HasSubstr("hf download org/name"));
  EXPECT_THAT(error.to_string(), HasSubstr("1 unfinished download"));
  EXPECT_THAT(error_of(repository + "/snapshots/abcd/2.safetensors").to_string(), HasSubstr("missing"));

  // A link out of the repository's cache is refused there as well.
  fs::remove(repository + "/snapshots/abcd/2.safetensors");
  hub.write("models--org--evil/blobs/x", file_of({"c"}));
  fs::create_symlink("../../../models--org--evil/blobs/x", repository + "/snapshots/abcd/2.safetensors");
  EXPECT_EQ(error_of(repository).code(), ErrorCode::permission);
}

TEST(Repository, WhatIsNotThereSaysHowToGetIt) {
  const TempDir dir;
  EXPECT_EQ(error_of(dir.file("nothing")).code(), ErrorCode::not_found);
  EXPECT_EQ(error_of(dir.file("x.safetensors")).code(), ErrorCode::not_found);
  EXPECT_EQ(error_of("").code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error_of(dir.path().string()).message(), HasSubstr("no .safetensors file"));
  dir.write("pytorch_model.bin", "");
  EXPECT_THAT(error_of(dir.path().string()).hint(), HasSubstr("pytorch_model.bin"));
  EXPECT_EQ(error_of(dir.path().string(), {.revision = "main"}).code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace infercluster::load
