#!/usr/bin/env bash
# Runs every command of README.md and docs/tour.md, in order, in a clean folder, and compares the
# outputs that the documents mark as checked (tools/run_documents.py says how).
#   scripts/tour_test.sh           with a small model trained here for seconds on texts of this
#                                  repository, in place of the quickstart's
#   scripts/tour_test.sh FOLDER    with FOLDER/out/tiny and FOLDER/data/corpus, such as a checkout
#                                  in which the quickstart has run
# SHOW=1 prints what each block of commands prints, too. BUILD=a build folder with moe in it
# (default build/release). SmolLM2 is taken from ${MOE_CACHE:-~/.cache/moe.cpp}, and fetched where
# it is not there.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly documents=(README.md docs/tour.md)
build=$(realpath -m "${BUILD:-build/release}")
[ -x "$build/moe" ] || {
  echo "$build/moe is not built: run cmake --preset release && cmake --build --preset release," \
    "or set BUILD" >&2
  exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. scripts/checks.sh

# What a clone has, and out/ and data/ of its own.
checkout() {
  local folder=$1 entry
  mkdir -p "$folder/out" "$folder/build"
  for entry in $(git ls-files | cut -d/ -f1 | sort -u); do
    ln -s "$PWD/$entry" "$folder/$entry"
  done
  ln -s "$build" "$folder/build/release"
}

# A text for each name that the documents have of the corpus, from files at hand: no two of the same
# text, which would be held out together.
make_corpus() {
  local folder=$1 name sources
  mkdir -p "$folder/train" "$folder/valid"
  cat docs/[a-q]*.md >"$folder/train/stories.txt"
  cat docs/[r-z]*.md >"$folder/valid/stories.txt"
  for name in $(grep -ohE 'data/corpus/(train|valid)/[a-z]+\.txt' "${documents[@]}" |
    sed 's|.*/||; s|\.txt||' | sort -u); do
    [ "$name" != stories ] || continue
    case $name in
      german) sources=src/text ;;
      python) sources=src/hub ;;
      *) sources=src/$name ;;  # a document names another domain: say here what stands in for it
    esac
    cat $sources/[a-m]*.cpp >"$folder/train/$name.txt"
    cat $sources/[n-t]*.cpp | sed -n 1,500p >"$folder/valid/$name.txt"
  done
}
runs_every_command() {
  python3 tools/run_documents.py ${SHOW:+--show} "$work/checkout" "${documents[@]}"
}

# The test of the test: each of these documents must be refused, with this in what is said.
finds() {
  local said=$1 text=$2 folder=$work/broken code=0
  rm -rf "$folder"
  mkdir -p "$folder/out"
  printf '%s\n' "$text" >"$folder/broken.md"
  python3 tools/run_documents.py "$folder" "$folder/broken.md" >"$work/said" 2>&1 || code=$?
  [ "$code" = 1 ] || {
    echo "ended with status $code"
    cat "$work/said"
    return 1
  }
  has -F -- "$said" "$work/said"
}

fence='```'
check 'a command that fails is found' finds "broken.md:4: ended with status 2: $build/moe score" "
${fence}sh
echo fine
$build/moe score --text
$fence"
check 'a failure in the middle of a pipe is found' finds 'broken.md:3: ended with status 1' "
${fence}sh
false | cat
$fence"
check 'an output that is another is found' finds '+st-moe' "
${fence}sh
echo st-moe
$fence
<!-- checked -->
$fence
switch
$fence"
check 'a checked output without commands is found' finds 'no commands that were run' "
${fence}sh
true
$fence
<!-- not run: it needs a network -->
${fence}sh
false
$fence
<!-- checked -->
$fence
$fence"
check 'commands that are not marked as such are found' finds 'fence them as' "
$fence
moe train
$fence"
check 'a file left outside out/ is found' finds 'write left.txt' "
${fence}sh
echo >out/right.txt
echo >left.txt
$fence"
check '&& is refused' finds 'hides a failure' "
${fence}sh
false && true
$fence"

checkout "$work/checkout"
if [ $# -gt 0 ]; then
  mkdir -p "$work/checkout/data"
  cp -r "$1/data/corpus" "$work/checkout/data/corpus"
  cp -r "$1/out/tiny" "$work/checkout/out/tiny"
else
  make_corpus "$work/checkout/data/corpus"
  "$build/moe" train --preset tiny --data "$work/checkout/data/corpus/train" \
    --eval-data "$work/checkout/data/corpus/valid" --out "$work/checkout/out/tiny" \
    --steps 20 2>"$work/train.log" || {
    cat "$work/train.log" >&2
    exit 1
  }
fi
check 'every command of README.md and docs/tour.md' runs_every_command
if [ "$failed" = 0 ]; then cat "$work/out"; fi
summary
