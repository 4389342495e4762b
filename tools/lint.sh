#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formatting, clang-tidy over every source file of ours, and the order of the modules. Fails on the first kind that finds something.
# CLANG_TIDY_FILES: a pattern (extended, on paths) that limits clang-tidy to some files.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t sources < <(git ls-files '*.cc' '*.h')
clang-format --dry-run -Werror "${sources[@]}"
echo "lint: clang-format: ${#sources[@]} files"

# clang reads clang's own command lines: those of the fuzz preset with the tests added, without sanitizers.
mkdir -p build
cmake --preset dev -B build/lint -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DPython_EXECUTABLE="$PWD/.venv/bin/python" \
  >build/configure-lint.log 2>&1 || { cat build/configure-lint.log >&2; exit 1; }
mapfile -t units < <(git ls-files 'src/*.cc' 'bench/*.cc' 'fuzz/*.cc' | grep -E "${CLANG_TIDY_FILES:-.}")
tools/tidy.py build/lint "${units[@]}"

.venv/bin/python -m pytest -q -p no:cacheprovider tests/layers_test.py
