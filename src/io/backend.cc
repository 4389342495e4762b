// SPDX-License-Identifier: Apache-2.0
#include "io/backend.h"

#include <atomic>
#include <cstdlib>
#include <optional>

#include "base/log.h"
#include "io/thread_backend.h"
#include "io/uring_backend.h"
#include "io/uring_refusal.h"
#include "os/file.h"

namespace infercluster::io {
namespace {

std::optional<int> uring_disabled_setting() {
  const Result<std::string> text = os::read_small_file("/proc/sys/kernel/io_uring_disabled", 64);
  if (!text.ok()) return std::nullopt;
  return std::atoi(text->c_str());
}

Error refusal_of(const Error& error) {
  if (error.system_errno() == 0) return error;  // the build has none
  return uring_refusal(error.system_errno(), uring_disabled_setting());
}

void warn_once(const Error& cause) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  log_warning("reading with threads instead of io_uring: " + cause.to_string());
}

}  // namespace

Status probe_uring() {
  const Status status = try_uring();
  if (status.ok()) return {};
  return refusal_of(status.error());
}

Result<ChosenBackend> open_backend(const BackendOptions& options) {
  ChosenBackend chosen;
  if (options.choice != BackendChoice::threads) {
    Result<std::unique_ptr<Backend>> ring = open_uring_backend(options);
    if (ring.ok()) {
      chosen.backend = std::move(ring).value();
      return chosen;
    }
    Error cause = refusal_of(ring.error());
    if (options.choice == BackendChoice::uring) return cause;
    warn_once(cause);
    chosen.reason = cause.message();
  }
  IC_TRY(chosen.backend, open_thread_backend(options));
  return chosen;
}

}  // namespace infercluster::io
