// SPDX-License-Identifier: Apache-2.0
// Saves the state of one rank of a job while the job goes on.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/box_copy.h"
#include "checkpoint/device_copies.h"
#include "checkpoint/directory.h"
#include "checkpoint/plan.h"
#include "checkpoint/restore.h"
#include "checkpoint/retention.h"
#include "checkpoint/save.h"
#include "checkpoint/tier_choice.h"
#include "exchange/exchange.h"
#include "io/files.h"
#include "io/latency_signal.h"
#include "pfs/calls.h"

namespace infercluster::checkpoint {

// A piece of state in memory. It is saved row-major, in the order of its dimensions, however it lies there. On a device
// it is contiguous, or rows at equal distances (checkpoint/device_copies.h).
struct HostPiece {
  Piece piece;
  const std::byte* data = nullptr;  // the box's first element; on a device its address there
  Strides strides = {};
  int device = -1;  // the CUDA device's ordinal; -1: the host
  // A number of the content: where this rank's last save is durable and has the piece with the same one, it is not
  // written again. Within the life of a checkpointer, one number of a tensor must stand for one content.
  std::optional<std::uint64_t> generation = {};
  // The same number where the owner counts it, who may change the piece while save() copies it: even at rest, odd while
  // the content changes. Nothing holds the owner up: what changed is copied again, for a second at most. Needs host
  // memory that is row-major, and the counter until save() returns.
  const std::uint64_t* live_generation = nullptr;
  // Pieces with one number, not 0, are the parts of one page, with one generation: they are saved as of one moment, and
  // referred to or written together. Generations of one number are compared with one another alone: it stands for the
  // place that the counter counts for. All of a page's pieces are here, and no other rank holds them (Piece::sole).
  std::uint64_t page = 0;
};

struct State {
  std::vector<HostPiece> pieces;
  manifest::Metadata metadata;  // texts of this rank that come back with it
  DeviceStreams streams = {};   // copies from devices begin behind the work that is queued there
};

// Storage of this node, such as its NVMe, on which a save is durable before it is on its way to the root.
struct FastTier {
  std::string path;  // for this root alone; ranks of a node may share it. Made where only the last part is missing
  Retention retention = {.keep = 1, .keep_every = 0};   // of each rank's part; what the root does not have yet stays
  std::uint64_t extent_bytes = std::uint64_t{1} << 30;  // that a drain makes durable at once, and does not do again
};

struct Options {
  Retention retention;
  std::optional<FastTier> fast = {};
  std::uint64_t arena_bytes = 0;     // of both snapshot arenas together; 0: half of what is free. A larger
                                     // state is copied in waves, and save() waits for the writes between them
  std::uint64_t max_write_rate = 0;  // bytes per second of this rank; 0: no limit
  // Foreground I/O that the writing gives way to: its rate falls, and its requests to 1 MiB, while somebody is behind
  // his target, to 8 MiB/s at the least. One who waits again is found by the next look, at most 100 ms later.
  struct Foreground {
    bool node = true;  // other processes of this user on this node that publish (io::LatencyPublisher)
    std::chrono::nanoseconds disk_target{0};      // for the mean time of reads of the device, by whomever; 0: not asked
    std::chrono::nanoseconds pressure_target{0};  // for the time in each second that tasks stall for I/O; 0: not asked
    std::vector<std::shared_ptr<io::LatencySignal>> signals = {};  // others, such as this process's own reads
    double rate_least = 8.0 * 1024 * 1024;                         // bytes per second that the writing gets in any case
  };
  Foreground foreground = {};
  // Whether steps(), latest() and agree_on_latest() count what torch.distributed.checkpoint saved, which restore() does
  // not read.
  StockDcp stock_dcp = StockDcp::passed_over;
  // How long a rank waits for the others: until all called save(), and until all have written.
  std::chrono::nanoseconds call_deadline = std::chrono::minutes(5);
  std::chrono::nanoseconds write_deadline = std::chrono::hours(1);
  exchange::Exchange* exchange = nullptr;  // the ranks; null: this process alone. Outlives the checkpointer
  io::FileCalls* calls = nullptr;          // null: the operating system's
  pfs::Calls* layouts = nullptr;           // null: the operating system's, where `calls` are; else files as they come
};

// When save() returns.
enum class Wait : std::uint8_t {
  // When copies from devices are queued, and work that is queued on the state's streams from then on begins only behind
  // them: so that an optimizer step may be queued at once. State in host memory is copied by then. Other streams and
  // the
  // host leave the state of devices alone until the save is staged (Save::wait_until_staged), and nobody frees it
  // before, but in the order of those streams, as torch's allocator does.
  until_queued,
  until_staged,  // when everything is copied: the state may change in any way
  until_durable,
};

struct SaveOptions {
  Wait wait = Wait::until_staged;
  Exists exists = Exists::error;
};

// Thread rule: one thread, but for cancel(). All ranks make the same calls of save() in the same order.
class Checkpointer {
 public:
  // `root` must be there; checkpoints are its subfolders.
  static Result<std::unique_ptr<Checkpointer>> open(const std::string& root, const Options& options);
  // Waits for what is being saved.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Returns when the state may be changed again (or is durable, as `options` say). Where one rank fails, all ranks get
  // the same first cause. The error of an earlier save that was not waited for to be durable is returned once, by the
  // next call, which then saves nothing.
  Result<std::shared_ptr<const Save>> save(std::uint64_t step, const State& state, const SaveOptions& options);
  // Until everything is durable or failed, and pruned.
  void wait_idle();

  // Steps that are committed, ascending; directories without a valid commit are none. Only this rank looks.
  Result<std::vector<std::uint64_t>> steps() const;
  Result<std::optional<std::uint64_t>> latest() const;
  // What rank 0 finds, on all ranks: whoever resumes must resume from one step. All ranks call it, in order with
  // save().
  Result<std::optional<std::uint64_t>> agree_on_latest();

  // The same verdict on all ranks on what each of them did by itself, such as loading: success where all succeeded,
  // else the first cause. Waits for the others until the write deadline. All ranks call it, in order with save().
  Status conclude(const Status& own);
  // A restore by all ranks (checkpoint/restore_together.h): the same verdict on all. A rank that cannot even begin
  // calls conclude() with its reason instead. Waits for the others until the call deadline, and for what they read
  // until the write deadline. One rank alone: Checkpoint::restore().
  Result<RestoreReport> restore(const Checkpoint& checkpoint, std::span<const Target> targets,
                                const RestoreOptions& options);
  // What rank 0 chooses to load, on all ranks: the step (none: the newest), from the fast tier where each rank sees all
  // parts of it, else from the root, with a notice why. A step that is on its way to the root is waited for. None:
  // there is no such step. Nothing is pruned from the fast tier until the restore, or the next save(). All ranks call
  // it, in order with save().
  Result<std::optional<LoadPlace>> choose(std::optional<std::uint64_t> step);
  // Only this rank looks.
  Result<std::unique_ptr<Checkpoint>> open_place(const LoadPlace& place) const;
  // Ends the call that is waiting, and the save that it began, on all ranks; its error is `cancelled`. Nothing waits:
  // no effect. By any thread.
  void cancel();

  // Brings memory for the snapshots of a state of so many bytes (of this rank) into being, so that the first two saves
  // need not wait for it. `device`: pins it too, for state on that device or others; -1: not. Optional.
  Status prepare(std::uint64_t bytes, int device = -1);

 private:
  struct Impl;
  explicit Checkpointer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace infercluster::checkpoint
