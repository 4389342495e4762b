// SPDX-License-Identifier: Apache-2.0
// Giving up the GIL around calls that may wait.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

namespace infercluster::python {

// Without the GIL while it lives. A daemon thread whose call ends while the interpreter exits never gets the GIL back:
// CPython before 3.14 would end the thread by unwinding its C++ frames, which aborts the process. Such a thread sleeps
// until the process is gone.
class GilReleased {
 public:
  GilReleased();
  ~GilReleased();
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

// The interpreter is about to exit, and this thread will end it. Waits until no other thread is between its call and
// the GIL.
void prepare_exit();

// After prepare_exit(): no thread of ours asks for the GIL any more.
bool is_exiting();

template <typename Call>
auto without_gil(Call&& call) {
  const GilReleased released;
  return std::forward<Call>(call)();
}

}  // namespace infercluster::python
