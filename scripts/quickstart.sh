#!/usr/bin/env bash
# From a fresh clone on Debian 12 or 13 to a small Mixture-of-Experts model of your own that writes:
# installs, builds, gathers the default corpus, trains, shows what the experts specialise in,
# generates.
#   scripts/quickstart.sh [MINUTES]    in all, 10 unless you say otherwise; training takes what the
#                                      other steps leave of them, at least 2 and at most 5
# Ctrl-C ends it at any step. Run it again and it goes on from where it stands; rm -rf out/tiny to
# train anew.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly total=${1:-10}
[[ $total =~ ^[1-9][0-9]{0,3}$ ]] || { sed -n 2,8p "$0" >&2; exit 2; }
readonly began=$SECONDS steps=6 after=30  # seconds that the steps behind the training take
now=0
clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }
step() {
  now=$((now + 1))
  printf '\n[%s of %s] step %d of %d: %s\n' \
    "$(clock $((SECONDS - began)))" "$(clock $((60 * total)))" $now $steps "$*" >&2
}
# What runs gets the same signal and ends first; then this says so.
stopped() {
  printf '\nstopped at step %d of %d; scripts/quickstart.sh goes on from there\n' $now $steps >&2
  exit "$1"
}
trap 'stopped 130' INT
trap 'stopped 143' TERM

step "packages"
scripts/deps.sh build

step "build"
# A folder already configured keeps its options: the tests built there by scripts/test.sh stay.
[ -f build/release/build.ninja ] ||
  cmake --preset release -DMOE_TESTS=OFF -DMOE_BENCH=OFF -DMOE_TOGETHER=ON >/dev/null
# The command and all that cmake --install asks for.
cmake --build build/release --parallel "$(scripts/jobs.sh)" --target moe_package
moe=build/release/moe

step "corpus"
scripts/corpus.sh

left=$((60 * total - (SECONDS - began) - after))
[ $left -le 300 ] || left=300
if [ $left -lt 120 ]; then
  echo "the steps so far took most of the $total minutes; training gets 2 all the same" >&2
  left=120
fi
step "train the preset tiny for $(clock $left) minutes into out/tiny"
"$moe" train --preset tiny --minutes "$((left / 60)).$((left % 60 * 10 / 60))" \
  --data data/corpus/train --eval-data data/corpus/valid --out out/tiny --resume

step "what the experts specialise in"
"$moe" inspect out/tiny --text data/corpus/valid --tokens 20000 --pictures out/tiny/pictures

step "generate"
for prompt in 'Once upon a time' 'Mr. Darcy' 'Wenn Sie die'; do
  printf '\n--- moe generate out/tiny -p "%s" -n 60 --temperature 0.7 --seed 1\n' "$prompt"
  "$moe" generate out/tiny -p "$prompt" -n 60 --temperature 0.7 --seed 1
done

printf '\n[%s] done; the report, a page for your browser: %s\n' \
  "$(clock $((SECONDS - began)))" "$PWD/out/tiny/report.html" >&2
cat >&2 <<'END'
Next:
  build/release/moe generate out/tiny -p "template <typename" -n 80 --temperature 0.5  code from the same model
  build/release/moe score    out/tiny --text data/corpus/valid/stories.txt           bits per byte on text it has not seen
  build/release/moe inspect  out/tiny                                                parameters total and active, FLOPs, memory
  build/release/moe train    --preset tiny --data YOUR_FOLDER --out out/mine         your own text
  build/release/moe --help
END
