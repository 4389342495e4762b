#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests labelled crash of the release build, with kills at 200 points (make test tries 20) and at every call, and
# with 10,000 objects that are unmapped under their readers (make test: 200).
set -euo pipefail
cd "$(dirname "$0")/.."
export INFERCLUSTER_CRASH_POINTS=${INFERCLUSTER_CRASH_POINTS:-200}
export INFERCLUSTER_UNMAP_ROUNDS=${INFERCLUSTER_UNMAP_ROUNDS:-10000}
exec ctest --preset release -L '^crash$'
