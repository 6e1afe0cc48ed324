#!/usr/bin/env bash
# Compares what every verb estimates of its memory (--show-memory) with what it takes, on models
# made here, and looks that what does not fit is refused before it starts. Counted is what the
# process holds beside pages of mapped files: RssAnon of /proc/PID/status, looked at every few
# milliseconds. Takes some two minutes and 3 GiB.
#   scripts/memory_check.sh [MOE]   prints a table and fails where the two differ by more than 15%
set -euo pipefail

moe=$(realpath "${1:-build/release/moe}")
most=15 # percent
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failed=0

# Runs a command and sets `peak`, the most KiB of memory that it held, and `estimated`, KiB.
# Standard input is the chat's.
measure() {
  "$@" >out 2>err <in &
  local pid=$! key value unit
  peak=0
  while kill -0 "$pid" 2>/dev/null; do
    while read -r key value unit; do
      if [[ $key == RssAnon: ]] && ((value > peak)); then peak=$value; fi
    done <"/proc/$pid/status" 2>/dev/null || true
    read -r -t 0.004 <>pause || true
  done
  if ! wait "$pid"; then
    echo "failed: $*" >&2
    tail -3 err >&2
    exit 1
  fi
  estimated=$(sed -n 's/^memory: \([0-9.]*\) \([KMGT]iB\) estimated.*/\1 \2/p' err | awk '
    {
      k = $2 == "KiB" ? 1 : $2 == "MiB" ? 1024 : $2 == "GiB" ? 1048576 : 1073741824
      if ($1 * k > most) most = $1 * k
    }
    END { printf "%d", most }')
}

# NAME COMMAND...: a line of the table.
check() {
  local name=$1 ratio
  shift
  measure "$@"
  if ((estimated == 0)); then
    echo "$name: nothing was estimated" >&2
    exit 1
  fi
  ratio=$((100 * peak / estimated))
  printf '%-34s %9d %8d %6d%%' "$name" $((estimated / 1024)) $((peak / 1024)) "$ratio"
  if ((ratio < 100 - most || ratio > 100 + most)); then
    printf '   more than %d%% off' "$most"
    failed=1
  fi
  printf '\n'
  if [[ -n ${VERBOSE:-} ]]; then grep '^memory:' err; fi
}

# NAME COMMAND...: refused before it starts, with what is needed and what to lower.
refused() {
  local name=$1 status=0
  shift
  "$@" >out 2>err <in || status=$?
  if ((status != 1)) || ! grep -q 'of memory (.*; ' err || grep -q 'loss is not finite' err; then
    printf '%-34s is not refused (exit %d): %s\n' "$name" "$status" "$(tail -1 err)"
    failed=1
    return
  fi
  printf '%-34s refused: %s\n' "$name" "$(tail -1 err | cut -c 6-)"
}

# Letters in words, the same each time.
text() {
  awk -v n="$1" -v seed="$2" '
    BEGIN {
      srand(seed)
      for (i = 0; i < n; ++i) {
        w = ""
        for (l = int(rand() * 7) + 2; l > 0; --l) w = w sprintf("%c", 97 + int(rand() * 26))
        printf "%s%s", w, i % 12 == 11 ? "\n" : " "
      }
    }'
}
mkfifo pause
: >in
text 30000 1 >train.txt
text 30000 2 >other.txt

size=(--layers 3 --width 512 --heads 8 --context 512)
moe_model=("${size[@]}" --recipe olmoe --experts 8 --top-k 2 --expert-width 512)
dense_model=("${size[@]}" --recipe dense --dense-width 2048)
steps=(--steps 2 --warmup 0 --no-report)

printf '%-34s %9s %8s %7s\n' verb 'estimated' 'taken' 'ratio'
printf '%-34s %9s %8s\n' '' MiB MiB
check 'train' "$moe" train --data train.txt --out moe "${moe_model[@]}" "${steps[@]}" --batch 4 \
  --show-memory
check 'train --recompute' "$moe" train --data train.txt --out moe-recompute "${moe_model[@]}" \
  "${steps[@]}" --batch 8 --recompute --show-memory
check 'train --from --tune lora+router' "$moe" train --data train.txt --from moe --out lora \
  "${steps[@]}" --batch 2 --context 512 --tune lora+router --show-memory
check 'train, dense' "$moe" train --data train.txt --out dense "${dense_model[@]}" "${steps[@]}" \
  --batch 2 --show-memory
"$moe" train --data train.txt --out dense-2 "${dense_model[@]}" "${steps[@]}" --batch 2 --seed 2 \
  2>/dev/null
check 'train --teacher' "$moe" train --data train.txt --out taught "${dense_model[@]}" \
  "${steps[@]}" --batch 2 --teacher moe --show-memory
check 'bench train' "$moe" bench train "${moe_model[@]}" --batch 4 --steps 1 --warmup-steps 1 \
  --show-memory
check 'generate' "$moe" generate moe -p "$(head -c 2000 other.txt)" -n 20 --show-memory
check 'generate --pack-memory 1M' "$moe" generate moe -p "$(head -c 2000 other.txt)" -n 20 \
  --pack-memory 1M --show-memory
check 'generate --draft' "$moe" generate moe -p "$(head -c 400 other.txt)" -n 20 --draft dense \
  --draft-min-p 0 --show-memory
head -c 400 other.txt | tr '\n' ' ' >in
check 'chat' "$moe" chat moe -n 40 --show-memory
: >in
check 'score' "$moe" score moe --text other.txt --windows 8 --show-memory
check 'score --pack-memory 1M' "$moe" score moe --text other.txt --windows 8 --pack-memory 1M \
  --show-memory
check 'compare' "$moe" compare moe moe-recompute --text other.txt --windows 4 --prompt 256 \
  --tokens 16 --repeats 1 --show-memory
check 'compare --pack-memory 1M' "$moe" compare moe moe-recompute --text other.txt --windows 4 \
  --no-speed --pack-memory 1M --show-memory
check 'inspect --text' "$moe" inspect moe --text other.txt --tokens 4096 --show-memory
check 'inspect --text --pack-memory 1M' "$moe" inspect moe --text other.txt --tokens 4096 \
  --pack-memory 1M --show-memory
check 'prune --verify' "$moe" prune moe pruned --experts 4 --calibration train.txt --windows 4 \
  --verify other.txt --show-memory
check 'prune --pack-memory 1M' "$moe" prune moe pruned-1 --experts 4 --calibration train.txt \
  --windows 4 --pack-memory 1M --show-memory
check 'convert' "$moe" convert moe moe.gguf --quant q8_0 --show-memory
check 'convert --verify' "$moe" convert moe moe-q8.gguf --quant q8_0 --verify other.txt \
  --verify-windows 4 --show-memory
check 'score, q8_0' "$moe" score moe.gguf --text other.txt --windows 8 --show-memory
check 'carve' "$moe" carve dense carved --shared 2 --active 2 --experts 8 --calibration train.txt \
  --windows 4 --show-memory
check 'carve --fit none' "$moe" carve dense carved-none --shared 2 --active 2 --experts 8 \
  --fit none --calibration train.txt --windows 4 --show-memory
check 'carve --method sketch' "$moe" carve dense sketched --method sketch --budget 0.5 \
  --calibration train.txt --windows 4 --show-memory
check 'upcycle' "$moe" upcycle dense upcycled --experts 4 --show-memory
check 'upcycle --noise' "$moe" upcycle dense upcycled-noise --experts 4 --noise 0.02 --show-memory
printf 'a small prompt of some words\n' >p1
printf 'another one of other words\n' >p2
check 'merge' "$moe" merge merged --base dense --expert dense:p1 --expert dense-2:p2 --show-memory
check 'bench MODEL' "$moe" bench moe --prompt 256 --tokens 16 --repeats 1 --show-memory

little=(--memory 24M)
refused 'train --batch 5000' "$moe" train --data train.txt --out no "${moe_model[@]}" \
  "${steps[@]}" --batch 5000
refused 'train --batch 200000' "$moe" train --data train.txt --out no "${moe_model[@]}" \
  "${steps[@]}" --batch 200000
refused 'train --from' "$moe" train --data train.txt --from moe --out no "${steps[@]}" --batch 2 \
  "${little[@]}"
refused 'train --teacher' "$moe" train --data train.txt --out no "${dense_model[@]}" \
  "${steps[@]}" --batch 2 --teacher moe "${little[@]}"
refused 'bench train' "$moe" bench train "${moe_model[@]}" --batch 5000
refused 'generate' "$moe" generate moe -p "$(head -c 2000 other.txt)" -n 20000 "${little[@]}"
refused 'chat' "$moe" chat moe "${little[@]}"
refused 'score' "$moe" score moe --text other.txt "${little[@]}"
refused 'compare' "$moe" compare moe moe-recompute --text other.txt "${little[@]}"
refused 'inspect --text' "$moe" inspect moe --text other.txt "${little[@]}"
refused 'prune' "$moe" prune moe no --experts 4 --calibration train.txt "${little[@]}"
refused 'convert' "$moe" convert moe no.gguf --quant q8_0 --memory 5M
refused 'carve' "$moe" carve dense no --shared 2 --active 2 --experts 8 --calibration train.txt \
  "${little[@]}"
refused 'upcycle' "$moe" upcycle dense no --experts 4 "${little[@]}"
refused 'merge' "$moe" merge no --base dense --expert dense:p1 --expert dense-2:p2 --memory 5M
refused 'bench MODEL' "$moe" bench moe "${little[@]}"
for left in no no.gguf; do
  if [[ -e $left ]]; then
    echo "$left was left behind by what was refused"
    failed=1
  fi
done
exit "$failed"
