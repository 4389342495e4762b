// SPDX-License-Identifier: Apache-2.0
// The program `infercluster`.
#include <cstdio>
#include <string>

#include "cli/program.h"
#include "cli/signals.h"

int main(int argc, char** argv) {
  infercluster::cli::catch_signals();
  int code = infercluster::cli::run_program(argc, argv);
  // No command is done whose output did not go out (a full disk, say).
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::perror("infercluster: error: standard output");
    if (code == 0) code = 1;
  }
  return code;
}
