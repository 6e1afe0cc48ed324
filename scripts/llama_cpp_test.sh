#!/usr/bin/env bash
# The same files in this engine and in llama.cpp: perplexity and greedy tokens of
# SmolLM2-135M-Instruct, a model trained here and handed on as GGUF in several types, what
# quantising costs on either side, and tiny models of every architecture that both know, written at
# random by transformers and trained further here.
#   scripts/llama_cpp_test.sh TEXT
# TEXT: some 300 KB or more of English, e.g. WikiText's; WINDOWS=24 of its windows of 2048 tokens
# are scored.
# No stage of .ci/run: the first run compiles llama.cpp (llama-cpp-python, pinned in
# tools/requirements-llama.txt) for some minutes into ${MOE_CACHE:-~/.cache/moe.cpp}/llama, and each
# run takes 50 minutes on two cores; transformers is installed as scripts/interop.sh does. BIN=path
# of moe (default build/release/moe).
set -euo pipefail
text=${1:-${TEXT:-}}
[ -n "$text" ] && [ -f "$text" ] || { sed -n 2,12p "$0" >&2; exit 2; }
text=$(realpath "$text")
cd "$(dirname "$0")/.."
bin=${BIN:-build/release/moe}
llama=${MOE_CACHE:-$HOME/.cache/moe.cpp}/llama
peers=${MOE_CACHE:-$HOME/.cache/moe.cpp}/peers
windows=${WINDOWS:-24}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. scripts/checks.sh

# The one line of `check` is the verdict; the figures before it are what this is run for.
compare() {
  "$llama/bin/python" tools/interop/smollm2_check.py "$1" --bin "$bin" "${@:2}" |
    tee "$work/figures" >&3
  tail -n 1 "$work/figures"
}

# Widths are multiples of 256, so that the types with blocks of 256 fit.
train_olmoe() {
  "$bin" train --data "$text" --out "$work/olmoe" --tokenizer bpe:2048 --recipe olmoe --layers 4 \
    --width 256 --heads 4 --experts 8 --top-k 2 --expert-width 256 --context 256 --batch 8 \
    --steps 300 --lr 2e-3 --warmup 20 --dtype f32 --seed 1
}

# Trained a little, since what a random model says depends on every bit of its routers.
all_architectures() {
  "$peers/bin/python" tools/interop/architectures.py --bin "$bin" --work "$work/families" \
    --text "$text" --train-text "$text" --tokenizer "$work/bytes/tokenizer.json" \
    --for-llama-cpp >"$work/cases" || return 1
  local bad=() case
  while read -r case; do
    echo "$case:" >&3
    "$bin" train --from "$work/families/$case" --data "$text" --out "$work/families/$case.trained" \
      --steps 200 --context 128 --batch 8 --lr 3e-3 --warmup 20 --dtype f32 --no-report \
      >"$work/trained" 2>&1 || return 1
    compare export "$work/families/$case.trained" "$text" --window 256 --windows 16 \
      --types f32 bf16 q8_0 q4_0 mxfp4_moe || bad+=("$case")
  done <"$work/cases"
  echo "$(wc -l <"$work/cases") models, not within bounds: ${bad[*]:-none}"
  [ ${#bad[@]} = 0 ]
}

virtual_environment "$llama" tools/requirements-llama.txt
virtual_environment "$peers" tools/requirements.txt
export PYTHONDONTWRITEBYTECODE=1 CUDA_VISIBLE_DEVICES='' HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
exec 3>&2
model=$(scripts/get-smollm2.sh)
check "SmolLM2's perplexity" compare score "$model" "$text" --windows "$windows"
check "SmolLM2's greedy tokens" compare greedy "$model"
check "an adapter of SmolLM2" compare adapter "$model" "$text" --window 512 --windows 16
check "an OLMoE model trained here" train_olmoe
check "an adapter of its attention and experts" compare adapter "$work/olmoe" "$text" --window 256 \
  --windows 64
check "it runs in llama.cpp" compare export "$work/olmoe" "$text" --window 256 --windows 64 \
  --types f32 bf16 f16 q8_0 q6_k q5_k_m q5_k_s q5_1 q5_0 iq4_nl iq4_xs q4_k_m q4_k_s q4_1 q4_0 \
  q3_k_l q3_k_m q3_k_s q2_k mxfp4_moe
check "what Q8_0 and Q5_0 cost SmolLM2" compare quality "$model" "$text" --windows "$windows" \
  --types q8_0 q5_0
check "what the mixes cost the OLMoE model" compare quality "$work/olmoe" "$text" --window 256 \
  --windows 64 --types q4_k_m q4_k_s q5_k_m q5_k_s iq4_nl iq4_xs q3_k_m q2_k mxfp4_moe --base f32
# The end of the text, which no window above reaches.
tail -c 130000 "$text" >"$work/end.txt"
check "types that are only read here" compare read "$work/olmoe" "$text" --window 256 \
  --windows 64 --calibration "$work/end.txt" --base f32 --types iq3_m iq3_s iq3_xs iq3_xxs \
  iq2_m iq2_s iq2_xs iq2_xxs iq1_m iq1_s tq2_0 tq1_0
check "what calibrating brings SmolLM2" compare calibrated "$model" "$text" --window 1024 \
  --windows "$windows" --calibration "$work/end.txt" --types iq4_xs q4_k_m q3_k_m q2_k --base f32
check "bytes" "$bin" train --data "$text" --out "$work/bytes" --layers 1 --width 16 --heads 2 \
  --context 32 --batch 2 --steps 1 --warmup 0 --dtype f32
check "every architecture" all_architectures
summary
