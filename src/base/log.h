// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace infercluster {

enum class LogLevel : std::uint8_t { debug, info, warning, error, off };

// Where log lines go. Called from any thread, one call at a time. The default writes "infercluster: LEVEL: text" lines
// to stderr at `warning` and above; INFERCLUSTER_LOG=debug|info|warning|error|off changes the level.
using LogSink = std::function<void(LogLevel, std::string_view)>;

// Replaces the sink; an empty one restores the default. Thread-safe.
void set_log_sink(LogSink sink);
void set_log_level(LogLevel level);

void log(LogLevel level, std::string_view text);
inline void log_debug(std::string_view text) {
  log(LogLevel::debug, text);
}
inline void log_info(std::string_view text) {
  log(LogLevel::info, text);
}
inline void log_warning(std::string_view text) {
  log(LogLevel::warning, text);
}
inline void log_error(std::string_view text) {
  log(LogLevel::error, text);
}

}  // namespace infercluster
