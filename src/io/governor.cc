// SPDX-License-Identifier: Apache-2.0
#include "io/governor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace infercluster::io {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr double kBurstSeconds = 0.05;
// Fill and drain give way like a congestion window: by half while the foreground is late, back by a tenth at a time
// once it is not.
constexpr auto kAdjustEvery = milliseconds(50);
constexpr double kLate = 1.5;    // slowdown from which they give way
constexpr double kOnTime = 1.2;  // slowdown below which they come back
constexpr double kYield = 0.5;
constexpr double kRecover = 0.1;
constexpr double kShareLeast = 1.0 / 32;        // of the limit: they never starve
constexpr double kRateLeast = 1024.0 * 1024.0;  // bytes per second, for the same reason
constexpr double kLatencyWeight = 0.2;          // of one sample
constexpr auto kForgetLatency = seconds(1);     // without foreground reads nobody is late
constexpr double kBaselineRiseSeconds = 60;     // a device that stays slower is the new normal after about this long
constexpr std::size_t kDevicesMax = 1024;
constexpr auto kRateWindow = milliseconds(200);

double seconds_of(Clock::Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Bytes per second of one class on one device. A request larger than the burst is let through when the bucket is full,
// and leaves a debt.
struct Bucket {
  double tokens = 0;
  std::optional<Clock::TimePoint> filled;

  Clock::Duration admit(Clock::TimePoint now, double rate, double bytes) {
    const double burst = rate * kBurstSeconds;
    tokens = filled ? std::min(burst, tokens + rate * seconds_of(now - *filled)) : burst;
    filled = now;
    const double needed = std::min(bytes, burst);
    if (tokens >= needed) {
      tokens -= bytes;
      return Clock::Duration::zero();
    }
    const double wait_ns = std::ceil((needed - tokens) / rate * 1e9);
    return std::max(Clock::Duration(1), Clock::Duration(static_cast<Clock::Duration::rep>(std::min(wait_ns, 1e18))));
  }
};

// How fast a class without a limit goes when nothing holds it back: what a share of its speed is taken from.
struct SpeedMeter {
  Clock::TimePoint begun;
  double bytes = 0;
  double best = 0;  // bytes per second

  void count(Clock::TimePoint now, double more) {
    const Clock::Duration age = now - begun;
    if (age >= kRateWindow) {
      if (age < 4 * kRateWindow) best = std::max(bytes / seconds_of(age), best * 0.9);
      begun = now;
      bytes = 0;
    }
    bytes += more;
  }
};

// Latency of foreground requests of about one size, and what it is on a quiet device.
struct LatencyTrack {
  double current = 0;   // seconds, smoothed
  double baseline = 0;  // seconds
  std::optional<Clock::TimePoint> updated;

  void add(Clock::TimePoint now, double sample) {
    if (!updated) {
      current = baseline = sample;
    } else {
      current += kLatencyWeight * (sample - current);
      const double rise = std::min(1.0, seconds_of(now - *updated) / kBaselineRiseSeconds);
      baseline += (current < baseline ? kLatencyWeight : rise) * (current - baseline);
    }
    updated = now;
  }
  [[nodiscard]] double slowdown(Clock::TimePoint now) const {
    if (!updated || now - *updated > kForgetLatency || baseline <= 0) return 1.0;
    return current / baseline;
  }
};

struct Device {
  std::array<Bucket, 3> buckets;
  std::array<SpeedMeter, 3> meters;
  std::array<LatencyTrack, 48> latencies;  // by the power of two of the size
  double share = 1.0;                      // of their speed that fill and drain get
  std::optional<Clock::TimePoint> adjusted;
};

}  // namespace

struct Governor::Impl {
  Impl(const Clock& clock_in, const Limits& limits_in) : clock(clock_in), limits(limits_in) {}

  [[nodiscard]] double limit_of(Priority priority) const {
    switch (priority) {
      case Priority::foreground:
        return static_cast<double>(limits.foreground);
      case Priority::fill:
        return static_cast<double>(limits.fill);
      case Priority::drain:
        return static_cast<double>(limits.drain);
    }
    return 0;
  }

  Device& device(std::uint64_t id) {
    if (devices.size() >= kDevicesMax && !devices.contains(id)) devices.clear();  // they are learnt anew
    return devices[id];
  }

  // Looks again, after however long: what comes back does so by the time that has passed, not by how often anyone
  // asked.
  void adjust(Device& device, Clock::TimePoint now) {
    if (device.adjusted && now - *device.adjusted < kAdjustEvery) return;
    const double periods = device.adjusted ? seconds_of(now - *device.adjusted) / seconds_of(kAdjustEvery) : 1.0;
    device.adjusted = now;
    double slowdown = 1.0;
    for (const LatencyTrack& track : device.latencies) slowdown = std::max(slowdown, track.slowdown(now));
    for (const auto& signal : signals) {
      if (const auto reading = signal->read(now))
        slowdown = std::max(slowdown, kLate * seconds_of(reading->latency) / seconds_of(reading->target));
    }
    if (slowdown > kLate) device.share = std::max(kShareLeast, device.share * kYield);
    if (slowdown < kOnTime) device.share = std::min(1.0, device.share + kRecover * periods);
  }

  const Clock& clock;
  const Limits limits;
  std::mutex mutex;
  std::unordered_map<std::uint64_t, Device> devices;    // guarded by mutex
  std::vector<std::shared_ptr<LatencySignal>> signals;  // guarded by mutex
};

Governor::Governor(const Clock& clock, const Limits& limits) : impl_(std::make_unique<Impl>(clock, limits)) {}
Governor::~Governor() = default;

Clock::Duration Governor::admit(std::uint64_t device_id, Priority priority, std::uint64_t bytes) {
  const std::lock_guard lock(impl_->mutex);
  const Clock::TimePoint now = impl_->clock.now();
  Device& device = impl_->device(device_id);
  impl_->adjust(device, now);
  const auto index = static_cast<std::size_t>(priority);
  const double wanted = static_cast<double>(bytes);
  double rate = impl_->limit_of(priority);
  const bool yields = priority != Priority::foreground && device.share < 1.0;
  if (yields) rate = std::max(kRateLeast, (rate > 0 ? rate : device.meters[index].best) * device.share);
  if (rate <= 0) {
    device.meters[index].count(now, wanted);
    return Clock::Duration::zero();
  }
  // Who gives way looks again soon: its share, and with it the wait, may have changed by then.
  const Clock::Duration wait = device.buckets[index].admit(now, rate, wanted);
  return yields ? std::min<Clock::Duration>(wait, kAdjustEvery) : wait;
}

void Governor::foreground_latency(std::uint64_t device_id, Clock::Duration latency, std::uint64_t bytes) {
  const std::lock_guard lock(impl_->mutex);
  Device& device = impl_->device(device_id);
  const auto size_class =
      std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(bytes)), device.latencies.size() - 1);
  const Clock::TimePoint now = impl_->clock.now();
  device.latencies[size_class].add(now, seconds_of(latency));
  impl_->adjust(device, now);
}

void Governor::add_signal(std::shared_ptr<LatencySignal> signal) {
  const std::lock_guard lock(impl_->mutex);
  impl_->signals.push_back(std::move(signal));
}

}  // namespace infercluster::io
