#!/usr/bin/env bash
# From a fresh clone on Debian 12 to a small Mixture-of-Experts model of your own that writes: installs, builds, gathers the default corpus, trains, shows what
# the experts took up, generates.
# Run it again and it goes on from where it stands; rm -rf out/tiny to train anew.
set -euo pipefail
cd "$(dirname "$0")/.."
began=$SECONDS
step() { printf '\n[%d:%02d] %s\n' $(((SECONDS - began) / 60)) $(((SECONDS - began) % 60)) "$*" >&2; }

step "1/6 packages"
scripts/deps.sh build

step "2/6 build"
# A folder already configured keeps its options: the tests built there by scripts/test.sh stay.
[ -f build/release/build.ninja ] || cmake --preset release -DMOE_TESTS=OFF -DMOE_BENCH=OFF >/dev/null
cmake --build build/release --parallel "$(nproc)" --target moe
moe=build/release/moe

step "3/6 corpus"
scripts/corpus.sh

step "4/6 train the preset tiny into out/tiny"
"$moe" train --preset tiny --data data/corpus/train --eval-data data/corpus/valid --out out/tiny --resume

step "5/6 what the experts took up"
"$moe" inspect out/tiny --text data/corpus/valid --tokens 20000 --pictures out/tiny/pictures

step "6/6 generate"
for prompt in 'Wenn Sie die ' 'template <typename '; do
  printf '\n--- moe generate out/tiny -p "%s" -n 200 --temperature 0.6 --seed 1\n' "$prompt"
  "$moe" generate out/tiny -p "$prompt" -n 200 --temperature 0.6 --seed 1
done

step "done; the report, a page for your browser: $PWD/out/tiny/report.html"
cat >&2 <<'END'
Next:
  build/release/moe generate out/tiny -p "Si vous " -n 200                           another language, the same model
  build/release/moe score    out/tiny --text data/corpus/valid/python.txt            bits per byte on text it has not seen
  build/release/moe inspect  out/tiny                                                parameters total and active, FLOPs, memory
  build/release/moe train    --preset tiny --data YOUR_FOLDER --out out/mine         your own text
  build/release/moe --help
END
