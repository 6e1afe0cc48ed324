#!/usr/bin/env bash
# Interoperation with PyTorch and transformers, pinned in tools/requirements.txt: the golden files
# made again equal the committed ones, 200 random routings of every recipe by `moe route` equal
# those of its oracle, and what `moe train` writes loads in transformers (olmoe) and in nanoMoE's
# model with equal log-probabilities, a routing record says what transformers' router does,
# `tokenizers` encodes as `moe` does, the chat template of a model folder makes of 20 dialogues the
# prompts that `moe chat` makes and of 200 the mask that `moe tokenize` makes, and the figures of
# `moe inspect --text` are those of OLMoE's definitions in NumPy. And the other way: tiny random
# models of every family, written by transformers, give the same log-probabilities here in one piece
# and token by token, choose the same experts, and load back there as they were; weights in few
# bits (MXFP4, FP8, GPTQ, AWQ, compressed-tensors, ModelOpt, FBGEMM, bitsandbytes) are the same
# numbers; PEFT loads the adapters that are trained here, and its own are merged here; preference
# pairs have the losses of a plain loop in PyTorch; and the layers of moe_cpp.torch equal float64
# formulas and the modules of transformers.
# BIN=path of moe (default build/release/moe); the packages live in
# ${MOE_CACHE:-~/.cache/moe.cpp}/peers and are fetched once.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-build/release/moe}
peers=${MOE_CACHE:-$HOME/.cache/moe.cpp}/peers
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. scripts/checks.sh

# A text of words with some structure, the same each time, long enough for 20 steps and a few
# windows to score.
write_text() {
  some_text 6000 >"$work/text.txt"
  head -c 4096 "$work/text.txt" >"$work/score.txt"
}

# train_and_compare RECIPE SCRIPT [train options]: trains, scores 32-token windows and lets SCRIPT
# compare.
train_and_compare() {
  local recipe=$1 script=$2 out="$work/$1"
  shift 2
  rm -rf "$out"
  "$bin" train --data "$work/text.txt" --out "$out" --recipe "$recipe" --layers 2 --width 64 \
    --heads 4 --experts 8 --top-k 2 --context 64 --batch 4 --steps 20 --lr 3e-3 --warmup 2 \
    --dtype f32 --seed 1 "$@" || return 1
  "$bin" score "$out" --text "$work/score.txt" --window 32 --per-token --json \
    >"$work/$recipe.json" || return 1
  "$peers/bin/python" "$script" "$out" "$work/$recipe.json" --window 32
}

# The tests that python_test.sh, whose packages lack PyTorch, skips.
layers_in_torch() {
  MOE_LIBRARY=$(realpath "$(dirname "$bin")/libmoe.so") PYTHONPATH=$PWD/python/src \
    PYTHONDONTWRITEBYTECODE=1 "$peers/bin/python" -m pytest -q -c python/pyproject.toml \
    --basetemp "$work/tests" python/tests/torch_*_test.py
}

# encode_and_compare NAME TOKENIZER: encodes 10,000 lines of mixed text through `score` and compares
# the ids with those of `tokenizers`.
encode_and_compare() {
  local out="$work/$1" text="$work/mixed.txt"
  "$bin" train --data "$text" --out "$out" --tokenizer "$2" --recipe olmoe --layers 1 --width 16 \
    --heads 2 --experts 4 --top-k 2 --expert-width 16 --context 32 --batch 2 --steps 1 --warmup 0 \
    --dtype f32 || return 1
  "$bin" score "$out" --text "$text" --window 32 --per-token --json >"$out.json" || return 1
  "$peers/bin/python" tools/interop/tokenizer_check.py --model "$out" --text "$text" \
    --ids "$out.json" --window 32
}

# tokenize_and_compare FAMILY: a tokenizer in the form of that family, learned by `tokenizers` or
# sentencepiece: the ids of the mixed text.
tokenize_and_compare() {
  local out="$work/family-$1" text="$work/mixed.txt"
  "$peers/bin/python" tools/interop/tokenizer_check.py --learn "$out" --family "$1" \
    --text "$text" || return 1
  rm -rf "$out/tokens"
  [ ! -e "$out/text.txt" ] || text="$out/text.txt"
  "$bin" tokenize --data "$text" --tokenizer "$out" --out "$out/tokens" || return 1
  "$peers/bin/python" tools/interop/tokenizer_check.py --model "$out" --text "$text" \
    --shards "$out/tokens"
}

# The figures of a report on two texts, worked out again from routing records and by transformers;
# the weights before training are the earlier checkpoint.
report_and_compare() {
  local out="$work/reported" texts="$work/texts" text
  mkdir -p "$texts"
  head -c 8192 "$work/text.txt" >"$texts/first.txt"
  tail -c 4096 "$work/text.txt" >"$texts/last.txt"
  "$bin" train --data "$work/text.txt" --out "$out" --recipe olmoe --layers 2 --width 64 \
    --heads 4 --experts 8 --top-k 2 --expert-width 32 --context 64 --batch 4 --steps 20 \
    --lr 3e-3 --warmup 2 --dtype f32 --seed 1 --save-every 20 || return 1
  "$bin" inspect "$out" --text "$texts" --tokens 0 --window 32 --against "$out/checkpoint-0" \
    --json >"$work/report.json" || return 1
  for text in first last; do
    "$bin" score "$out" --text "$texts/$text.txt" --window 32 \
      --record "$work/now.$text" || return 1
    "$bin" score "$out/checkpoint-0" --text "$texts/$text.txt" --window 32 \
      --record "$work/before.$text" || return 1
  done
  "$peers/bin/python" tools/interop/report_figures.py "$out" "$work/report.json" \
    "$work"/now.{first,last} --earlier "$work"/before.{first,last}
}

