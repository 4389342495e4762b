// SPDX-License-Identifier: Apache-2.0
// Without libgpfs: said plainly, and the file is written all the same. In children: what is found at run time is found
// once.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "pfs/layout.h"
#include "testing/child.h"
#include "testing/temp_dir.h"

namespace infercluster::pfs {
namespace {

class OnGpfs final : public Calls {
 public:
  Result<StatFs> stat_fs(const Fd&) override { return StatFs{0x47504653, 8 << 20}; }
};

int note_has(const std::string& library, const std::string& words) {
  return testing::in_child([&] {
    ::setenv("INFERCLUSTER_LIBGPFS", library.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): the only thread
    const testing::TempDir directory;
    const Fd folder(::open(directory.path().c_str(), O_RDONLY | O_DIRECTORY));
    OnGpfs calls;
    const auto created = create(folder, "segment", {.file_bytes = 1 << 20}, 0, calls);
    if (!created.ok()) return 2;
    if (created->layout.preallocated_bytes != 0 || created->layout.chosen) return 3;
    return created->layout.note.find(words) == std::string::npos ? 4 : 0;
  });
}

TEST(GpfsLibrary, ThatIsMissingIsANote) {
  EXPECT_EQ(note_has("libgpfs-that-is-not-there.so", "libgpfs-that-is-not-there.so"), 0);
}

TEST(GpfsLibrary, ThatIsSwitchedOffIsANote) {
  EXPECT_EQ(note_has("", "switched off"), 0);
}

TEST(GpfsLibrary, ThatIsAnotherLibraryIsANote) {
  EXPECT_EQ(note_has("libc.so.6", "has no gpfs_fcntl"), 0);
}

}  // namespace
}  // namespace infercluster::pfs
