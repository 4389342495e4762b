// SPDX-License-Identifier: Apache-2.0
// For tests: a target in a process of its own, which can be stopped and killed. Made while no other thread runs here.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <memory>
#include <string>

#include "base/assert.h"
#include "initiator/url.h"
#include "target/target.h"

namespace infercluster::initiator {

class TargetProcess {
 public:
  explicit TargetProcess(const target::TargetOptions& options, const std::string& object) {
    std::array<int, 2> ends{};
    IC_ASSERT(::pipe(ends.data()) == 0);
    child_ = ::fork();
    IC_ASSERT(child_ >= 0);
    if (child_ == 0) serve(options, object, ends[1]);
    ::close(ends[1]);
    IC_ASSERT(::read(ends[0], &said_, sizeof(said_)) == sizeof(said_));
    ::close(ends[0]);
  }
  ~TargetProcess() { kill(); }
  TargetProcess(const TargetProcess&) = delete;
  TargetProcess& operator=(const TargetProcess&) = delete;

  [[nodiscard]] Url url() const { return {.address = said_.address, .nqn = said_.nqn.data(), .nsid = 1}; }
  [[nodiscard]] std::uint64_t first_block() const { return said_.first_block; }

  // Returns when every thread of it has stopped.
  void stop() const {
    IC_ASSERT(::kill(child_, SIGSTOP) == 0);
    int status = 0;
    IC_ASSERT(::waitpid(child_, &status, WUNTRACED) == child_ && WIFSTOPPED(status));
  }
  void go_on() const { IC_ASSERT(::kill(child_, SIGCONT) == 0); }
  void kill() {
    if (child_ == 0) return;
    ::kill(child_, SIGKILL);
    int status = 0;
    IC_ASSERT(::waitpid(child_, &status, 0) == child_);
    child_ = 0;
  }

 private:
  struct Said {
    os::SocketAddress address;
    std::array<char, 256> nqn{};
    std::uint64_t first_block = 0;
  };

  [[noreturn]] static void serve(const target::TargetOptions& options, const std::string& object, int to) {
    const auto target = target::Target::start(options);
    IC_ASSERT(target.ok());
    const auto mapping = (*target)->add(object);
    IC_ASSERT(mapping.ok());
    Said said{.address = (*target)->address(), .nqn = {}, .first_block = mapping->first_block};
    (*target)->subsystem().nqn.copy(said.nqn.data(), said.nqn.size() - 1);
    IC_ASSERT(::write(to, &said, sizeof(said)) == sizeof(said));
    for (;;) ::pause();
  }

  pid_t child_ = 0;
  Said said_;
};

}  // namespace infercluster::initiator
