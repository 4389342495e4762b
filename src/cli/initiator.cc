// SPDX-License-Identifier: Apache-2.0
// infercluster initiator discover|read|bench
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "base/units.h"
#include "cli/common.h"
#include "cli/output.h"
#include "cli/secret_files.h"
#include "initiator/admin.h"
#include "initiator/host.h"

namespace infercluster::cli {
namespace {

constexpr std::uint64_t kPieceBytes = 8 * kMiB;

struct Settings {
  std::string url;
  std::string host_nqn;
  std::string secret_file;
  std::string controller_secret_file;
  bool header_digest = false;
  bool data_digest = false;
  unsigned queues = 1;
  unsigned timeout_ms = 5000;
  unsigned deadline_ms = 30'000;
  std::uint64_t first_block = 0;
  std::optional<std::uint64_t> bytes;
  std::string output;
  std::optional<std::uint64_t> request_bytes;
  unsigned depth = 1;
  unsigned reads = 10'000;
  Common common;

  [[nodiscard]] Result<initiator::HostOptions> host() const {
    initiator::HostOptions options;
    IC_TRY(options.credentials, read_credentials(secret_file, controller_secret_file));
    options.host_nqn = host_nqn;
    options.digests = {.header = header_digest, .data = data_digest};
    options.queues = queues;
    options.queue_entries = static_cast<std::uint16_t>(std::clamp(depth + 1U, 32U, 128U));
    options.connect_timeout = std::chrono::milliseconds(timeout_ms);
    options.silence_max = std::chrono::milliseconds(timeout_ms);
    options.read_deadline = std::chrono::milliseconds(deadline_ms);
    return options;
  }
};

int discover(const Settings& settings) {
  const Result<initiator::Url> url = initiator::parse_url(settings.url);
  if (!url.ok()) return fail(settings.common, url.error());
  const Result<initiator::HostOptions> options = settings.host();
  if (!options.ok()) return fail(settings.common, options.error());
  const Result<nvme::DiscoveryLog> log = initiator::discover(url->address, *options);
  if (!log.ok()) return fail(settings.common, log.error());
  nlohmann::ordered_json json;
  json["subsystems"] = nlohmann::ordered_json::array();
  for (const nvme::DiscoveryEntry& entry : log->entries) {
    const bool subsystem = entry.type == nvme::SubsystemType::nvm;
    const std::string address = entry.family == nvme::AddressFamily::ipv6 ? "[" + entry.address + "]" : entry.address;
    if (settings.common.json) {
      json["subsystems"].push_back(
          {{"nqn", entry.subsystem_nqn}, {"address", address + ":" + entry.service}, {"discovery", !subsystem}});
    } else if (subsystem) {
      fmt::print("nvme-tcp://{}:{}/{}?nsid=1\n", address, entry.service, entry.subsystem_nqn);
    }
  }
  if (settings.common.json) print_json(json);
  return kDone;
}

Result<std::unique_ptr<initiator::Host>> connect(const Settings& settings) {
  IC_TRY(const initiator::Url url, initiator::parse_url(settings.url));
  IC_TRY(const initiator::HostOptions options, settings.host());
  return initiator::Host::connect(url, options);
}

// What became of reads and connections, for --json.
nlohmann::ordered_json to_json(const initiator::HostCounters& counters) {
  const auto whole = [](const metrics::Counter& counter) { return static_cast<std::uint64_t>(counter.value()); };
  return {{"retries", whole(counters.retries)},
          {"digest_errors", whole(counters.digest_errors)},
          {"deadline_misses", whole(counters.deadline_misses)},
          {"connections_lost", whole(counters.connections_lost)},
          {"reconnects", whole(counters.reconnects)}};
}

Status write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Error::from_errno(errno, "cannot write").with_path(path);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

int read(const Settings& settings) {
  const bool to_stdout = settings.output == "-";
  if (to_stdout && settings.common.json) {
    return fail(settings.common,
                Error(ErrorCode::invalid_argument, "standard output cannot take both the data and the --json document")
                    .with_hint("Give a file with --output"));
  }
  Result<std::unique_ptr<initiator::Host>> host = connect(settings);
  if (!host.ok()) return fail(settings.common, host.error());
  Fd file(to_stdout ? STDOUT_FILENO : ::open(settings.output.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.valid()) {
    const int why = errno;
    return fail(settings.common, Error::from_errno(why, "cannot make the file")
                                     .with_path(settings.output)
                                     .with_hint(why == EEXIST ? "Nothing is overwritten: choose another name" : ""));
  }
  const Clock::TimePoint started = steady_clock().now();
  const std::uint64_t begin = settings.first_block * (*host)->block_bytes();
  std::vector<std::byte> piece(std::min(kPieceBytes, settings.bytes.value()));
  Status status;
  for (std::uint64_t at = 0; at < *settings.bytes && status.ok(); at += piece.size()) {
    const auto part = std::span(piece).first(std::min<std::uint64_t>(piece.size(), *settings.bytes - at));
    status = (*host)->read(begin + at, part);
    if (status.ok()) status = write_all(file.get(), part, settings.output);
  }
  if (to_stdout) {
    (void)file.release();
  } else {
    const int closed = file.close_checked();
    if (status.ok() && closed != 0) status = Error::from_errno(closed, "cannot write").with_path(settings.output);
    // Half a file is worse than none.
    if (!status.ok()) ::unlink(settings.output.c_str());
  }
  if (!status.ok()) return fail(settings.common, status.error());
  if (settings.common.json) {
    print_json({{"bytes", *settings.bytes},
                {"seconds", seconds_between(started, steady_clock().now())},
                {"host", to_json((*host)->counters())}});
  }
  return kDone;
}

// Reads of one size at random blocks of the range, `depth` at a time; each as soon as one is done.
class Bench {
 public:
  Bench(initiator::Host& host, const Settings& settings) : host_(host), settings_(settings), memory_(settings.depth) {
    const std::uint64_t bytes = *settings.request_bytes;
    for (std::vector<std::byte>& memory : memory_) memory.resize(bytes);
    latencies_.reserve(settings.reads);
    places_ = *settings.bytes / bytes;
  }

  Status run() {
    for (unsigned i = 0; i < settings_.depth; ++i) start(i);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return under_way_ == 0; });
    return first_;
  }
  // Seconds, ascending.
  std::vector<double>& latencies() { return latencies_; }

