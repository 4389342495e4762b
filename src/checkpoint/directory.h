// SPDX-License-Identifier: Apache-2.0
// The directory of a step: what in it is committed, how a save begins in it, how it becomes a checkpoint, how it goes.
//
// A directory holds one commit record, COMMIT; while a replacement takes over also COMMIT.N. The one with the highest
// epoch counts. Names that a save makes bear its epoch and are never made twice, so that nothing is ever overwritten.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/files.h"
#include "manifest/commit.h"
#include "manifest/index.h"

namespace infercluster::checkpoint {

// The commit that counts; nothing where there is none. Errors: what keeps a record from being read, damaged and newer
// ones too: such a directory is neither used nor removed.
Result<std::optional<manifest::Commit>> read_commit(io::FileCalls& calls, const io::Directory& directory);

// All indexes of a commit, with their checksums, and every segment there with its size. What read_commit() found is
// then whole as far as can be told without reading the data.
Result<std::vector<manifest::Index>> read_indexes(io::FileCalls& calls, const io::Directory& directory,
                                                  const manifest::Commit& commit);

// The same, without keeping them: in a large job they are more than a GiB of memory.
Status check_indexes(io::FileCalls& calls, const io::Directory& directory, const manifest::Commit& commit);
// Those at these positions of the commit alone, in their places; the others are empty.
Result<std::vector<manifest::Index>> read_indexes(io::FileCalls& calls, const io::Directory& directory,
                                                  const manifest::Commit& commit,
                                                  std::span<const std::uint64_t> positions);

// The epoch in which this save has begun here, above what is committed; nothing: it has not.
Result<std::optional<std::uint64_t>> epoch_begun(io::FileCalls& calls, const io::Directory& directory,
                                                 const std::string& save_id, std::uint64_t committed);
// What a root knows of a save: neither where it knows nothing, or has a later one of the step.
struct Standing {
  bool is_durable = false;
  std::optional<std::uint64_t> begun;  // the epoch, above what is committed
};
Result<Standing> standing_of(io::FileCalls& calls, const io::Directory& root, std::uint64_t step,
                             const std::string& save_id);

enum class Exists : std::uint8_t { error, replace };

// A save that has begun.
struct Begun {
  io::Directory directory;
  std::uint64_t step = 0;
  std::uint64_t epoch = 0;
  std::string save_id;
  std::string name = {};  // of the directory in its parent, when a caller of begin_beside() gave it; else the step's
};

// By rank 0: makes the directory, or a new epoch in one that has a commit (`replace`), and puts down the mark. A
// directory without a commit is what an interrupted save left behind: it is removed, with a warning. `id`: 16 fresh
// hexadecimal digits. Errors: invalid_argument when the step is there and `exists` is error.
Result<Begun> begin_save(io::FileCalls& calls, const io::Directory& root, std::uint64_t step, Exists exists,
                         const std::string& id);
// The same in a directory that is there, of any name, and that may hold other files too: they stay. What an interrupted
// save left behind goes when the new one is durable. The step is that of the name, or 0.
Result<Begun> begin_beside(io::FileCalls& calls, const io::Directory& parent, const std::string& name, Exists exists,
                           const std::string& id);
// By the others: opens the same directory once it is visible here (attribute caches), which may take until `waiting`
// says false.
Result<Begun> join_save(io::FileCalls& calls, const io::Directory& root, std::uint64_t step, std::uint64_t epoch,
                        const std::string& save_id, const std::function<bool()>& waiting);
// After begin_beside().
Result<Begun> join_beside(io::FileCalls& calls, const io::Directory& parent, const std::string& name,
                          std::uint64_t epoch, const std::string& save_id, const std::function<bool()>& waiting);

// By rank 0, once every writer has made its files durable. Success: the checkpoint is durable and counts. A link whose
// answer was lost is settled by what is there. Errors name what to do where links are not supported.
Status commit_save(io::FileCalls& calls, const io::Directory& parent, const Begun& begun,
                   const manifest::Commit& commit);
// Removes what belongs to other epochs, and gives the record its plain name. Whatever fails is done by the next one.
Status finish_replacement(io::FileCalls& calls, const Begun& begun);
// After a failure: removes what this save made, the directory too unless it holds another epoch's commit or was there
// before (begin_beside). Never what is committed.
Status discard_save(io::FileCalls& calls, const io::Directory& parent, const Begun& begun);

// Renames the directory away, fsyncs the root, removes it. A writer that has it open can harm nothing any more.
// `uncommitted_only`: puts it back when a commit shows up after all. Files that are not ours stay, with an error.
enum class Remove : std::uint8_t { uncommitted_only, committed_too };
// Called before a large file gives back each kFreedAtOnce of its space, which disks may be long about (discard); it may
// wait.
using FreePace = std::function<void()>;
inline constexpr std::uint64_t kFreedAtOnce = std::uint64_t{64} << 20;
Status remove_step(io::FileCalls& calls, const io::Directory& root, std::uint64_t step, const std::string& id,
                   Remove what, const FreePace& pace = nullptr);
// Removes trash of exactly such a name.
Status remove_trash(io::FileCalls& calls, const io::Directory& root, const std::string& name,
                    const FreePace& pace = nullptr);

// Whether torch.distributed.checkpoint's own writer has saved it: .metadata, which it writes last, files __*.distcp,
// and no commit of ours. It is read by the Python package alone, and never removed.
Result<bool> is_stock_dcp(io::FileCalls& calls, const io::Directory& directory);
// What to say where such a directory is asked for.
Error stock_dcp_error(const io::Directory& directory);
enum class StockDcp : std::uint8_t { passed_over, counted };

// Steps with a commit, ascending; those whose record cannot be used are left out, with a warning.
Result<std::vector<std::uint64_t>> committed_steps(io::FileCalls& calls, const io::Directory& root,
                                                   StockDcp stock = StockDcp::passed_over);
// The highest step that is committed and whole by read_indexes(); nothing where there is none. What is passed over on
// the way is a warning.
Result<std::optional<std::uint64_t>> newest_whole_step(io::FileCalls& calls, const io::Directory& root,
                                                       StockDcp stock = StockDcp::passed_over);
// Whether a step is so.
bool is_whole(io::FileCalls& calls, const io::Directory& root, std::uint64_t step);

// Steps of the root that have a directory, ascending.
Result<std::vector<std::uint64_t>> list_steps(io::FileCalls& calls, const io::Directory& root);

std::string random_id();  // 16 hexadecimal digits

}  // namespace infercluster::checkpoint
