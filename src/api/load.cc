// SPDX-License-Identifier: Apache-2.0
#include "api/runtime.h"
#include "infercluster/infercluster.h"

namespace infercluster {
namespace {

template <typename Started>
Result<Started> counted(Result<Started> started, const api::Runtime& runtime) {
  if (!started.ok()) runtime.metrics().failed(started.error().code());
  return started;
}

}  // namespace

Result<std::shared_ptr<const load::Repository>> open(const std::string& source, const OpenOptions& options) {
  IC_TRY(const api::Runtime* const runtime, api::Runtime::get());
  static_cast<void>(runtime);  // opening needs none of it, and is refused in a forked child like all else
  load::RepositoryOptions repository_options;
  repository_options.revision = options.revision;
  repository_options.compatibility = options.compatibility;
  repository_options.allow_trailing_bytes = options.allow_trailing_bytes;
  IC_TRY(load::Repository repository, load::open_repository(source, repository_options));
  return std::shared_ptr<const load::Repository>(std::make_shared<load::Repository>(std::move(repository)));
}

Result<std::unique_ptr<load::Job>> start_load(std::shared_ptr<const load::Repository> repository,
                                              const load::Options& options) {
  IC_TRY(const api::Runtime* const runtime, api::Runtime::get());
  runtime->metrics().load_started();
  return counted(load::Job::start(std::move(repository), options, runtime->environment()), *runtime);
}

Result<std::unique_ptr<load::Stream>> start_stream(std::shared_ptr<const load::Repository> repository,
                                                   const load::Options& options) {
  IC_TRY(const api::Runtime* const runtime, api::Runtime::get());
  runtime->metrics().stream_started();
  return counted(load::Stream::start(std::move(repository), options, runtime->environment()), *runtime);
}

}  // namespace infercluster
