// SPDX-License-Identifier: Apache-2.0
// What a mount is, and how files are laid out on it at create.
//
// Where each call comes from: Lustre, lustre_user.h and llapi_layout(7); GPFS, gpfs_fcntl(3) and gpfs_prealloc(3);
// CephFS, "File layouts" in its documentation. CephFS was tried for real. No real Lustre and no real GPFS was at hand:
// what is sent to them is held against the documented bytes by a double (layout_test.cc), and nothing more.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "pfs/calls.h"

namespace infercluster::pfs {

enum class Kind : std::uint8_t { local, memory, nfs, lustre, gpfs, cephfs, other_network };
std::string_view name_of(Kind kind);

// Pure. By the magic of statfs; FUSE mounts by the type in the mount table ("fuse.ceph-fuse").
Kind kind_of(std::uint32_t magic, std::string_view mount_type);

struct FileSystem {
  Kind kind = Kind::local;
  std::uint64_t block_bytes = 0;
};
// A mount table that cannot be read leaves the magic alone to tell.
Result<FileSystem> identify(const Fd& fd, Calls& calls = system_calls());

// What a file will be. Zeros are chosen by plan_layout.
struct Wish {
  std::uint64_t file_bytes = 0;    // its final length; 0: not known
  unsigned files_at_once = 1;      // that are written beside each other, on all nodes
  std::uint32_t stripe_bytes = 0;  // rounded up to 64 KiB
  std::uint16_t stripe_count = 0;
  std::string pool = {};  // Lustre's OST pool or CephFS's data pool; empty: as the directory has it
};

struct Layout {
  Kind kind = Kind::local;
  std::uint64_t stripe_bytes = 0;        // GPFS: the block; 0: not known, or none
  std::uint32_t stripe_count = 0;        // 0: not known, or none
  std::uint64_t object_bytes = 0;        // CephFS only
  std::uint64_t preallocated_bytes = 0;  // GPFS only
  std::string pool = {};
  bool chosen = false;    // set by us; else it is the file system's own
  std::string note = {};  // why it is not what was wished for; empty: nothing to say
};
// "lustre, 8 stripes of 4.0 MiB", and the note.
std::string describe(const Layout& layout);

// Pure. Few stripes for small files, and where many files are written at once: each stripe costs a lock and an object.
Layout plan_layout(const FileSystem& system, const Wish& wish);

struct Created {
  Fd fd;          // for reading and writing
  Layout layout;  // read back from the file
};
// Creates the file, which must not be there, in the open `directory`, and lays it out. `flags`: more for open(2), such
// as O_DIRECT. A layout that the file system refuses leaves its own, and a note; what means that the file cannot be
// written (no space, quota) is an error, and the file is gone.
Result<Created> create(const Fd& directory, const std::string& name, const Wish& wish, int flags = 0,
                       Calls& calls = system_calls());

// The layout of an open file; of a directory, the one that its new files get. Where the file system has none: its kind.
Result<Layout> read_layout(const Fd& fd, Calls& calls = system_calls());

}  // namespace infercluster::pfs
