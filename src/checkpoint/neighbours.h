// SPDX-License-Identifier: Apache-2.0
// The ranks of a job that run on one node, and can share memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "exchange/exchange.h"
#include "os/local_socket.h"
#include "os/shared_memory.h"

namespace infercluster::checkpoint {

// Thread rule: one thread. Its calls are made by all ranks of the node in the same order; each waits until the deadline
// at most, and returns the cause when the job ends meanwhile.
class Neighbours {
 public:
  // Whoever destroys it while others are at work looks to them as if he had died: an error is told to the job before.
  explicit Neighbours(exchange::Exchange& job) : job_(job) {}

  // First, once, by all ranks of the job. `content`: what they are about to do together; where it differs, all are
  // refused (invalid_argument). Ranks find each other where neighbourhood() (restore_together.h) is equal: they
  // are of one user, in one boot of a kernel and one network and user namespace; others are alone, and so is one with
  // INFERCLUSTER_RESTORE_SHARED=0.
  Status meet(const std::string& content, exchange::Deadline deadline);

  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }  // of this node, ascending; this one too
  [[nodiscard]] std::size_t self() const { return self_; }                // of ranks()

  // What each of them gives, in the order of ranks().
  Result<std::vector<std::string>> share(const std::string& text, exchange::Deadline deadline);
  // The same memory for all of them. All give the same `bytes`.
  Result<os::SharedMemory> share_memory(std::uint64_t bytes, exchange::Deadline deadline);

  // Whether every process that this one is connected with is there: the first rank of the node watches the others, and
  // they watch it. They stay connected until this is destroyed.
  [[nodiscard]] Status look() const;
  // And whether the job goes on.
  Status watch();

 private:
  struct Connection {
    std::size_t to = 0;  // of ranks()
    os::LocalSocket socket;
  };
  Status connect_to_first(const std::string& door, exchange::Deadline deadline);
  Status let_in_others(exchange::Deadline deadline);
  Status check_job();
  Result<os::LocalSocket::Message> receive(Connection& from, exchange::Deadline deadline);
  // As messages call it.
  [[nodiscard]] std::string name_of(std::size_t neighbour) const;
  [[nodiscard]] Error has_ended(std::size_t neighbour) const;

  exchange::Exchange& job_;
  Clock::TimePoint next_check_;
  std::vector<int> ranks_;
  std::size_t self_ = 0;
  std::optional<os::LocalListener> listener_;
  // Of the first rank: to all others, in their order; of another one: to the first.
  std::vector<Connection> connections_;
};

}  // namespace infercluster::checkpoint
