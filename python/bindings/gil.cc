// SPDX-License-Identifier: Apache-2.0
#include "gil.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace infercluster::python {
namespace {

std::atomic<bool> exiting{false};
std::atomic<int> returning{0};  // threads that have seen `exiting` as false and want the GIL back
thread_local bool is_exiting_thread = false;

}  // namespace

GilReleased::GilReleased() : state_(PyEval_SaveThread()) {}

GilReleased::~GilReleased() {
  ++returning;
  if (exiting && !is_exiting_thread) {
    --returning;
    for (;;) pause();
  }
  PyEval_RestoreThread(state_);
  --returning;
}

bool is_exiting() {
  return exiting;
}

void prepare_exit() {
  is_exiting_thread = true;
  exiting = true;
  // They wait for nothing but the GIL, which is free now; the limit is for a thread that another library keeps from it.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  PyThreadState* state = PyEval_SaveThread();
  while (returning > 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  PyEval_RestoreThread(state);
}

}  // namespace infercluster::python
