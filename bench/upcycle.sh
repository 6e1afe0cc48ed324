#!/usr/bin/env bash
# Does upcycling pay? A small dense model is trained on the default corpus, upcycled, and both go on
# for the same minutes on the same text, each with a whole schedule of its own. Prints the held-out
# loss of the dense model, of what it became by going on, and of what the upcycled model became.
#   bench/upcycle.sh [DENSE_MINUTES [MINUTES]]     default 3 and 3
# What a step costs decides how many there are, so the machine should be quiet.
# BIN=path of moe (default build/release/moe); CORPUS=folder of scripts/corpus.sh;
# OUT=folder for the models (default: a temporary one, removed);
# UPCYCLE=flags of moe upcycle (default: 8 copies of 2 shards, of which a token takes 2: as many
# products as the dense FFN has); LR=peak of the continuations.
set -euo pipefail
cd "$(dirname "$0")/.."
first=${1:-3} more=${2:-3}
moe=${BIN:-build/release/moe}
corpus=${CORPUS:-data/corpus}
[ -d "$corpus/train" ] || scripts/corpus.sh "$corpus" >&2
if [ -z "${OUT:-}" ]; then
  OUT=$(mktemp -d)
  trap 'rm -rf "$OUT"' EXIT
fi
mkdir -p "$OUT"
read -ra upcycle <<<"${UPCYCLE:---experts 16 --granularity 2 --top-k 2}"

run() { # LOG COMMAND...: its words are seen only when it fails
  local log=$1
  shift
  "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
}
train() { # FOLDER FLAGS...
  local out=$1
  shift
  rm -rf "$out"
  run "$out.log" "$moe" train --data "$corpus/train" --eval-data "$corpus/valid" \
    --context 256 --batch 16 --no-report --out "$out" "$@"
}
field() { sed -n '$s/.*"'"$2"'":\([-+.0-9e]*\).*/\1/p' "$1/metrics.jsonl" | grep .; }
result() { # NAME FOLDER
  local step seconds ce
  step=$(field "$2" step)
  seconds=$(field "$2" seconds)
  ce=$(field "$2" eval_ce)  # apart from printf, which would print 0 for one that is not there
  printf '%-18s %7d %9.0f %12.4f\n' "$1" "$step" "$seconds" "$ce"
}

printf '%-18s %7s %9s %12s\n' model steps seconds nats/token
train "$OUT/dense" --minutes "$first" --recipe dense --architecture olmoe \
  --layers 4 --width 128 --heads 4 --dense-width 384 --lr 3e-3
result dense "$OUT/dense"
rm -rf "$OUT/upcycled"
run "$OUT/upcycled.log" "$moe" upcycle "$OUT/dense" "$OUT/upcycled" "${upcycle[@]}"
for arm in dense upcycled; do
  train "$OUT/$arm-on" --minutes "$more" --from "$OUT/$arm" --lr "${LR:-2e-3}"
  result "$arm, gone on" "$OUT/$arm-on"
done
tail -n 2 "$OUT/upcycled.log"
