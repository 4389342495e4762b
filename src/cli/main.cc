// SPDX-License-Identifier: Apache-2.0
// The program `infercluster`.
#include <sys/resource.h>

#include <cstdio>
#include <string>

#include "cli/program.h"
#include "cli/signals.h"

namespace {

// One descriptor for each shard: the usual 1024 are few. They are so few for the sake of select(2), which nothing here
// uses. Where it cannot be raised, the error of the open that fails says so.
void raise_limit_of_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &limit));
}

}  // namespace

int main(int argc, char** argv) {
  raise_limit_of_open_files();
  infercluster::cli::catch_signals();
  int code = infercluster::cli::run_program(argc, argv);
  // No command is done whose output did not go out (a full disk, say).
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::perror("infercluster: error: standard output");
    if (code == 0) code = 1;
  }
  return code;
}
