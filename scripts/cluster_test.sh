#!/usr/bin/env bash
# Several machines, as far as one can be them: hosts in network namespaces with a link each to one
# switch, Open MPI over TCP between them. The same losses in every layout, and what happens when a
# process is killed or stopped, a link is cut or slow, a disk is full; with Open MPI 5 also that
# --elastic goes on. By hand, as root; needs what scripts/deps.sh mpi installs and iproute2.
#   scripts/cluster_test.sh [TRIALS [CHECK...]]   so many random moments of each fault (default 20);
#                                                 only these of the checks at the end of this file
# MOE=the command (default build/release/moe), MPIRUN=the mpirun of the MPI it was built with.
set -euo pipefail
cd "$(dirname "$0")/.."
trials=${1:-20}
wanted=("${@:2}")
moe=$(realpath "${MOE:-build/release/moe}")
mpirun=${MPIRUN:-mpirun}
hosts=4
work=$(mktemp -d)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
if "$mpirun" --version | grep -q ' 4\.'; then
  can_heal=false
  launching=(--mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include eth0)
else
  can_heal=true
  launching=(--with-ft ulfm --prtemca plm_ssh_agent "$work/agent" --prtemca prte_if_include eth0)
fi
. scripts/checks.sh

readonly kMoment=4    # seconds: a fault comes so long after the second step at most
readonly kPatience=30 # seconds until everybody must know of it

take_down() {
  local h
  for ((h = 0; h < hosts; ++h)); do
    ip netns pids "moe$h" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
    ip netns delete "moe$h" 2>/dev/null || true
  done
  for ((h = 0; h < hosts; ++h)); do ip link delete "moeport$h" 2>/dev/null || true; done
  ip link delete moeswitch 2>/dev/null || true
  umount "$work/disk" 2>/dev/null || true
  rm -rf "$work"
}
trap take_down EXIT

