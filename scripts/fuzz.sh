#!/usr/bin/env bash
# Builds every fuzzer of tests/fuzz (scripts/sanitized.sh) and runs each for at least RUNS executions
# (default 20000) from valid files, with a fixed seed, so that the same sources give the same run.
# Assertions stay on. Further seeds of a fuzzer NAME may lie in tests/fuzz/seeds/NAME.
#   scripts/fuzz.sh [RUNS] [NAME...]
set -euo pipefail
cd "$(dirname "$0")/.."

runs=${1:-20000}
[[ $runs =~ ^[0-9]+$ ]] || { sed -n 2,5p "$0" >&2; exit 2; }
shift $(($# > 0 ? 1 : 0))
build=build/asan
scripts/sanitized.sh fuzzers

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$build/tests/fuzz/fuzz_seeds" "$work/seeds"

names=("$@")
[ ${#names[@]} -gt 0 ] || for file in tests/fuzz/*_fuzz.cpp; do
  names+=("$(basename "$file" _fuzz.cpp)")
done
# fuzz NAME: one line of what came of it.
fuzz() {
  local name=$1 log=$work/$1.log wanted=$runs code=0 executions
  mkdir -p "$work/seeds/$name" "$work/found/$name" "$build/crashes"
  [ ! -d "tests/fuzz/seeds/$name" ] || cp -r "tests/fuzz/seeds/$name/." "$work/seeds/$name/"
  case $name in
    # Each run makes a tokenizer with its pattern: 250 a second.
    ggml_vocab) wanted=$((runs / 5)) ;;
    # What people download from others: 100,000 by default, thousands a second.
    gguf | gguf_config | packed) wanted=$((runs * 5)) ;;
  esac
  # At least one more run than seeds is made in any case: libFuzzer counts reading the seeds as
  # runs.
  UBSAN_OPTIONS=print_stacktrace=1 "$build/tests/fuzz/${name}_fuzz" -runs="$wanted" -seed=1 \
    -timeout=20 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 \
    -artifact_prefix="$build/crashes/$name-" "$work/found/$name" "$work/seeds/$name" \
    >"$log" 2>&1 || code=$?
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  if [ "$code" = 0 ] && [ "${executions:-0}" -ge "$wanted" ]; then
    echo "$name: $executions executions, no crash"
    return
  fi
  grep -v '^#[0-9]*\s\(NEW\|REDUCE\|pulse\)' "$log" | tail -n 40 >&2
  echo "$name: failed with status $code after ${executions:-0} executions;" \
    "the input lies in $build/crashes"
  touch "$work/failed-$name"
}
export -f fuzz
export work runs build
printf '%s\n' "${names[@]}" | xargs -P "$(scripts/jobs.sh 2500)" -I{} bash -c 'fuzz {}'
failed=$(find "$work" -maxdepth 1 -name 'failed-*' | wc -l)
passed=$((${#names[@]} - failed))
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
