// SPDX-License-Identifier: Apache-2.0
#include "exchange/callback_store.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "base/assert.h"

namespace infercluster::exchange {
namespace {

using namespace std::chrono_literals;

Error failed(const std::exception& exception, const std::string& key) {
  return Error(ErrorCode::io, std::string("the store failed: ") + exception.what()).with_path(key);
}

class CallbackStore final : public Store {
 public:
  explicit CallbackStore(StoreCallbacks callbacks) : callbacks_(std::move(callbacks)) {
    IC_ASSERT(callbacks_.set && callbacks_.get && callbacks_.set_if_absent);
  }

  // The functions are others' code, which says what went wrong by exceptions: they end here.
  Status set(const std::string& key, std::string_view value, Deadline) override {
    try {
      callbacks_.set(key, std::string(value));
      return {};
    } catch (const std::exception& exception) {
      return failed(exception, key);
    }
  }

  Result<std::optional<std::string>> get(const std::string& key, Deadline until) override {
    using std::chrono::milliseconds;
    constexpr milliseconds kPauseMax{5};
    const auto left = std::chrono::ceil<milliseconds>(until - steady_clock().now());
    try {
      auto value = callbacks_.get(key, std::clamp(left, milliseconds(0), StoreCallbacks::kWaitMax));
      // One that only looks must not be asked without a pause.
      if (!value)
        std::this_thread::sleep_for(std::clamp<Clock::Duration>(until - steady_clock().now(), 0ms, kPauseMax));
      return value;
    } catch (const std::exception& exception) {
      return failed(exception, key);
    }
  }

  Result<std::string> set_if_absent(const std::string& key, std::string_view value, Deadline) override {
    try {
      return callbacks_.set_if_absent(key, std::string(value));
    } catch (const std::exception& exception) {
      return failed(exception, key);
    }
  }

  void erase(const std::string& key) override {
    if (!callbacks_.erase) return;
    try {
      callbacks_.erase(key);
    } catch (const std::exception&) {
      // Nothing depends on it; not every store of torch can.
      return;
    }
  }

 private:
  const StoreCallbacks callbacks_;
};

}  // namespace

std::shared_ptr<Store> make_callback_store(StoreCallbacks callbacks) {
  return std::make_shared<CallbackStore>(std::move(callbacks));
}

}  // namespace infercluster::exchange
