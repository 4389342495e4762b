#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tools/fuzz.sh SECONDS
# Runs every fuzzer of build/fuzz for that long, from its committed corpus; what it finds new is kept under build/fuzz/corpus.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?usage: tools/fuzz.sh SECONDS}
shopt -s nullglob
failed=()
count=0
for fuzzer in build/fuzz/bin/*_fuzz; do
  name=$(basename "$fuzzer")
  seeds=fuzz/corpus/${name%_fuzz}
  dictionary=fuzz/${name%_fuzz}.dict
  mkdir -p "build/fuzz/corpus/$name" build/fuzz/findings
  echo "fuzz: $name for $seconds s"
  count=$((count + 1))
  "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 -print_funcs=0 -verbosity=0 \
    -artifact_prefix="build/fuzz/findings/$name-" $([[ -e $dictionary ]] && echo "-dict=$dictionary") \
    "build/fuzz/corpus/$name" $([[ -d $seeds ]] && echo "$seeds") ||
    failed+=("$name")
done
((count > 0)) || { echo "fuzz: no fuzzer was built" >&2; exit 1; }
if ((${#failed[@]})); then
  echo "fuzz: findings of ${failed[*]} lie in build/fuzz/findings" >&2
  exit 1
fi
echo "fuzz: $count fuzzers, $seconds s each, no finding"
