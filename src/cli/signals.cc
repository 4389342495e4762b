// SPDX-License-Identifier: Apache-2.0
#include "cli/signals.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigaction is POSIX's

namespace infercluster::cli {
namespace {

volatile sig_atomic_t signal_seen = 0;

sigset_t ending_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

void remember(int signal) {
  signal_seen = signal;
}

}  // namespace

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void hold_signals() {
  const sigset_t ends = ending_signals();
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
}

int wait_for_signal() {
  const sigset_t ends = ending_signals();
  int signal = 0;
  sigwait(&ends, &signal);
  pthread_sigmask(SIG_UNBLOCK, &ends, nullptr);
  return signal;
}

int caught_signal() {
  return signal_seen;
}

}  // namespace infercluster::cli
