#!/usr/bin/env bash
# Installs, builds and runs every test; ends with ctest's own summary. Further arguments go to
# ctest, e.g. scripts/test.sh -R moe/
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/deps.sh test
# A folder already configured keeps its way of compiling. In a new one all is compiled, and several
# sources at a time take less (docs/install.md).
[ -f build/release/build.ninja ] || together=-DMOE_TOGETHER=ON
cmake --preset release -DMOE_TESTS=ON -DMOE_BENCH=ON ${together:-} >/dev/null
cmake --build build/release --parallel "$(scripts/jobs.sh)"
ctest --test-dir build/release --output-on-failure -j2 --no-tests=error "$@"
