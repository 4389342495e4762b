// SPDX-License-Identifier: Apache-2.0
#include "os/sealed_map.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace infercluster::os {
namespace {

constexpr std::string_view kContent = "what stays as it is";

Fd memory_file(int seals) {
  Fd file(::memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::write(file.get(), kContent.data(), kContent.size()), static_cast<ssize_t>(kContent.size()));
  EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
  return file;
}
// As a file that somebody names: opened anew, to read.
Fd opened(const Fd& file) {
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  return Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

TEST(SealedMap, HasWhatIsSealedEvenWhenTheFileIsClosed) {
  std::optional<SealedMap> map;
  {
    const Fd file = memory_file(F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW);
    map = SealedMap::of(opened(file), kContent.size());
  }
  ASSERT_TRUE(map);
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(map->data().data()), map->data().size()), kContent);
  SealedMap moved = std::move(*map);
  EXPECT_EQ(moved.data().size(), kContent.size());
}

TEST(SealedMap, IsNotMadeOfWhatMayStillChange) {
  for (const int seals : {0, F_SEAL_WRITE, F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_SEAL})
    EXPECT_FALSE(SealedMap::of(opened(memory_file(seals)), kContent.size())) << seals;
  EXPECT_FALSE(SealedMap::of(Fd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), 1));
}

}  // namespace
}  // namespace infercluster::os