set_up() {
  local h
  ip link add moeswitch type bridge
  ip link set moeswitch up
  for ((h = 0; h < hosts; ++h)); do
    ip netns add "moe$h"
    ip link add "moeport$h" type veth peer name eth0 netns "moe$h"
    ip link set "moeport$h" master moeswitch up
    ip -n "moe$h" address add "10.77.0.$((h + 1))/24" dev eth0
    ip -n "moe$h" link set eth0 up
    ip -n "moe$h" link set lo up
    echo "10.77.0.$((h + 1)) slots=1" >>"$work/hosts"
  done
  # How mpirun reaches a host: in place of ssh.
  cat >"$work/agent" <<'AGENT'
#!/bin/sh
host=moe$((${1##*.} - 1))
shift
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
AGENT
  chmod +x "$work/agent"
  head -c 200000 README.md docs/*.md >"$work/text.txt" 2>/dev/null
}

# on_hosts P WORDS...: mpirun on the first P hosts.
on_hosts() {
  local processes=$1
  shift
  ip netns exec moe0 unshare --uts sh -c 'hostname moe0; exec "$@"' sh \
    "$mpirun" --hostfile "$work/hosts" -n "$processes" --map-by node --bind-to none \
    "${launching[@]}" --mca btl_tcp_if_include eth0 --mca btl self,tcp --mca pml ob1 "$@"
}

train_words() {
  printf '%s\n' train --data "$work/text.txt" --out "$1" --steps "$2" --width 32 --heads 2 \
    --layers 2 --experts 8 --top-k 2 --expert-width 32 --context 64 --batch 1 --accumulate 4 \
    --threads 1 --warmup 1 --schedule constant --no-report "${@:3}"
}

losses() {
  python3 -c 'import json, sys
for line in open(sys.argv[1] + "/metrics.jsonl"): print(json.loads(line)["ce"])' "$1"
}

# Recipes whose tokens choose, and drop nothing; and what an option must say for them: a balance
# loss over the counts so far is another in another number of processes (docs/cluster.md).
dropless_recipes() {
  "$moe" recipes --json | python3 -c '
import json, sys
for recipe in json.load(sys.stdin):
    stages, name = recipe["stages"], recipe["name"]
    if not stages or stages["capacity"] != "dropless" or name == "custom":
        continue
    if stages["select"]["type"] != "expert_choice":
        running = "running" in json.dumps(stages["losses"])
        print(name + " --balance-over micro_batch" * running)'
}

# compare_runs ALONE RUN NAME: of their 20 steps the largest difference of a loss, which is 1e-5 at
# most, and how many loads of an expert in a layer differ.
compare_runs() {
  python3 -c '
import json, sys
alone, run = ([json.loads(line) for line in open(out + "/metrics.jsonl")] for out in sys.argv[1:3])
most = max(abs(a["ce"] - b["ce"]) for a, b in zip(alone, run, strict=True))
loads = [[x for s in of for layer in s["layers"] for x in layer["load"]] for of in (alone, run)]
other = sum(abs(a - b) > 1e-9 for a, b in zip(*loads, strict=True))
print(f"{sys.argv[3]}: {most:.1e}, {other} of {len(loads[0])} loads differ")
sys.exit(len(run) != 20 or most > 1e-5)' "$@"
}

# same_losses LAUNCH: every such recipe in every layout, started by LAUNCH P WORDS...
same_losses() {
  local launch=$1 recipes recipe words layout compared=$work/compared
  mapfile -t recipes < <(dropless_recipes)
  : >"$compared"
  for recipe in "${recipes[@]}"; do
    for layout in '1 1' '2 1' '2 2' '4 1' '4 2' '4 4'; do
      set -- $layout
      # shellcheck disable=SC2086
      mapfile -t words < <(train_words "$work/on$1-$2" 20 --recipe $recipe --expert-parallel "$2")
      if [ "$1" = 1 ]; then "$moe" "${words[@]}"; else $launch "$1" "$moe" "${words[@]}"; fi \
        >"$work/log" 2>&1 || { cat "$work/log"; return 1; }
      compare_runs "$work/on1-1" "$work/on$1-$2" "${recipe%% *} on $1, experts over $2" >>"$compared" ||
        { tail -n 1 "$compared"; return 1; }
    done
    rm -rf "$work"/on?-?
  done
  echo "${#recipes[@]} recipes in 5 layouts; the farthest:" \
    "$(sort -t: -k2 -g "$compared" | tail -n 1)"
}

in_shared_memory() {
  local processes=$1
  shift
  "$mpirun" --oversubscribe --bind-to none -n "$processes" "$@"
}

same_losses_over_tcp() { same_losses on_hosts; }
same_losses_in_shared_memory() { same_losses in_shared_memory; }

# Of a run: the process ids of its ranks, in no order.
ranks_of() { pgrep -f -- "^$moe train .*--out $1 " || true; }

wait_for_steps() {
  local i
  for ((i = 0; i < 600; ++i)); do
    [ "$(wc -l 2>/dev/null <"$1/metrics.jsonl" || echo 0)" -lt 2 ] || return 0
    sleep 0.1
  done
  cat "$work/log"
  return 1
}

# hurt_at_random HURT OUT STEPS WORDS...: starts training on 4 hosts and calls HURT OUT at a random
# moment. Sets `launcher`, the process id of mpirun, and `began`, the second of the hurt.
hurt_at_random() {
  local hurt=$1 out=$2 words
  mapfile -t words < <(train_words "${@:2}")
  on_hosts 4 "$moe" "${words[@]}" >"$work/log" 2>&1 &
  launcher=$!
  wait_for_steps "$out"
  sleep "$(awk -v most=$kMoment -v seed=$RANDOM 'BEGIN {srand(seed); print rand() * most}')"
  began=$SECONDS
  "$hurt" "$out"
}

# fault_at_random NAME HURT EXPECTED: trains on 4 hosts, calls HURT OUT at a random moment, and sees
# that all processes end in time, that what they say matches EXPECTED, and that the checkpoint is
# whole and goes on.
fault_at_random() {
  local name=$1 hurt=$2 expected=$3 trial out words launcher began took worst=0 spread
  for ((trial = 0; trial < trials; ++trial)); do
    out=$work/$name$trial
    spread=$((trial % 2 == 0 ? 1 : 4))
    hurt_at_random "$hurt" "$out" 1000000 --expert-parallel $spread --save-every 3
    while [ -n "$(ranks_of "$out" | while read -r p; do
      [ "$(ps -o stat= -p "$p" | cut -c1)" = T ] || echo "$p"
    done)" ]; do
      if [ $((SECONDS - began)) -gt $kPatience ]; then
        echo "$name, trial $trial: still running after $kPatience s"
        cat "$work/log"
        return 1
      fi
      sleep 0.2
    done
    took=$((SECONDS - began))
    [ $took -le $worst ] || worst=$took
    heal
    pkill -KILL -f -- "--out $out " 2>/dev/null || true
    wait $launcher 2>/dev/null || true
    grep -Eq "$expected" "$work/log" || { echo "$name, trial $trial:"; cat "$work/log"; return 1; }
    [ -e "$out/model.safetensors" ] || { echo "$name, trial $trial: no checkpoint"; return 1; }
    local steps
    steps=$(python3 -c 'import json, struct, sys
f = open(sys.argv[1], "rb"); n = struct.unpack("<Q", f.read(8))[0]
print(json.loads(f.read(n))["__metadata__"]["step"])' "$out/model.safetensors")
    mapfile -t words < <(train_words "$out" $((steps + 2)) --resume)
    "$moe" "${words[@]}" >"$work/log" 2>&1 || { cat "$work/log"; return 1; }
    rm -rf "$out"
  done
  echo "$trials moments, all had ended after $worst s at most"
}

pick() { ranks_of "$1" | shuf -n 1; }
kill_one() { kill -KILL "$(pick "$1")"; }
stop_one() { kill -STOP "$(pick "$1")"; }
cut_one() { ip link set "moeport$((RANDOM % hosts))" down; }
# None goes on without the host of mpirun, which is the first.
cut_other() { ip link set "moeport$((1 + RANDOM % (hosts - 1)))" down; }
# And forgets whom a host looked for in vain, which would be answered for another second.
heal() {
  local h
  for ((h = 0; h < hosts; ++h)); do ip link set "moeport$h" up; done
  for ((h = 0; h < hosts; ++h)); do ip -n "moe$h" neighbour flush all; done
}

killed() { fault_at_random killed kill_one 'exited on signal 9|is lost'; }
stopped() { fault_at_random stopped stop_one 'moe: process [0-9] of 4 \(moe[0-9]\): .*step [0-9]+: .*process [0-9] \(moe[0-9]\) is lost'; }
cut_off() { fault_at_random cut_off cut_one 'moe: process [0-9] of 4 \(moe[0-9]\): .*step [0-9]+: .*process [0-9] \(moe[0-9]\) is lost'; }

# Runs of 4 hosts of which one is hurt at a random moment: it ends well all the same, with the losses
# of a run that nobody hurt. (Not to the last: sooner or later two experts of a token lie so close
# that another order of sums chooses the other one, and from there on the runs part.)
goes_on() {
  local trial out words hurt spread launcher began took worst=0
  mapfile -t words < <(train_words "$work/unhurt" 200)
  "$moe" "${words[@]}" 2>"$work/log"
  for ((trial = 0; trial < trials; ++trial)); do
    out=$work/elastic$trial
    spread=$((trial % 2 == 0 ? 1 : 2))
    hurt=$(echo kill_one stop_one cut_other | cut -d' ' -f$((trial % 3 + 1)))
    hurt_at_random $hurt "$out" 200 --expert-parallel $spread --save-every 10 --elastic
    while ! grep -q '^done: 200 steps' "$work/log"; do
      if [ $((SECONDS - began)) -gt 120 ]; then
        echo "$hurt, trial $trial: not done after 120 s"
        cat "$work/log"
        return 1
      fi
      sleep 0.2
    done
    took=$((SECONDS - began))
    [ $took -le $worst ] || worst=$took
    heal
    sleep 2
    pkill -KILL -f -- "--out $out " 2>/dev/null || true
    wait $launcher 2>/dev/null || true
    echo "$hurt, experts over $spread: done $took s later;" \
      "$(grep -o 'going on in.*\|resuming .* at step.*' "$work/log" | tr '\n' ' ')"
    paste <(losses "$work/unhurt") <(losses "$out") |
      awk -v at="$(grep -o 'at step [0-9]*' "$work/log" | tail -n 1 | cut -d' ' -f3)" '
        {d = $1 > $2 ? $1 - $2 : $2 - $1; if (d > most) most = d; if (NR <= at + 10) near = most}
        END {printf "  %d steps, largest difference %.1e up to 10 steps after, %.1e in all\n",
                    NR, near, most
             exit !(NR == 200 && near <= 1e-5 && most <= 0.1)}' || { cat "$work/log"; return 1; }
    rm -rf "$out"
  done
  echo "$trials moments, all runs done $worst s later at most"
}

slow_link_changes_nothing() {
  local words
  mapfile -t words < <(train_words "$work/slow" 20 --expert-parallel 4)
  # netem would delay too, but not every kernel has it
  ip netns exec moe2 tc qdisc add dev eth0 root tbf rate 20mbit burst 16kb latency 400ms
  on_hosts 4 "$moe" "${words[@]}" 2>"$work/log" || { cat "$work/log"; return 1; }
  ip netns exec moe2 tc qdisc del dev eth0 root
  mapfile -t words < <(train_words "$work/quick" 20 --expert-parallel 4)
  on_hosts 4 "$moe" "${words[@]}" 2>"$work/log" || { cat "$work/log"; return 1; }
  diff <(losses "$work/slow") <(losses "$work/quick")
}

# Checkpoints of 1.3 MB on a disk that has room for one and a half.
full_disk_ends_all_in_one_line() {
  local words
  mkdir "$work/disk"
  mount -t tmpfs -o size=1200k tmpfs "$work/disk"
  mapfile -t words < <(train_words "$work/disk/out" 1000 --save-every 1)
  if on_hosts 4 "$moe" "${words[@]}" >"$work/log" 2>&1; then return 1; fi
  grep -a '^moe: ' "$work/log"
  [ "$(grep -ac '^moe: process 0 of 4 (moe0): ' "$work/log")" = 1 ]
}

set_up
checks=(same_losses_over_tcp same_losses_in_shared_memory slow_link_changes_nothing
  full_disk_ends_all_in_one_line killed stopped cut_off)
if $can_heal; then checks+=(goes_on); fi
for one in "${checks[@]}"; do
  [[ ${#wanted[@]} -gt 0 && " ${wanted[*]} " != *" $one "* ]] || check "${one//_/ }" "$one"
done
summary
