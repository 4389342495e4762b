// SPDX-License-Identifier: Apache-2.0
// A store that the caller hands in as functions: torch's TCPStore, FileStore or HashStore behind a PrefixStore of the
// job.
#pragma once

#include <functional>
#include <memory>

#include "exchange/store.h"

namespace infercluster::exchange {

// Called by any thread, and by several at once where the rank aborts while it waits: `get` returns after `wait` at the
// latest, and is not asked for more than kWaitMax at a time, so that a store that serves one call after the other
// (torch's do) lets the abort through. An exception becomes the error of the store; the rank then ends the job with it.
struct StoreCallbacks {
  static constexpr std::chrono::milliseconds kWaitMax{100};

  std::function<void(const std::string& key, const std::string& value)> set;
  // nullopt: not there within `wait` (0: looks once). One that only looks is asked again every 5 ms, by every rank:
  // where many share a server, it should wait there.
  std::function<std::optional<std::string>(const std::string& key, std::chrono::milliseconds wait)> get;
  // Sets where there is no such key, and returns the value that is there then: compare_set(key, "", value).
  std::function<std::string(const std::string& key, const std::string& value)> set_if_absent;
  // May be empty: then keys pile up, a few for each save.
  std::function<void(const std::string& key)> erase;
};

std::shared_ptr<Store> make_callback_store(StoreCallbacks callbacks);

}  // namespace infercluster::exchange
