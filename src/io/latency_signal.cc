// SPDX-License-Identifier: Apache-2.0
#include "io/latency_signal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/log.h"
#include "os/file.h"

namespace infercluster::io {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr std::size_t kSamplesMax = 2048;
constexpr auto kStaleAfter = seconds(1);
constexpr auto kLongest = seconds(3600);                 // of a latency that is believed
constexpr std::size_t kEntriesMax = 256;                 // of a folder
constexpr std::uint64_t kMagic = 0x4943'4C41'5431'0A00;  // "ICLAT1"
constexpr std::uint64_t kReadsLeast = 64;                // a second

// A publisher's file. Written and read at once; where a reader sees half of each, the two sequences differ.
struct Entry {
  std::uint64_t magic = kMagic;
  std::uint64_t sequence = 0;
  std::int64_t at_ns = 0;  // CLOCK_MONOTONIC, the same for all processes of a boot
  std::int64_t latency_ns = 0;
  std::int64_t target_ns = 0;
  std::uint64_t sequence_again = 0;
};

class OwnSignal final : public LatencySignal {
 public:
  OwnSignal(std::shared_ptr<const LatencyWindow> window, Clock::Duration target)
      : window_(std::move(window)), target_(target) {}
  std::optional<LatencyReading> read(Clock::TimePoint now) override {
    const auto latency = window_->p99(now);
    if (!latency) return std::nullopt;
    return LatencyReading{*latency, target_};
  }

 private:
  const std::shared_ptr<const LatencyWindow> window_;
  const Clock::Duration target_;
};

std::optional<LatencyReading> read_entry(const std::string& path, Clock::TimePoint now) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  Entry entry;
  if (!file.valid() || ::pread(file.get(), &entry, sizeof entry, 0) != sizeof entry) return std::nullopt;
  if (entry.magic != kMagic || entry.sequence != entry.sequence_again) return std::nullopt;
  const Clock::Duration age = now - Clock::TimePoint(nanoseconds(entry.at_ns));
  if (entry.at_ns <= 0 || age > kStaleAfter || age < -kStaleAfter) return std::nullopt;
  const LatencyReading reading{nanoseconds(entry.latency_ns), nanoseconds(entry.target_ns)};
  const auto sane = [](Clock::Duration duration) { return duration > Clock::Duration::zero() && duration < kLongest; };
  return sane(reading.latency) && sane(reading.target) ? std::optional(reading) : std::nullopt;
}

double ratio_of(const LatencyReading& reading) {
  return static_cast<double>(reading.latency.count()) / static_cast<double>(reading.target.count());
}

class NodeSignal final : public LatencySignal {
 public:
  explicit NodeSignal(std::string folder) : folder_(std::move(folder)) {}
  std::optional<LatencyReading> read(Clock::TimePoint now) override {
    std::optional<LatencyReading> worst;
    std::error_code error;
    std::size_t count = 0;
    for (std::filesystem::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
      if (++count > kEntriesMax) break;
      const auto reading = read_entry(it->path().string(), now);
      if (reading && (!worst || ratio_of(*reading) > ratio_of(*worst))) worst = reading;
    }
    return worst;
  }

 private:
  const std::string folder_;
};

class DiskSignal final : public LatencySignal {
 public:
  DiskSignal(std::uint64_t device, Clock::Duration target, const std::string& root)
      : path_(root + "/sys/dev/block/" + std::to_string(major(device)) + ":" + std::to_string(minor(device)) + "/stat"),
        target_(target) {}
  std::optional<LatencyReading> read(Clock::TimePoint now) override {
    const auto text = os::read_small_file(path_, 4096);
    if (!text.ok()) return std::nullopt;
    // Documentation/block/stat.rst: reads, of them merged, sectors, milliseconds in them.
    std::array<std::uint64_t, 4> found{};
    std::istringstream in(*text);
    for (std::uint64_t& number : found) in >> number;
    if (!in) return std::nullopt;
    const Seen last = std::exchange(seen_, {now, found[0], found[3]});
    if (last.at == Clock::TimePoint{} || found[0] <= last.reads || found[3] < last.milliseconds) return std::nullopt;
    const double spent = seconds_between(last.at, now);
    const auto reads = static_cast<double>(found[0] - last.reads);
    if (spent <= 0 || reads / spent <= kReadsLeast) return std::nullopt;
    const double mean_ns = static_cast<double>(found[3] - last.milliseconds) * 1e6 / reads;
    return LatencyReading{nanoseconds(std::max<std::int64_t>(1, static_cast<std::int64_t>(mean_ns))), target_};
  }

 private:
  struct Seen {
    Clock::TimePoint at;
    std::uint64_t reads = 0;
    std::uint64_t milliseconds = 0;
  };
  const std::string path_;
  const Clock::Duration target_;
  Seen seen_;
};

