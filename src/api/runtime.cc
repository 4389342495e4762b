// SPDX-License-Identifier: Apache-2.0
#include "api/runtime.h"

#include "base/thread.h"
#include "infercluster/infercluster.h"

namespace infercluster {
namespace api {

Runtime::Runtime()
    : metrics_(registry_),
      governor_(steady_clock(), {}),
      filler_(&governor_, [this](std::uint64_t bytes) { metrics_.page_cache_filled(bytes); }) {
  environment_.governor = &governor_;
  environment_.filler = &filler_;
  environment_.gds = &gds_;
  environment_.ended = [this](const load::Report& report, const Error* error) { metrics_.ended(report, error); };
}

Result<Runtime*> Runtime::get() {
  remember_process();
  if (in_forked_child()) {
    return Error(ErrorCode::unsupported,
                 "this process was forked after infercluster was first used, and its threads and rings stayed with the "
                 "parent")
        .with_hint("Load in the parent, or start workers by spawn or exec instead of fork");
  }
  static Runtime* const runtime = new Runtime();  // NOLINT(cppcoreguidelines-owning-memory): never destroyed, see above
  return runtime;
}

}  // namespace api

std::string metrics_text() {
  const auto runtime = api::Runtime::get();
  return runtime.ok() ? (*runtime)->registry().to_prometheus_text() : std::string();
}

std::string_view version() {
  return INFERCLUSTER_VERSION;
}

}  // namespace infercluster
