// SPDX-License-Identifier: Apache-2.0
// An NVMe/TCP target: files as the blocks of one read-only namespace, for Linux hosts and our own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "os/socket.h"
#include "target/address_space.h"
#include "target/controllers.h"
#include "target/shard.h"
#include "target/state.h"

namespace infercluster::target {

struct TargetOptions {
  os::SocketAddress listen{};
  std::string nqn{};         // empty: what the state says, which is made once
  std::string state_path{};  // where identity and addresses are kept; empty: they last as long as the target
  Admission admission{};
  Limits limits{};
  unsigned shards = 1;
  ShardOptions shard{};
};

// Thread rule: any thread may call anything.
class Target {
 public:
  // Listens and serves from now on. Errors: those of the address, of the state file, and of io_uring.
  static Result<std::unique_ptr<Target>> start(const TargetOptions& options);
  // Ends every connection. What the kernel still sends is waited for.
  ~Target();
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  // Maps a file. It gets the blocks that it had before a restart when it is still the same file, and else fresh ones.
  // Errors: those of Object::open, of the state file, and too_large.
  Result<Mapping> add(const std::string& path);
  // From now on its blocks answer with a definite error. False: no object begins there. What is being sent still holds
  // the object.
  Result<bool> unmap(std::uint64_t first_block);

  [[nodiscard]] const os::SocketAddress& address() const { return address_; }
  [[nodiscard]] const nvme::Subsystem& subsystem() const { return subsystem_; }
  [[nodiscard]] std::vector<Mapping> mappings() const { return space_->mappings(); }
  [[nodiscard]] std::vector<const ShardCounters*> counters() const;
  [[nodiscard]] std::size_t controllers() const { return controllers_->count(); }

 private:
  Target() = default;
  Status remember(std::uint64_t needed_blocks);

  os::SocketAddress address_;
  Fd listener_;
  nvme::Subsystem subsystem_;
  std::string state_path_;
  Fd state_lock_;
  std::mutex state_mutex_;
  State state_;  // under state_mutex_
  std::unique_ptr<AddressSpace> space_;
  std::unique_ptr<Controllers> controllers_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<std::thread> threads_;
};

}  // namespace infercluster::target
