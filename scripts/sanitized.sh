#!/usr/bin/env bash
# Builds the tests and the fuzzers under AddressSanitizer and UBSan into build/asan: by clang, which
# has libFuzzer, and once for both, as this build takes longer than what is done with it.
#   scripts/sanitized.sh [TARGET...]    default: all
# Needs (scripts/deps.sh test): clang libclang-rt-dev libomp-dev
set -euo pipefail
cd "$(dirname "$0")/.."
clang=$(command -v clang++-14 || command -v clang++) || {
  echo "sanitized.sh: clang is not there; run scripts/deps.sh test" >&2
  exit 1
}
cmake --preset asan -DCMAKE_CXX_COMPILER="$clang" -DMOE_TOGETHER=ON -DMOE_FUZZ=ON -DMOE_BENCH=OFF \
  -DMOE_SANITIZE=address,undefined,fuzzer-no-link >/dev/null
cmake --build build/asan --parallel "$(scripts/jobs.sh 1500)" --target "${@:-all}"
