// SPDX-License-Identifier: Apache-2.0
// Counters and histograms, and their Prometheus text. Names by Prometheus' rules: snake_case, unit last, "_total" for
// counters.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace infercluster::metrics {

using Labels = std::map<std::string, std::string>;

// A handle: copy it freely; it is good for as long as its Registry lives. Thread-safe, lock-free, allocates nothing.
class Counter {
 public:
  void add(double amount = 1) const;  // >= 0; whole numbers are exact below 2^53
  [[nodiscard]] double value() const;

 private:
  friend class Registry;
  struct Cell;
  explicit Counter(Cell* cell) : cell_(cell) {}
  Cell* cell_;
};

// A handle like Counter. Thread-safe; takes a mutex: per request, not per byte.
class Histogram {
 public:
  void observe(double value) const;

 private:
  friend class Registry;
  struct Cell;
  explicit Histogram(Cell* cell) : cell_(cell) {}
  Cell* cell_;
};

// Thread-safe. Asking again for the same name and labels gives the same metric. A name that breaks the rules, or that
// is already taken by another type, is a programmer error and aborts.
class Registry {
 public:
  Registry();
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  Counter counter(const std::string& name, const std::string& help, const Labels& labels = {});
  // `upper_bounds` rise strictly; a last bucket for all that is larger is added.
  Histogram histogram(const std::string& name, const std::string& help, const std::vector<double>& upper_bounds,
                      const Labels& labels = {});

  // The text exposition format, version 0.0.4.
  [[nodiscard]] std::string to_prometheus_text() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace infercluster::metrics
