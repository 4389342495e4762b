// SPDX-License-Identifier: Apache-2.0
#include "metrics/registry.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <type_traits>

#include "base/assert.h"

namespace infercluster::metrics {

struct Counter::Cell {
  prometheus::Counter* metric;
};
struct Histogram::Cell {
  prometheus::Histogram* metric;
};

struct Registry::State {
  prometheus::Registry registry;  // owns the metrics; thread-safe by itself
  std::mutex mutex;
  std::deque<Counter::Cell> counters;      // guarded by mutex; a deque keeps the addresses of its elements
  std::deque<Histogram::Cell> histograms;  // guarded by mutex
};

namespace {

// The cell of `metric`, made when it is new.
template <typename Cell, typename Metric>
Cell* cell_of(std::deque<Cell>& cells, Metric& metric) {
  const auto known = std::find_if(cells.begin(), cells.end(), [&](const Cell& cell) { return cell.metric == &metric; });
  if (known != cells.end()) return &*known;
  return &cells.emplace_back(Cell{&metric});
}

// prometheus-cpp throws for names, labels and types that cannot be; ours are constants, so that is a fault of ours.
template <typename Make>
auto& made_by(const Make& make) {
  std::remove_reference_t<decltype(make())>* metric = nullptr;
  try {
    metric = &make();
  } catch (const std::exception& error) {
    assert_failed(error.what(), __FILE__, __LINE__);
  }
  return *metric;
}

}  // namespace

void Counter::add(double amount) const {
  cell_->metric->Increment(amount);
}
double Counter::value() const {
  return cell_->metric->Value();
}
void Histogram::observe(double value) const {
  cell_->metric->Observe(value);
}

Registry::Registry() : state_(std::make_unique<State>()) {}
Registry::~Registry() = default;

Counter Registry::counter(const std::string& name, const std::string& help, const Labels& labels) {
  auto& metric = made_by([&]() -> prometheus::Counter& {
    return prometheus::BuildCounter().Name(name).Help(help).Register(state_->registry).Add(labels);
  });
  const std::lock_guard lock(state_->mutex);
  return Counter(cell_of(state_->counters, metric));
}

Histogram Registry::histogram(const std::string& name, const std::string& help, const std::vector<double>& upper_bounds,
                              const Labels& labels) {
  IC_ASSERT(std::adjacent_find(upper_bounds.begin(), upper_bounds.end(), std::greater_equal<>()) == upper_bounds.end());
  auto& metric = made_by([&]() -> prometheus::Histogram& {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(state_->registry).Add(labels, upper_bounds);
  });
  const std::lock_guard lock(state_->mutex);
  return Histogram(cell_of(state_->histograms, metric));
}

std::string Registry::to_prometheus_text() const {
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

}  // namespace infercluster::metrics
