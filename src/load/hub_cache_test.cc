// SPDX-License-Identifier: Apache-2.0
#include "load/hub_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "testing/temp_dir.h"

namespace infercluster::load {
namespace {

using infercluster::testing::TempDir;
using ::testing::HasSubstr;

std::string hub_of(std::map<std::string, std::string> environment) {
  return hub_cache_directory([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST(HubCache, IsFoundAsHuggingfaceHubFindsIt) {
  EXPECT_EQ(hub_of({{"HF_HUB_CACHE", "/a"}, {"HF_HOME", "/b"}, {"HOME", "/h"}}), "/a");
  EXPECT_EQ(hub_of({{"HUGGINGFACE_HUB_CACHE", "/a"}, {"HF_HOME", "/b"}}), "/a");
  EXPECT_EQ(hub_of({{"HF_HOME", "/b"}, {"XDG_CACHE_HOME", "/x"}, {"HOME", "/h"}}), "/b/hub");
  EXPECT_EQ(hub_of({{"XDG_CACHE_HOME", "/x"}, {"HOME", "/h"}}), "/x/huggingface/hub");
  EXPECT_EQ(hub_of({{"HF_HUB_CACHE", ""}, {"HOME", "/h"}}), "/h/.cache/huggingface/hub");
  EXPECT_EQ(hub_of({{"HF_HOME", "~/hf"}, {"HOME", "/h"}}), "/h/hf/hub");
  EXPECT_EQ(hub_of({}), "");
}

TEST(HubCache, RepositoryIds) {
  for (const char* id : {"org/name", "gpt2", "a/b.c-d_e", "A1/2b"}) EXPECT_TRUE(is_repository_id(id)) << id;
  for (const char* id :
       {"", "/", "a/", "/a", "a/b/c", "../x", "a/..", "a b", "a/b--c", "-a/b", "a/.b", "a\n/b", "a/b:c"}) {
    EXPECT_FALSE(is_repository_id(id)) << id;
  }
  EXPECT_EQ(repository_id_of("/hub/models--org--name"), "org/name");
  EXPECT_EQ(repository_id_of("/hub/models--gpt2"), "gpt2");
  EXPECT_EQ(repository_id_of("/hub/other"), "");
}

class HubRepository : public ::testing::Test {
 protected:
  HubRepository() {
    hub_.write("models--org--name/refs/main", "1111\n");
    hub_.write("models--org--name/refs/refs/pr/7", "2222");
    hub_.write("models--org--name/refs/gone", "3333");
    hub_.write("models--org--name/refs/evil", "../../elsewhere");
    hub_.write("models--org--name/snapshots/1111/f", "");
    hub_.write("models--org--name/snapshots/2222/f", "");
  }
  TempDir hub_;
  std::string repository_ = hub_.file("models--org--name");
};

TEST_F(HubRepository, RevisionsAreRefsOrWholeSnapshotNames) {
  EXPECT_EQ(find_snapshot(repository_, "").value().commit, "1111");
  EXPECT_EQ(find_snapshot(repository_, "main").value().path, repository_ + "/snapshots/1111");
  EXPECT_EQ(find_snapshot(repository_, "refs/pr/7").value().commit, "2222");
  EXPECT_EQ(find_snapshot(repository_, "2222").value().commit, "2222");
}

TEST_F(HubRepository, UnknownRevisionsSayWhatThereIs) {
  for (const char* revision : {"v2", "22", "gone"}) {
    const Error error = find_snapshot(repository_, revision).error();
    EXPECT_EQ(error.code(), ErrorCode::not_found) << revision;
    EXPECT_THAT(error.message(), HasSubstr("1111, 2222")) << revision;
    EXPECT_THAT(error.hint(), HasSubstr(std::string("hf download org/name --revision ") + revision));
  }
  EXPECT_THAT(find_snapshot(repository_, "gone").error().message(), HasSubstr("3333"));
  EXPECT_EQ(find_snapshot(repository_, "evil").error().code(), ErrorCode::corrupt);
  for (const char* revision : {"..", "../main", "/etc/passwd", "main/", "./main", "a/../main"}) {
    EXPECT_EQ(find_snapshot(repository_, revision).error().code(), ErrorCode::invalid_argument) << revision;
  }
}

TEST_F(HubRepository, IsFoundById) {
  EXPECT_EQ(find_hub_repository("org/name", hub_.path().string()).value(), repository_);
  const Error error = find_hub_repository("org/other", hub_.path().string()).error();
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_THAT(error.hint(), HasSubstr("hf download org/other"));
  EXPECT_EQ(find_hub_repository("org/name", "").error().code(), ErrorCode::not_found);
}

TEST_F(HubRepository, PlacesInsideASnapshotAreKnown) {
  EXPECT_EQ(snapshot_place_of(repository_ + "/snapshots/1111").commit, "1111");
  EXPECT_EQ(snapshot_place_of(repository_ + "/snapshots/1111/unet/x").hub_repository, repository_);
  EXPECT_EQ(snapshot_place_of(repository_ + "/snapshots").hub_repository, "");
  EXPECT_EQ(snapshot_place_of("/").hub_repository, "");
}

}  // namespace
}  // namespace infercluster::load