 private:
  void start(unsigned slot) {
    const std::uint64_t block_bytes = host_.block_bytes();
    std::uint64_t place = 0;
    {
      const std::lock_guard lock(mutex_);
      if (started_ == settings_.reads || !first_.ok()) return;
      ++started_;
      ++under_way_;
      place = random_() % places_;
    }
    const Clock::TimePoint begin = steady_clock().now();
    const auto blocks = static_cast<std::uint32_t>(memory_[slot].size() / block_bytes);
    const Status status = host_.start({.first_block = settings_.first_block + place * blocks,
                                       .blocks = blocks,
                                       .memory = memory_[slot],
                                       .done = [this, slot, begin](const Status& done) { finish(slot, begin, done); }});
    if (!status.ok()) finish(slot, begin, status);
  }
  void finish(unsigned slot, Clock::TimePoint begin, const Status& status) {
    const double seconds = seconds_between(begin, steady_clock().now());
    if (status.ok()) start(slot);
    const std::lock_guard lock(mutex_);
    latencies_.push_back(seconds);
    if (!status.ok() && first_.ok()) first_ = status;
    --under_way_;
    changed_.notify_all();
  }

  initiator::Host& host_;
  const Settings& settings_;
  std::vector<std::vector<std::byte>> memory_;
  std::uint64_t places_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::minstd_rand random_{1};
  unsigned started_ = 0;
  unsigned under_way_ = 0;
  std::vector<double> latencies_;
  Status first_;
};

int bench(const Settings& settings) {
  Result<std::unique_ptr<initiator::Host>> host = connect(settings);
  if (!host.ok()) return fail(settings.common, host.error());
  const std::uint64_t bytes = *settings.request_bytes;
  if (bytes % (*host)->block_bytes() != 0 || bytes == 0 || bytes > (*host)->read_bytes_max() ||
      bytes > *settings.bytes) {
    return fail(settings.common,
                Error(ErrorCode::invalid_argument, "reads of " + format_bytes(bytes) + " cannot be made")
                    .with_hint("Choose a multiple of " + format_bytes((*host)->block_bytes()) + " up to " +
                               format_bytes((*host)->read_bytes_max()) + ", and no more than --bytes"));
  }
  Bench run(**host, settings);
  const Clock::TimePoint begin = steady_clock().now();
  const Status status = run.run();
  if (!status.ok()) return fail(settings.common, status.error());
  const double seconds = seconds_between(begin, steady_clock().now());
  std::vector<double>& latencies = run.latencies();
  std::sort(latencies.begin(), latencies.end());
  const auto quantile = [&](double q) {
    return latencies[static_cast<std::size_t>(q * static_cast<double>(latencies.size() - 1))] * 1e6;
  };
  const double rate = static_cast<double>(bytes) * static_cast<double>(latencies.size()) / seconds;
  if (settings.common.json) {
    print_json({{"reads", latencies.size()},
                {"bytes_each", bytes},
                {"seconds", seconds},
                {"gib_per_s", rate / static_cast<double>(kGiB)},
                {"p50_us", quantile(0.5)},
                {"p99_us", quantile(0.99)},
                {"host", to_json((*host)->counters())}});
  } else {
    fmt::print("{} reads of {}: {}, p50 {:.1f} us, p99 {:.1f} us\n", latencies.size(), format_bytes(bytes),
               format_rate(rate), quantile(0.5), quantile(0.99));
  }
  return kDone;
}

void add_connection(CLI::App& command, Settings& settings) {
  command.add_option("URL", settings.url, "nvme-tcp://HOST:PORT/NQN?nsid=1; for discover without NQN")->required();
  command.add_option("--host-nqn", settings.host_nqn, "This host's NQN; without it a random one")->type_name("NQN");
  CLI::Option* const secret =
      command
          .add_option("--dhchap-secret-file", settings.secret_file,
                      "A file with this host's secret, where the target asks for proof (nvme gen-dhchap-key)")
          ->type_name("FILE");
  command
      .add_option("--dhchap-ctrl-secret-file", settings.controller_secret_file,
                  "A file with the target's secret: it has to prove itself")
      ->type_name("FILE")
      ->needs(secret);
  command.add_flag("--header-digest", settings.header_digest, "CRC32C over every PDU header");
  command.add_flag("--data-digest", settings.data_digest, "CRC32C over all data, checked here");
  command
      .add_option("--timeout-ms", settings.timeout_ms,
                  "Of connecting; and a target that owes answers and is silent for this long is connected to anew")
      ->check(CLI::Range(1U, 3'600'000U))
      ->capture_default_str();
  add_common(command, settings.common);
}

void add_range(CLI::App& command, Settings& settings) {
  command.add_option("--first-block", settings.first_block, "Where the object begins: its first LBA")->required();
  add_size(command, "--bytes", settings.bytes, "How many bytes it has")->required();
  command.add_option("--deadline-ms", settings.deadline_ms, "Of each read, with all reconnecting and retrying")
      ->check(CLI::Range(1U, 3'600'000U))
      ->capture_default_str();
  command.add_option("--queues", settings.queues, "I/O queues, each a connection")
      ->check(CLI::Range(1U, 64U))
      ->capture_default_str();
}

}  // namespace

