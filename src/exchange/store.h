// SPDX-License-Identifier: Apache-2.0
// What an exchange needs below it: values under keys that all ranks see. A shared directory is one (directory_store.h);
// torch's TCPStore and FileStore, handed in by the caller, are others.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "exchange/exchange.h"

namespace infercluster::exchange {

// Thread-safe: a rank may abort while another of its threads waits in get(). A key has parts of letters, digits, '.',
// '_' and '-', joined by '/'; values are up to kGatheredBytesMax and a little. An error means that waiting does not
// help; what may heal by itself is tried again until the deadline.
class Store {
 public:
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Readers see the old value or the new one, never parts.
  virtual Status set(const std::string& key, std::string_view value, Deadline deadline) = 0;

  // nullopt: not there by `until` (in the past: looks once). May say so sooner; the caller asks again until then.
  virtual Result<std::optional<std::string>> get(const std::string& key, Deadline until) = 0;

  // Sets where nothing is there. Returns the value that is there from now on: this, or the one that came first.
  // (torch's compare_set with an empty expected value.)
  virtual Result<std::string> set_if_absent(const std::string& key, std::string_view value, Deadline deadline) = 0;

  // Tidying up, as well as it goes; nothing depends on it. A folder is what the keys before a '/' name.
  virtual void erase(const std::string& /*key*/) {}
  // True for the one caller that removed the folder, empty as it was.
  virtual bool erase_folder_if_empty(const std::string& /*folder*/) { return false; }
  virtual void erase_folder(const std::string& /*folder*/) {}
  // What earlier jobs left.
  virtual void erase_all() {}

 protected:
  Store() = default;
};

struct Member {
  int rank = 0;   // 0 <= rank < world
  int world = 1;  // at most kRanksMax
  // Where these are some of a job's ranks: the number of each there, by rank; and how many the job has, which ask the
  // same store. Empty: these are all.
  std::vector<int> in_job = {};
  int job_world = 0;

  [[nodiscard]] int ranks_at_store() const { return in_job.empty() ? world : job_world; }
};

// Meets the other ranks, in any order, and agrees with them on an id of this job, so that what a killed run left in the
// store is never taken for an answer. Only one job at a time may use the store (or the directory): a second one that
// starts takes it over, and the first ends with an error (changed, or timed_out).
// Errors, where rank 0 could tell the others the same on all ranks: timed_out, naming the ranks that did not come;
// invalid_argument (different worlds, ranks out of range or no part of the job); those of the store.
Result<std::unique_ptr<Exchange>> open_over_store(std::shared_ptr<Store> store, Member member, Deadline deadline);

}  // namespace infercluster::exchange
