#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests labelled crash of the release build, with kills at 200 points (make test tries 20) and at every call.
set -euo pipefail
cd "$(dirname "$0")/.."
export INFERCLUSTER_CRASH_POINTS=${INFERCLUSTER_CRASH_POINTS:-200}
exec ctest --preset release -L '^crash$'
