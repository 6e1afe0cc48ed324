#!/usr/bin/env bash
# Are the alarms of `moe train` right? Trains small models for 100 steps, ten seeds each of runs
# that are made to fail and of healthy ones, and prints for each what the router did at the end and
# which alarms were raised. Every failing run must raise one and no healthy run any. Some two
# minutes on two quiet cores.
#   scripts/alarm_check.sh [path of moe, default build/release/moe]      SEEDS=10
set -euo pipefail
cd "$(dirname "$0")/.."
moe=$(realpath "${1:-build/release/moe}")
[ -x "$moe" ] || { echo "$moe is not there; build it or name another one" >&2; exit 2; }
seeds=${SEEDS:-10}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/texts"
cat src/*/*.h src/*/*.cpp >"$work/texts/code.txt"
cat tests/*/*.cpp >"$work/texts/tests.txt"
cat docs/*.md README.md >"$work/texts/prose.txt"

shape=(
  --layers 2 --width 64 --heads 4 --experts 16 --expert-width 64 --context 128 --batch 8
  --steps 100 --warmup 10 --no-report
)
failing=(
  '--recipe switch --top-k 1 --balance 0 --lr 0.3'
  '--recipe switch --top-k 1 --balance 0 --lr 0.1'
  '--recipe olmoe --top-k 2 --balance 0 --lr 0.3'
)
# Recipes with a balance loss: deepseek-v3's bias moves by 0.001 a step, too slowly to be even
# within 100 steps, and what is said of its runs is true.
healthy=(
  '--recipe switch --top-k 1 --lr 3e-3'
  '--recipe olmoe --top-k 2 --lr 3e-3'
  '--recipe st-moe --top-k 2 --lr 3e-3'
)

wrong=0
# run WANTED SEED FLAGS: a line of the table.
run() {
  local wanted=$1 seed=$2 flags verdict=right
  read -ra flags <<<"$3"
  rm -rf "$work/out"
  "$moe" train "${shape[@]}" "${flags[@]}" --data "$work/texts" --seed "$seed" \
    --out "$work/out" >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    exit 1
  }
  # A line is a step; of its keys, in order, "balance" comes after "alarms".
  said=$(awk '
    /"alarms":/ {
      s = substr($0, index($0, "\"alarms\":"))
      s = substr(s, 1, index(s, "\"balance\":"))
      while (match(s, /"kind":"[a-z-]+"/)) {
        printf "%s (%d) ", substr(s, RSTART + 8, RLENGTH - 9), NR
        s = substr(s, RSTART + RLENGTH)
      }
    }' "$work/out/metrics.jsonl")
  # Of the last 20 steps: dropped choices, and what the busiest expert of any layer had (MaxVio + 1
  # times an even share).
  figures=$(tail -n 20 "$work/out/metrics.jsonl" | awk '
    {
      match($0, /"dropped":[0-9.e-]+,"flops/)
      d += substr($0, RSTART + 10) + 0
      match($0, /"max_vio":[0-9.e+-]+,"pred/)
      v += substr($0, RSTART + 10) + 1
    }
    END { printf "%5.0f%% %7.0f%%", 100 * d / NR, 100 * v / NR / 16 }')
  if [ "$wanted" = alarm ] && [ -z "$said" ]; then verdict=MISSED; fi
  if [ "$wanted" = silence ] && [ -n "$said" ]; then verdict=FALSE; fi
  [ "$verdict" = right ] || wrong=$((wrong + 1))
  printf '%-8s %-46s %4d  %s  %-6s  %s\n' \
    "$([ "$wanted" = alarm ] && echo failing || echo healthy)" \
    "$3" "$seed" "$figures" "$verdict" "${said:-none}"
}

printf '%-8s %-46s %4s  %6s %8s  %-6s  %s\n' \
  run flags seed dropped busiest verdict 'alarms (step)'
for flags in "${failing[@]}"; do
  for seed in $(seq "$seeds"); do run alarm "$seed" "$flags"; done
done
for flags in "${healthy[@]}"; do
  for seed in $(seq "$seeds"); do run silence "$seed" "$flags"; done
done
echo "$wrong of $(((${#failing[@]} + ${#healthy[@]}) * seeds)) runs judged wrongly"
[ "$wrong" = 0 ]
