#!/usr/bin/env bash
# Installs, builds and runs every test; ends with ctest's own summary. Further arguments go to
# ctest, e.g. scripts/test.sh -R moe/
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/deps.sh test
cmake --preset release -DMOE_TESTS=ON -DMOE_BENCH=ON >/dev/null
cmake --build build/release --parallel "$(scripts/jobs.sh)"
ctest --test-dir build/release --output-on-failure -j2 --no-tests=error "$@"
