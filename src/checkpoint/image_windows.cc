// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/image_windows.h"

#include <utility>

namespace infercluster::checkpoint {

void ImageWindows::push(ImageWindow window) {
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_) return;
    windows_.push_back(std::move(window));
  }
  changed_.notify_all();
}

void ImageWindows::fail(Error error) {
  {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
  }
  changed_.notify_all();
}

Result<std::optional<ImageWindow>> ImageWindows::pop() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return error_ || !windows_.empty(); });
  if (windows_.empty()) return *error_;
  std::optional<ImageWindow> window(std::move(windows_.front()));
  windows_.pop_front();
  lock.unlock();
  if (window->arrival != nullptr) IC_CHECK(window->arrival->wait());
  return window;
}

void ImageWindows::abandon() {
  std::deque<ImageWindow> dropped;
  {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    dropped.swap(windows_);
  }
}

}  // namespace infercluster::checkpoint
