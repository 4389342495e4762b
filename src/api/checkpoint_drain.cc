// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>

#include "base/clock.h"
#include "checkpoint/names.h"
#include "infercluster/checkpoint_tools.h"
#include "io/files.h"
#include "io/governor.h"
#include "os/file.h"
#include "pfs/calls.h"

namespace infercluster::checkpoint {
namespace {

bool has_step(io::FileCalls& calls, const io::Directory& root, std::uint64_t step) {
  return calls.open_directory_in(root, step_name(step)).ok();
}

Status check_apart(const io::Directory& from, const io::Directory& to) {
  IC_TRY(const os::FileIdentity upper, os::identity_of(from.fd));
  IC_TRY(const os::FileIdentity lower, os::identity_of(to.fd));
  if (upper.device != lower.device || upper.inode != lower.inode) return {};
  return Error(ErrorCode::invalid_argument, "both tiers are the same folder").with_path(to.path);
}

}  // namespace

Result<DrainReport> drain(const std::string& from, const std::string& to, const DrainRequest& request) {
  io::FileCalls& calls = io::system_files();
  IC_TRY(const io::Directory upper, calls.open_directory(from));
  IC_TRY(const io::Directory lower, calls.open_directory(to));
  IC_CHECK(check_apart(upper, lower));
  std::optional<std::uint64_t> step = request.step;
  if (!step) {
    IC_TRY(step, newest_whole_step(calls, upper));
  }
  if (!step || !has_step(calls, upper, *step)) {
    return Error(ErrorCode::not_found, step ? "there is no step " + std::to_string(*step)
                                            : "there is no checkpoint that is committed and whole")
        .with_path(from)
        .with_hint("`infercluster checkpoint ls " + from + "` shows what is there");
  }
  DrainOptions options;
  options.exists = request.exists;
  options.progress = request.progress;
  options.copy.write.layouts = &pfs::system_calls();
  std::unique_ptr<io::Governor> governor;
  if (request.max_write_rate != 0) {
    governor = std::make_unique<io::Governor>(
        steady_clock(), io::Governor::Limits{.foreground = 0, .fill = 0, .drain = request.max_write_rate});
    IC_TRY(const os::FileIdentity identity, os::identity_of(lower.fd));
    options.copy.write.governor = governor.get();
    options.copy.write.device = identity.device;
  }
  return drain_step(calls, upper, *step, lower, options);
}

}  // namespace infercluster::checkpoint
