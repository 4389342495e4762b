// SPDX-License-Identifier: Apache-2.0
// Small bytes between the ranks of one job: gather, decide, agree, abort with the first cause, each with a deadline.
//
// Calls are made in rounds: every rank makes the same calls in the same order. A round has exactly one verdict, which
// all ranks get: either what all of them gave, or the first cause that kept one of them from it. So no rank can succeed
// where another fails: a rank that gives up after the others were done learns that they were.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace infercluster::exchange {

inline constexpr int kRanksMax = 65536;
inline constexpr std::uint64_t kBytesMax = 4ULL << 20;           // that one rank gives to one gather
inline constexpr std::uint64_t kGatheredBytesMax = 64ULL << 20;  // of all ranks together
inline constexpr std::uint64_t kAgreeBytesMax = 4ULL << 10;
inline constexpr std::size_t kTagBytesMax = 64;  // 1 to 64 of a-z, A-Z, 0-9, '.', '_', '-'

// A point on steady_clock(). A call returns within a second after it, as far as the file system or store below answers;
// it never waits for another rank beyond it.
using Deadline = Clock::TimePoint;
inline Deadline deadline_in(Clock::Duration duration) {
  return steady_clock().now() + duration;
}

// Why a job ended, the same on all ranks.
struct Cause {
  int rank = 0;             // where it happened, or the first one that is missing or differs; as messages call it
  std::uint64_t bytes = 0;  // that had been written, or were asked for, when it happened; 0: says nothing
  // As on that rank: code, errno, path, offset, tensor, hint; the message begins with "rank N" or "ranks N, M". Texts
  // are cut at 1 KiB each.
  Error error;
};

// The ranks of one job. Thread rule: gather, decide, agree and nested by one thread at a time; abort, check and cause
// by any thread at any time, also while another waits in gather.
class Exchange {
 public:
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  [[nodiscard]] virtual int rank() const = 0;  // 0 <= rank < world
  [[nodiscard]] virtual int world() const = 0;
  // What messages call a rank: its number in the job, where these are some of the job's ranks.
  [[nodiscard]] virtual int called(int rank) const { return rank; }
  // How many ranks ask the same store.
  [[nodiscard]] virtual int job_world() const { return world(); }

  // What every rank gave, by rank. `tag` names the call: ranks that meet with different tags have lost step, and all
  // get an error (internal) that names them. Errors, the same on all ranks and for every later call: the cause of an
  // abort; timed_out, naming the ranks that were missing; too_large. invalid_argument (a bad tag, or bytes over the
  // limit) aborts too: the others would wait in vain.
  virtual Result<std::vector<std::string>> gather(std::string_view tag, std::string_view bytes, Deadline deadline) = 0;

  // What rank 0 makes of what every rank gave, by rank: what the others receive does not grow with the ranks.
  // `decision` runs on rank 0 alone, in the call, once all have come. Errors: as gather; and the one that `decision`
  // returns, which ends the job on all ranks as rank 0's.
  using Decision = std::function<Result<std::string>(const std::vector<std::string>& given)>;
  virtual Result<std::string> decide(std::string_view tag, std::string_view bytes, const Decision& decision,
                                     Deadline deadline) = 0;

  // Success where all ranks gave the same bytes. Errors: as gather; and invalid_argument, naming the ranks that differ
  // from the most (from rank 0 where there is no most).
  virtual Status agree(std::string_view tag, std::string_view bytes, Deadline deadline) = 0;

  // As agree. `watch` is called between two looks while this rank waits, every 100 ms (less often in large worlds): its
  // error ends the job on all ranks, unless the round has its verdict by then.
  using Watch = std::function<Status()>;
  virtual Status agree_watched(std::string_view tag, std::string_view bytes, const Watch& watch, Deadline deadline) = 0;

  // Ends the job on all ranks: every call that waits, and every later one, returns the first cause. Returns that: this
  // one, or another rank's where that came first. Also after a round that the others may have completed: they learn of
  // it at their next call. `bytes`: see Cause. Reaches the others also when the shared file system is full.
  // When it cannot be told to the others (nothing below answers by the deadline), they end by their own deadlines.
  virtual Error abort(const Error& error, std::uint64_t bytes, Deadline deadline) = 0;

  // An error when the job has ended on any rank; looks, and does not wait. For long work between two rounds.
  virtual Status check() = 0;

  // Why the job ended, once a call of this rank has returned it.
  [[nodiscard]] virtual std::optional<Cause> cause() const = 0;

  // An exchange of the same ranks for one operation (one save): its abort ends it alone, so that the next operation has
  // a fresh start. No message is sent. All ranks give the same `number`, each higher than the last. Destroy it when the
  // operation is over on this rank; what it left behind is removed once that is so on all. It may outlive this one.
  virtual Result<std::unique_ptr<Exchange>> nested(std::uint64_t number) = 0;

 protected:
  Exchange() = default;
};

// World 1: nobody to wait for.
std::unique_ptr<Exchange> make_single();

}  // namespace infercluster::exchange
