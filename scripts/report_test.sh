#!/usr/bin/env bash
# The report as readers meet it: trains a small model for a moment, writes its report and the
# pictures by `moe inspect`, and opens the page in headless Chromium, light and dark, on a screen
# and on a phone (tools/page_check.py says what must hold). Ends with status 77, "skipped", where
# there is no Chromium.
#   scripts/report_test.sh [OUT [MOE]]
# OUT: a folder for the report and the screenshots; MOE: path of moe (default build/release/moe).
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${1:-$work/out}
moe=$(realpath "${2:-build/release/moe}")
[ -x "$moe" ] || { echo "$moe is not there; build it or name another one" >&2; exit 2; }
python=/usr/bin/python3  # Debian's, which has Debian's python3-selenium
for need in chromium chromedriver; do
  command -v $need >/dev/null || {
    echo "$need is not there: scripts/deps.sh test installs it" >&2
    exit 77
  }
done
"$python" -c 'import selenium' 2>/dev/null || {
  echo "python3-selenium is not there: scripts/deps.sh test installs it" >&2
  exit 77
}

# quietly COMMAND...: what it says is seen only when it fails.
quietly() {
  "$@" >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    exit 1
  }
}

# Three domains that are always there: headers, tests and prose.
mkdir -p "$work/texts" "$out"
cat src/*/*.h >"$work/texts/headers.txt"
cat tests/*/*.cpp >"$work/texts/tests.txt"
cat docs/*.md >"$work/texts/prose.txt"
quietly "$moe" train --data "$work/texts" --eval-data "$work/texts/prose.txt" --eval-every 20 \
  --out "$work/model" --layers 3 --width 64 --heads 4 --experts 8 --top-k 2 --expert-width 96 \
  --balance 0.01 --z-loss 0.001 --context 64 --batch 4 --steps 60 --seed 1
quietly "$moe" inspect "$work/model" --text "$work/texts" --tokens 4096 \
  --html "$out/report.html" --pictures "$out/pictures"
"$moe" inspect "$work/model" --text "$work/texts" --tokens 4096 \
  --html "$work/again.html" --pictures "$work/again" >/dev/null 2>&1
cmp "$out/report.html" "$work/again.html"
diff -r "$out/pictures" "$work/again"

bytes=$(stat -c %s "$out/report.html")
[ "$bytes" -lt 1500000 ] || {
  echo "the report of a small model takes $bytes bytes" >&2
  exit 1
}
"$python" tools/page_check.py "$out/report.html" "$out/screenshots"
# Each picture is drawn by a browser as an image: well-formed and of the size it says.
"$python" tools/page_check.py --pictures "$out/pictures" "$out/screenshots"
# The page of two models held against each other: this one and its quantised twin.
quietly "$moe" convert "$work/model" "$work/twin.gguf" --quant q8_0
quietly "$moe" compare "$work/model" "$work/twin.gguf" --text "$work/texts/prose.txt" \
  --windows 20 --prompt 32 --tokens 8 --html "$out/comparison.html"
"$python" tools/page_check.py "$out/comparison.html" "$out/screenshots" \
  --expect compared decode_rate drift same_choices load
# The page of a server that is running.
"$python" tools/served_page_check.py "$moe" "$work/model" "$out/screenshots"
echo "report: $bytes bytes, $(find "$out/pictures" -name '*.svg' | wc -l) pictures"
