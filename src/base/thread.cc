// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>

namespace infercluster {
namespace {

std::atomic<pid_t> owner_process{0};

}  // namespace

std::thread start_thread(std::string_view name, std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the new thread, so that no signal slips in between
  std::thread thread([label = std::string(name.substr(0, 15)), work = std::move(body)] {
    pthread_setname_np(pthread_self(), label.c_str());
    work();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

bool in_forked_child() {
  const pid_t owner = owner_process.load();
  return owner != 0 && owner != ::getpid();
}

void remember_process() {
  pid_t expected = 0;
  owner_process.compare_exchange_strong(expected, ::getpid());
}

}  // namespace infercluster
