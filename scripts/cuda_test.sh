#!/usr/bin/env bash
# The CUDA kernels where there is no GPU: compiled for the CPU and run thread by thread
# (tests/support/cuda_on_cpu), under the tests that the CPU's own kernels have. What a GPU alone can
# show, its libraries and its speed, is tested by hand (docs/cuda.md).
set -euo pipefail
cd "$(dirname "$0")/.."
cmake -S . -B build/on-cpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DMOE_CUDA=on-cpu \
  -DMOE_BENCH=OFF -DMOE_TOGETHER=ON
cmake --build build/on-cpu --parallel "$(scripts/jobs.sh)" --target moe_cuda_tests
ctest --test-dir build/on-cpu --output-on-failure -j2 --no-tests=error -R '@cuda$'
