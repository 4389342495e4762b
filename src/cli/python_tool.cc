// SPDX-License-Identifier: Apache-2.0
#include "cli/python_tool.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "cli/checkpoint.h"

namespace infercluster::cli {
namespace {

constexpr const char* kProgram =
    "import sys\n"
    "try:\n"
    "    from infercluster._checkpoint import convert\n"
    "except ImportError as error:\n"
    "    sys.exit(f'infercluster: error: this needs Python with the packages infercluster and torch: {error}. Install "
    "them, "
    "or'\n"
    "             ' set INFERCLUSTER_PYTHON to an interpreter that has them')\n"
    "sys.exit(convert.main(sys.argv[1:]))\n";

}  // namespace

int become_python_tool(const Common& common, const std::vector<std::string>& words) {
  const char* const named = std::getenv("INFERCLUSTER_PYTHON");
  std::vector<std::string> all{named != nullptr && *named != '\0' ? named : "python3", "-c", kProgram};
  if (common.json) all.emplace_back("--json");
  if (common.quiet) all.emplace_back("--quiet");
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (std::string& word : all) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none,
              nullptr);  // this program waits for signals in a thread, and the next one inherits that
  execvp(arguments[0], arguments.data());
  return fail(common, Error::from_errno(errno, "cannot start " + all[0])
                          .with_hint("Install Python, or set INFERCLUSTER_PYTHON to an interpreter with the packages "
                                     "infercluster and torch"));
}

}  // namespace infercluster::cli