void add_initiator(CLI::App& app, Action& action) {
  auto settings = std::make_shared<Settings>();
  CLI::App* const group = app.add_subcommand("initiator", "Read from NVMe/TCP targets: this program's, and Linux's");
  group->require_subcommand(1);
  CLI::App* const discovering =
      group->add_subcommand("discover", "List the subsystems that a target's discovery service names");
  add_connection(*discovering, *settings);
  discovering->callback([settings, &action] { action = [settings] { return discover(*settings); }; });

  CLI::App* const reading = group->add_subcommand("read", "Copy blocks to a file, or to standard output");
  add_connection(*reading, *settings);
  add_range(*reading, *settings);
  reading->add_option("--output,-o", settings->output, "A new file; - for standard output")->required();
  reading->callback([settings, &action] { action = [settings] { return read(*settings); }; });

  CLI::App* const benching = group->add_subcommand("bench", "Time random reads within a range");
  add_connection(*benching, *settings);
  add_range(*benching, *settings);
  add_size(*benching, "--size", settings->request_bytes, "Bytes of each read")->required();
  benching->add_option("--depth", settings->depth, "Reads at a time")
      ->check(CLI::Range(1U, 127U))
      ->capture_default_str();
  benching->add_option("--reads", settings->reads, "How many in all")
      ->check(CLI::Range(1U, 100'000'000U))
      ->capture_default_str();
  benching->callback([settings, &action] { action = [settings] { return bench(*settings); }; });

  set_examples(
      *group,
      "  infercluster initiator discover nvme-tcp://10.0.0.5:4420\n"
      "  infercluster initiator read nvme-tcp://10.0.0.5:4420/NQN --first-block 262144 --bytes 5000000 -o copy\n"
      "  infercluster initiator bench nvme-tcp://10.0.0.5:4420/NQN --first-block 262144 --bytes 1GiB --size 4KiB "
      "--depth 16\n");
}

}  // namespace infercluster::cli
