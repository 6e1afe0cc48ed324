#!/usr/bin/env bash
# What a build writes, as hashes, for comparing two builds that should write the same: a short run
# of each recipe in f32 and bf16; a dense model carved, upcycled, merged, pruned and quantised; what
# the models generate and how they score. Half a minute.
#   scripts/same_bits.sh OLD >old; scripts/same_bits.sh NEW >new; diff old new
set -euo pipefail
[ $# = 1 ] || { sed -n 2,5p "$0" >&2; exit 2; }
. "$(dirname "$0")/checks.sh"
moe=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

some_text 12000 >text.txt
tail -c 8192 text.txt >other.txt
readonly shape=(
  --layers 2 --width 64 --heads 4 --kv-heads 2 --context 64 --batch 4 --accumulate 2 --steps 6
  --warmup 2 --lr 3e-3 --threads 2
)

quietly() { "$@" >log 2>&1 || { tail -n 5 log >&2; return 1; }; }
# hash NAME FILE...: one line for them all.
hash() {
  local name=$1
  shift
  cat "$@" >hashed
  printf '%s  %s\n' "$(sha256sum <hashed | cut -c 1-32)" "$name"
}
# train NAME OPTIONS...: a short run into the folder NAME.
train() {
  local out=$1
  shift
  quietly "$moe" train --data text.txt --out "$out" "${shape[@]}" --no-report "$@"
  hash "$out" "$out/config.json" "$out/model.safetensors"
}
# looks_at NAME MODEL: what it writes and how it scores.
looks_at() {
  quietly "$moe" generate "$2" -p 'the ' -n 20 --temperature 0.8 --seed 3 --json --threads 2
  hash "$1 writes" log
  quietly "$moe" score "$2" --text other.txt --window 32 --windows 4 --per-token --json --threads 2
  hash "$1 scores" log
}
made() { # made NAME OUT VERB ARGUMENTS...
  local name=$1 out=$2
  shift 2
  quietly "$moe" "$@" --threads 2
  if [ -d "$out" ]; then
    hash "$name" "$out/config.json" "$out"/*.safetensors
  else
    hash "$name" "$out"
  fi
  looks_at "$name" "$out"
}

recipes=$("$moe" recipes --json | tr '{' '\n' | sed -n 's/.*"name": *"\([^"]*\)".*/\1/p' |
  grep -vxE 'dense|custom|carved')
for dtype in f32 bf16; do
  for recipe in $recipes; do
    experts=(--experts 8 --top-k 2)
    case $recipe in
      switch) experts=(--experts 8) ;;
      cmoe) experts=(--experts 6 --top-k 2) ;;
      deepseek-v[23]) experts+=(--expert-groups 4 --groups-kept 2) ;;
    esac
    train "$recipe-$dtype" --recipe "$recipe" --dtype "$dtype" "${experts[@]}"
  done
  train "dense-$dtype" --recipe dense --dtype "$dtype"
  train "bpe-$dtype" --recipe qwen3-moe --dtype "$dtype" --experts 8 --top-k 2 \
    --tokenizer bpe:300 --dropout 0.1 --recompute --qk-norm head --tied true
done
train second --recipe dense --seed 2
quietly "$moe" train --data text.txt --out tuned --from mixtral-f32 --tune lora+router \
  --lora-rank 4 --context 64 --batch 4 --steps 3 --warmup 0 --lr 1e-3 --no-report
hash tuned tuned/adapter_model.safetensors
for model in mixtral-f32 mixtral-bf16 nanomoe-f32 deepseek-v3-f32 bpe-bf16 second; do
  looks_at "$model" "$model"
done
made carved carved carve dense-f32 carved --shared 1 --active 2 --experts 4 \
  --calibration text.txt --windows 2 --window 64
made upcycled upcycled upcycle dense-f32 upcycled --experts 4 --top-k 2 --noise 0.02
made merged merged merge merged --base dense-f32 --expert dense-f32 --expert second --top-k 2 \
  --gates random
made pruned pruned prune mixtral-f32 pruned --experts 6 --calibration text.txt --windows 2 \
  --window 64
for quant in q8_0 q4_k_m q4_1; do
  made "mixtral $quant" "mixtral-$quant.gguf" convert mixtral-f32 "mixtral-$quant.gguf" \
    --quant "$quant"
done
made 'mixtral f16' mixtral-f16.gguf convert mixtral-f32 mixtral-f16.gguf --dtype f16
made 'back to a folder' back convert mixtral-q8_0.gguf back --dtype bf16
