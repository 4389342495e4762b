#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tools/build.sh PRESET [TARGET ...]
# Configures once (and again when CMake says so itself) and builds these targets of one preset, or everything.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?usage: tools/build.sh PRESET}
shift
if [[ ! -e build/$preset/build.ninja ]]; then
  mkdir -p build
  cmake --preset "$preset" -DPython_EXECUTABLE="$PWD/.venv/bin/python" >build/configure-"$preset".log 2>&1 ||
    { cat build/configure-"$preset".log >&2; exit 1; }
fi
cmake --build --preset "$preset" ${1:+--target "$@"}
