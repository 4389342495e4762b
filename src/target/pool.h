// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <vector>

#include "base/assert.h"

namespace infercluster::target {

// Objects whose addresses the kernel knows for a while. It keeps what it has made, so that the steady state allocates
// nothing. Thread rule: one thread; all are given back before it goes.
template <typename T>
class Pool {
 public:
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() { IC_ASSERT(free_.size() == all_.size()); }

  T& take() {
    if (free_.empty()) {
      free_.reserve(all_.size() + 1);
      return all_.emplace_back();
    }
    T* object = free_.back();
    free_.pop_back();
    return *object;
  }
  // What it held is let go.
  void give_back(T& object) {
    object = T();
    free_.push_back(&object);
  }

 private:
  std::deque<T> all_;
  std::vector<T*> free_;
};

}  // namespace infercluster::target