# The model that train_and_compare made of RECIPE, recorded while it is scored.
record_and_compare() {
  "$bin" score "$work/$1" --text "$work/score.txt" --window 32 \
    --record "$work/$1.record" || return 1
  "$peers/bin/python" tools/interop/record_check.py "$work/$1" "$work/$1.record"
}

# What we write as GGUF, read and written again by the gguf package, gives the same scores to the
# last digit.
rewrite_and_compare() {
  "$bin" convert "$work/reported" "$work/ours.gguf" --quant q8_0 || return 1
  "$peers/bin/python" tools/interop/gguf_rewrite.py "$work/ours.gguf" "$work/theirs.gguf" ||
    return 1
  for file in ours theirs; do
    "$bin" score "$work/$file.gguf" --text "$work/score.txt" --window 32 --json \
      >"$work/$file.json" || return 1
  done
  cmp "$work/ours.json" "$work/theirs.json" || return 1
  cat "$work/theirs.json"
}

# chat_and_compare NAME TOKENIZER: trains on dialogues, talks with the model and compares the
# prompts with those of transformers.
chat_and_compare() {
  local out="$work/$1" data="$work/dialogues.jsonl"
  "$peers/bin/python" tools/interop/chat_check.py --write "$data" || return 1
  "$bin" train --data "$data" --out "$out" --tokenizer "$2" --recipe olmoe --layers 1 --width 16 \
    --heads 2 --experts 4 --top-k 2 --expert-width 16 --context 1024 --batch 2 --steps 2 \
    --warmup 0 --dtype f32 || return 1
  "$peers/bin/python" tools/interop/chat_check.py --bin "$bin" --model "$out"
}

export CUDA_VISIBLE_DEVICES='' HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
virtual_environment "$peers" tools/requirements.txt
write_text
check "golden files made again" "$peers/bin/python" tools/golden/make.py --check
if [ -x "$bin" ]; then
  check "200 routings of every recipe" \
    "$peers/bin/python" tools/golden/recipes_check.py --bin "$bin"
  check "olmoe in transformers" \
    train_and_compare olmoe tools/interop/olmoe_load.py --expert-width 32
  check "olmoe with 2 kv heads in transformers" \
    train_and_compare olmoe tools/interop/olmoe_load.py --expert-width 32 --kv-heads 2
  check "a routing record against transformers' router" record_and_compare olmoe
  "$peers/bin/python" tools/interop/tokenizer_check.py --write "$work/mixed.txt"
  check "our BPE in tokenizers" encode_and_compare ours bpe:4096
  for family in gpt2 llama3 qwen2 smollm2 olmoe deepseek-llm deepseek-v3 gpt-oss glm4 llama2 \
    mistral always never gemma unigram unigram-whole unigram-bytes spm-unigram spm-unigram-bytes \
    spm-bpe spm-bpe-mapped; do
    check "a tokenizer in the form of $family" tokenize_and_compare "$family"
  done
  check "20 dialogues over bytes in transformers" chat_and_compare chat-bytes bytes
  check "20 dialogues over BPE in transformers" chat_and_compare chat-bpe bpe:400
  check "20 dialogues by each template in transformers" \
    "$peers/bin/python" tools/interop/chat_check.py --bin "$bin" --model "$work/chat-bpe" \
    --templates "$work/templates"
  check "what is learned of 200 dialogues in transformers" \
    "$peers/bin/python" tools/interop/chat_check.py --bin "$bin" --model "$work/chat-bpe" \
    --masks "$work" --data "$work/dialogues.jsonl"
  check "layers in PyTorch and transformers" layers_in_torch
  check "nanomoe in nanoMoE's model" train_and_compare nanomoe tools/interop/nanomoe_load.py
  check "the figures of a report in NumPy" report_and_compare
  "$bin" train --data "$work/text.txt" --out "$work/bytes" --layers 1 --width 16 --heads 2 \
    --context 32 --batch 2 --steps 1 --warmup 0 --dtype f32
  head -c 512 "$work/text.txt" >"$work/score512.txt"
  families=(
    --bin "$bin" --work "$work/families" --text "$work/score512.txt"
    --train-text "$work/text.txt" --tokenizer "$work/bytes/tokenizer.json"
  )
  check "models of other people" \
    "$peers/bin/python" tools/interop/architectures.py "${families[@]}" \
    --table "$work/families.md"
  check "the table of families in the docs" cmp docs/families.md "$work/families.md"
  check "weights in few bits" "$peers/bin/python" tools/interop/packed_check.py "${families[@]}"
  check "texts of models with pictures" \
    "$peers/bin/python" tools/interop/within_check.py "${families[@]}"
  check "adapters in PEFT and from it" \
    "$peers/bin/python" tools/interop/adapter_check.py "${families[@]}"
  check "preference pairs in PyTorch" \
    "$peers/bin/python" tools/interop/dpo_check.py "${families[@]}"
  check "a GGUF written again by gguf" rewrite_and_compare
  check "moe serve to OpenAI's client and lm_eval" \
    "$peers/bin/python" tools/interop/serve_check.py --bin "$bin" --work "$work/serve" \
    --model "$work/chat-bpe" "$work/olmoe" "$work/ours.gguf"
else
  check "the command is there" test -x "$bin"
fi
summary
