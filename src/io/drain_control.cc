// SPDX-License-Identifier: Apache-2.0
#include "io/drain_control.h"

#include <algorithm>

namespace infercluster::io {
namespace {

using std::chrono::milliseconds;

constexpr auto kLookEvery = milliseconds(100);
constexpr auto kQuietAfter = milliseconds(500);
constexpr auto kSpeedOver = milliseconds(200);
constexpr auto kYieldEvery = milliseconds(500);  // readings are of the last half second: what was done shows then
constexpr double kBandBelow = 0.9;               // of the target, up to which the rate rises
constexpr double kYieldMost = 0.5;
constexpr double kYieldLeast = 0.95;
constexpr double kRise = 0.04;  // of the speed, at each look, when the latency is far below
constexpr double kRiseLeast = 0.01;
constexpr double kSpeedFades = 0.98;  // at each measurement: a device may have become slower
constexpr double kSpeedGuessed = 1e9;
constexpr double kHeadroom = 2;  // the rate stays below so much of what is written at it

}  // namespace

void DrainControl::observe(Clock::TimePoint now, std::optional<double> ratio) {
  if (looked_ && now - *looked_ < kLookEvery) return;
  looked_ = now;
  if (!ratio) {
    if (governed_ && now - waited_ >= kQuietAfter) governed_ = false;
    return;
  }
  waited_ = now;
  if (!governed_) {
    governed_ = true;
    if (rate_ <= 0) rate_ = (speed_ > 0 ? speed_ : kSpeedGuessed) / 2;
  }
  adjust(now, *ratio);
}

void DrainControl::adjust(Clock::TimePoint now, double ratio) {
  const double speed = speed_ > 0 ? speed_ : kSpeedGuessed;
  if (ratio > 1) {
    if (yielded_ && now - *yielded_ < kYieldEvery) return;
    yielded_ = now;
    rate_ *= std::clamp(1 / ratio, kYieldMost, kYieldLeast);
  } else if (ratio < kBandBelow && (governed_speed_ <= 0 || rate_ < kHeadroom * governed_speed_)) {
    rate_ += speed * std::max(kRiseLeast, kRise * (kBandBelow - ratio) / kBandBelow);
  }
  rate_ = std::max(rate_, limits_.rate_least);
  lowest_ = lowest_ > 0 ? std::min(lowest_, rate_) : rate_;
}

void DrainControl::written(Clock::TimePoint now, std::uint64_t bytes) {
  if (counting_ && now - *counting_ >= kSpeedOver) {
    const double seconds = std::chrono::duration<double>(now - *counting_).count();
    if (governed_) {
      governed_speed_ = counted_ / seconds;
      speed_ = std::max(speed_, governed_speed_);
    } else if (now - *counting_ < 5 * kSpeedOver) {
      speed_ = std::max(counted_ / seconds, speed_ * kSpeedFades);
    }
    counting_.reset();
  }
  if (!counting_) {
    counting_ = now;
    counted_ = 0;
  }
  counted_ += static_cast<double>(bytes);
}

}  // namespace infercluster::io
