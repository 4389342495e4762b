// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>

namespace infercluster {
namespace {

LogLevel level_from_environment() {
  const char* text = std::getenv("INFERCLUSTER_LOG");
  const std::string_view name = text == nullptr ? "" : text;
  if (name == "debug") return LogLevel::debug;
  if (name == "info") return LogLevel::info;
  if (name == "error") return LogLevel::error;
  if (name == "off") return LogLevel::off;
  return LogLevel::warning;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
    case LogLevel::off:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

struct State {
  std::mutex mutex;
  LogSink sink;                            // guarded by mutex
  std::shared_ptr<spdlog::logger> logger;  // guarded by mutex
  std::atomic<LogLevel> level{level_from_environment()};
};

State& state() {
  static State* const instance = [] {
    auto created = std::make_unique<State>();
    created->logger =
        std::make_shared<spdlog::logger>("infercluster", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    created->logger->set_pattern("infercluster: %l: %v");
    created->logger->set_level(spdlog::level::trace);
    return created.release();  // never destroyed: threads may log until the process ends
  }();
  return *instance;
}

}  // namespace

void set_log_sink(LogSink sink) {
  State& shared = state();
  const std::lock_guard lock(shared.mutex);
  shared.sink = std::move(sink);
}

void set_log_level(LogLevel level) {
  state().level = level;
}

void log(LogLevel level, std::string_view text) {
  State& shared = state();
  if (level < shared.level.load(std::memory_order_relaxed) || level == LogLevel::off) return;
  const std::lock_guard lock(shared.mutex);
  if (shared.sink) {
    shared.sink(level, text);
    return;
  }
  shared.logger->log(to_spdlog(level), spdlog::string_view_t(text.data(), text.size()));
  shared.logger->flush();
}

}  // namespace infercluster
