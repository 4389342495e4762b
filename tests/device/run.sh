#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tests/device/run.sh [options of check.py]
# The device check: on a machine with an NVIDIA GPU, the tests of loads to a device on its real driver, then what loads and
# their limits take there. Ends in under 8 minutes, whatever happens, and writes one JSON document, device-check.json, to
# $OUT, or to build/. Downloads nothing: it runs build/device where pack.sh has made it, on this machine or on another one,
# and calls pack.sh otherwise. Needs Python 3.10, and g++ and nanobind for the part that goes through Python.
set -uo pipefail
cd "$(dirname "$0")/../.."
started=$(date +%s)
limit=460  # seconds, all in all
python=${PYTHON:-python3}
out=${OUT:-build}/device-check.json
mkdir -p "$(dirname "$out")"

if [[ ! -x build/device/bin/infercluster ]]; then
  echo "device check: build/device is not there: building it"
  timeout --kill-after=5 300 tests/device/pack.sh || { echo "device check: build/device cannot be built here: run tests/device/pack.sh where the libraries of CONTRIBUTING.md are, and bring build/device along" >&2; exit 1; }
fi
timeout --kill-after=5 $((limit - ($(date +%s) - started))) \
  "$python" tests/device/check.py --out "$out" --started "$started" "$@"
status=$?
((status != 124 && status != 137)) || echo "device check: out of time; $out has what was done by then" >&2
exit $status
