#!/usr/bin/env bash
# Kills training with SIGKILL at 40 moments, 20 of them while a checkpoint is being written, kills
# a run of preference pairs and one of adapters again and again, and fills the disk once. After each
# the folder must hold a model that loads, and --resume must go on.
# A kill counts as "while a checkpoint is being written" when the unfinished file is still there
# after the process is gone.
#   scripts/kill_test.sh [path of moe, default build/release/moe]
set -euo pipefail
cd "$(dirname "$0")/.."
moe=$(realpath "${1:-build/release/moe}")
[ -x "$moe" ] || { echo "$moe is not there; build it or name another one" >&2; exit 2; }

work=$(mktemp -d)
mounted=
child=
cleanup() {
  [ -z "$child" ] || kill -9 "$child" 2>/dev/null || true
  [ -z "$mounted" ] || umount "$mounted" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

passed=0
failed=0
pass() { passed=$((passed + 1)); }
miss() {
  failed=$((failed + 1))
  echo "FAILED: $*" >&2
}

cat src/*/*.h >"$work/text.txt"
out=$work/out
# A model whose checkpoint takes longer to write than a step to compute.
options=(
  --data "$work/text.txt" --layers 2 --width 128 --heads 4 --experts 16 --top-k 2
  --expert-width 384 --context 32 --batch 1 --schedule constant --warmup 0 --save-every 1 --seed 3
  --threads 1
)
launch() {
  "$moe" train "${options[@]}" --out "$out" --steps 1000000 "$@" >"$work/log" 2>&1 &
  child=$!
}
# Ends the child by SIGKILL; fails when it had already ended by itself.
slay() {
  local status=0
  kill -9 "$child" 2>/dev/null || true
  wait "$child" 2>/dev/null || status=$?
  child=
  [ "$status" -eq 137 ]
}
loads() {
  "$moe" score "$1" --text "$work/text.txt" --window 64 --windows 1 --json >"$work/score" 2>&1
}
unfinished() { compgen -G "$out/.$1.tmp-*" >/dev/null; }
# Sleeps for $1 to $2 milliseconds.
pause() {
  local ms=$(($1 + RANDOM % ($2 - $1)))
  sleep "$((ms / 1000)).$(printf '%03d' $((ms % 1000)))"
}
check() {
  if loads "$out"; then
    pass
  else
    miss "$1: the model does not load: $(tail -n 1 "$work/score")"
  fi
}

# Waits for a file whose name matches $1 to be under way, at most ten seconds.
await() {
  local until=$((SECONDS + 10))
  while ! unfinished "$1"; do
    [ $SECONDS -lt $until ] && kill -0 "$child" 2>/dev/null || return 1
  done
}

launch
while [ ! -e "$out/model.safetensors" ]; do
  kill -0 "$child" 2>/dev/null || {
    cat "$work/log" >&2
    echo "0 passed, 1 failed"
    exit 1
  }
  sleep 0.02
done

# Half of the kills while a file is written, the moments' and the model's by turns.
in_save=0
tries=0
while [ "$in_save" -lt 20 ] && [ "$tries" -lt 200 ]; do
  tries=$((tries + 1))
  [ -n "$child" ] || launch --resume
  target='trainer-*'
  [ $((in_save % 2)) -eq 0 ] || target='model.safetensors'
  await "$target" || true
  pause 0 15
  if ! slay; then
    miss "resuming ended by itself: $(tail -n 1 "$work/log")"
    break
  fi
  # Where the save was over before the kill: not counted, but the next launch resumes from it all
  # the same.
  unfinished '*' || continue
  in_save=$((in_save + 1))
  check "kill $in_save while $target was written"
done
[ "$in_save" -eq 20 ] || miss "only $in_save kills fell into a save"

for moment in $(seq 20); do
  launch --resume
  pause 200 1800
  if ! slay; then
    miss "resuming ended by itself: $(tail -n 1 "$work/log")"
    break
  fi
  check "kill at a random moment $moment"
done

# What was killed forty times goes on to its end, and its metrics hold each step once.
done_steps=$(tail -n 1 "$out/metrics.jsonl" | grep -o '"step":[0-9]*' | cut -d: -f2)
last=$((done_steps + 3))
if "$moe" train "${options[@]}" --out "$out" --steps "$last" --resume >"$work/log" 2>&1; then
  pass
else
  miss "the last resume: $(tail -n 1 "$work/log")"
fi
steps=$(grep -o '"step":[0-9]*' "$out/metrics.jsonl" | cut -d: -f2)
if [ "$steps" = "$(seq "$last")" ]; then
  pass
else
  miss "metrics.jsonl does not hold steps 1 to $last once each"
fi
if unfinished '*'; then miss "unfinished files are left"; else pass; fi

# Preference pairs: what the model that they start from says of them is taken when the run begins,
# and stands in the checkpoint alone. A run that is killed ends with the bits of one that is not.
# Adapters with rows of tokens likewise, whose weights are read again from the model.
for i in $(seq 40); do
  echo "{\"prompt\": \"what is $i?\", \"chosen\": \"it is $((i % 7)).\", \"rejected\": \"no\"}"
done >"$work/pairs.jsonl"
started=$out
resumed_kills=0
steps_told() { if [ -e "$out/metrics.jsonl" ]; then wc -l <"$out/metrics.jsonl"; else echo 0; fi; }
# killed_and_whole NAME FILE OPTIONS...: FILE is the commit of a checkpoint.
killed_and_whole() {
  local name=$1 file=$2 kills=0 tries=0 before
  shift 2
  local own=(--from "$started" --context 32 --batch 1 --warmup 0 --save-every 1 --seed 3
    --threads 1 --steps 120 --no-report "$@")
  out=$work/$name
  if ! "$moe" train "${own[@]}" --out "$out.whole" >"$work/log" 2>&1; then
    miss "$name: $(tail -n 1 "$work/log")"
    return 0
  fi
  while [ "$kills" -lt 5 ] && [ "$tries" -lt 10 ]; do
    tries=$((tries + 1))
    "$moe" train "${own[@]}" --out "$out" --resume >"$work/log" 2>&1 &
    child=$!
    before=$(steps_told)
    # some steps further, so that it gets on however fast the machine is
    until [ "$(steps_told)" -gt $((before + 3)) ] || ! kill -0 "$child" 2>/dev/null; do
      sleep 0.01
    done
    pause 0 30
    slay || break
    [ -e "$out/$file" ] || continue
    kills=$((kills + 1))
    check "$name: kill $kills"
  done
  resumed_kills=$((resumed_kills + kills))
  if [ "$kills" -ge 2 ]; then pass; else miss "$name: only $kills kills found a checkpoint"; fi
  if "$moe" train "${own[@]}" --out "$out" --resume >"$work/log" 2>&1 &&
    cmp -s "$out/$file" "$out.whole/$file"; then
    pass
  else
    miss "$name: it did not end as one that nobody killed: $(tail -n 1 "$work/log")"
  fi
}
killed_and_whole pairs model.safetensors --data "$work/pairs.jsonl"
killed_and_whole tokens adapter_model.safetensors --data "$work/pairs.jsonl" --tune lora \
  --tune-tokens i t

# The disk full: a small file system, or a limit on the size of files where none can be mounted.
full=$work/full
mkdir "$full"
run_full() { "$moe" train "${options[@]}" --out "$full/out" "$@" >"$work/log" 2>&1; }
if mount -t tmpfs -o size=256m none "$full" 2>/dev/null; then mounted=$full; fi
if run_full --steps 2; then
  pass
else
  miss "training before the disk is full: $(tail -n 1 "$work/log")"
fi
before=$(sha256sum "$full/out/model.safetensors")
status=0
if [ -n "$mounted" ]; then
  dd if=/dev/zero of="$full/filler" bs=64k >/dev/null 2>&1 || true
  truncate -s -1M "$full/filler"
  run_full --steps 4 --resume || status=$?
else
  (
    trap '' XFSZ
    ulimit -f 1024
    run_full --steps 4 --resume
  ) || status=$?
fi
if [ "$status" -eq 1 ]; then
  pass
else
  miss "a full disk ended with exit code $status instead of 1"
fi
if [ "$(grep -c 'cannot write' "$work/log")" -eq 1 ]; then
  pass
else
  miss "a full disk is not told in one line: $(cat "$work/log")"
fi
if [ "$(sha256sum "$full/out/model.safetensors")" = "$before" ] && loads "$full/out"; then
  pass
else
  miss "a full disk harmed the older checkpoint"
fi
if compgen -G "$full/out/.*.tmp-*" >/dev/null; then
  miss "a full disk left an unfinished file"
else
  pass
fi
rm -f "$full/filler"
if run_full --steps 4 --resume; then
  pass
else
  miss "resuming after space was made: $(tail -n 1 "$work/log")"
fi

filled=$([ -n "$mounted" ] && echo a full file system || echo a limit on the size of files)
echo "kills while a checkpoint was written: $in_save (of $tries tries);" \
  "at random moments: 20; of pairs and adapters: $resumed_kills; disk full: $filled"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