class PressureSignal final : public LatencySignal {
 public:
  PressureSignal(Clock::Duration target, const std::string& root)
      : path_(root + "/proc/pressure/io"), target_(target) {}
  std::optional<LatencyReading> read(Clock::TimePoint now) override {
    const auto text = os::read_small_file(path_, 4096);
    if (!text.ok()) return std::nullopt;
    // Documentation/accounting/psi.rst: "some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS".
    const std::size_t at = text->find("total=");
    if (!text->starts_with("some ") || at == std::string::npos) return std::nullopt;
    const std::uint64_t total = std::strtoull(text->c_str() + at + 6, nullptr, 10);
    const auto last = std::exchange(seen_, std::pair(now, total));
    if (last.first == Clock::TimePoint{} || total < last.second) return std::nullopt;
    const double spent = seconds_between(last.first, now);
    const double stalled = static_cast<double>(total - last.second) / 1e6;
    if (spent <= 0 || stalled <= 0) return std::nullopt;
    const double share_ns = std::min(1.0, stalled / spent) * 1e9;
    return LatencyReading{nanoseconds(std::max<std::int64_t>(1, static_cast<std::int64_t>(share_ns))), target_};
  }

 private:
  const std::string path_;
  const Clock::Duration target_;
  std::pair<Clock::TimePoint, std::uint64_t> seen_;
};

}  // namespace

void LatencyWindow::add(Clock::TimePoint now, Clock::Duration latency) {
  const std::lock_guard lock(mutex_);
  if (samples_.size() < kSamplesMax) {
    samples_.push_back({now, latency});
    return;
  }
  samples_[next_] = {now, latency};
  next_ = (next_ + 1) % kSamplesMax;
}

std::optional<Clock::Duration> LatencyWindow::p99(Clock::TimePoint now) const {
  std::vector<Clock::Duration> recent;
  {
    const std::lock_guard lock(mutex_);
    for (const Sample& sample : samples_) {
      if (now - sample.at <= span_) recent.push_back(sample.latency);
    }
  }
  if (recent.empty()) return std::nullopt;
  const auto at = recent.begin() + static_cast<std::ptrdiff_t>((recent.size() - 1) * 99 / 100);
  std::nth_element(recent.begin(), at, recent.end());
  return *at;
}

std::string latency_folder() {
  if (const char* named = std::getenv("INFERCLUSTER_LATENCY_DIR")) return named;
  std::error_code error;
  if (std::filesystem::is_directory("/dev/shm", error))
    return "/dev/shm/infercluster-" + std::to_string(::getuid()) + "-latency";
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  return runtime == nullptr ? std::string() : std::string(runtime) + "/infercluster-latency";
}

Result<std::unique_ptr<LatencyPublisher>> LatencyPublisher::open(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return Error::from_errno(errno, "cannot make the folder").with_path(folder);
  struct stat entry {};
  if (::lstat(folder.c_str(), &entry) != 0 || !S_ISDIR(entry.st_mode) || entry.st_uid != ::getuid()) {
    return Error(ErrorCode::permission, "it is no folder of this user's")
        .with_path(folder)
        .with_hint("Remove it, or name another place in INFERCLUSTER_LATENCY_DIR");
  }
  static std::atomic<unsigned> number{0};
  std::string path = folder + "/" + std::to_string(::getpid()) + "." + std::to_string(number++);
  Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return Error::from_errno(errno, "cannot create").with_path(path);
  return std::unique_ptr<LatencyPublisher>(new LatencyPublisher(std::move(path), std::move(file)));  // NOLINT: private
}

LatencyPublisher::~LatencyPublisher() {
  ::unlink(path_.c_str());
}

Status LatencyPublisher::publish(Clock::TimePoint now, const LatencyReading& reading) {
  ++sequence_;
  const Entry entry{.sequence = sequence_,
                    .at_ns = now.time_since_epoch().count(),
                    .latency_ns = reading.latency.count(),
                    .target_ns = reading.target.count(),
                    .sequence_again = sequence_};
  if (::pwrite(file_.get(), &entry, sizeof entry, 0) == sizeof entry) return {};
  return Error::from_errno(errno, "cannot write").with_path(path_);
}

std::unique_ptr<LatencySignal> make_own_signal(std::shared_ptr<const LatencyWindow> window, Clock::Duration target) {
  return std::make_unique<OwnSignal>(std::move(window), target);
}

std::unique_ptr<LatencySignal> make_node_signal(const std::string& folder) {
  return std::make_unique<NodeSignal>(folder);
}

std::unique_ptr<LatencySignal> make_disk_signal(std::uint64_t device, Clock::Duration target, const std::string& root) {
  return std::make_unique<DiskSignal>(device, target, root);
}

std::unique_ptr<LatencySignal> make_pressure_signal(Clock::Duration target, const std::string& root) {
  return std::make_unique<PressureSignal>(target, root);
}

}  // namespace infercluster::io
