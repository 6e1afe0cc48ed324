#!/usr/bin/env bash
# Reading a prompt and writing tokens: `moe bench MODEL` against llama.cpp and transformers on the
# same model files, alternating in one run.
#   bench/compare_inference.sh [--shapes olmoe --formats q8_0 --prompt 512 8192 ...]
# Options: tools/peers/compare_inference.py --help.
# Installs the peers, pinned, into ${MOE_CACHE:-~/.cache/moe.cpp} once (llama.cpp is compiled there
# for some minutes), makes 15 GB of model files in a temporary folder and removes them. Some 20
# minutes on two quiet cores. BIN=path of moe (default build/release/moe).
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${MOE_CACHE:-$HOME/.cache/moe.cpp}
. scripts/checks.sh
virtual_environment "$cache/llama" tools/requirements-llama.txt
virtual_environment "$cache/peers" tools/requirements.txt
smollm2=$(scripts/get-smollm2.sh)
exec "$cache/llama/bin/python" tools/peers/compare_inference.py \
  --bin "${BIN:-build/release/moe}" \
  --llama-python "$cache/llama/bin/python" --peers-python "$cache/peers/bin/python" \
  --smollm2 "$smollm2" "$@"
