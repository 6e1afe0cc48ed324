#!/usr/bin/env bash
# Prints how many compilers to run at once: one a core, but no more than the free memory holds, that
# of a container with a limit too. MOE_JOBS=N decides instead.
#   cmake --build build/release --parallel "$(scripts/jobs.sh)"
#   scripts/jobs.sh MB     where a compiler takes more than usual, as with sanitizers
set -euo pipefail

each=${1:-900}  # MB that the largest file of a release build takes to compile, and some room
[[ $each =~ ^[1-9][0-9]*$ ]] || { sed -n 2,5p "$0" >&2; exit 2; }
if [ -n "${MOE_JOBS:-}" ]; then
  [[ $MOE_JOBS =~ ^[1-9][0-9]*$ ]] || {
    echo "jobs.sh: MOE_JOBS is '$MOE_JOBS'; give a number of compilers, such as 2" >&2
    exit 2
  }
  echo "$MOE_JOBS"
  exit
fi

free=$(($(awk '/^MemAvailable:/ {print $2}' /proc/meminfo) / 1024))

# within ROOT PATH LIMIT USED CACHED: a control group's limit holds for all below it; files that are
# only cached count as used, but give way.
within() {
  local group=$1$2 limit cached left
  while [ "${group#"$1"}" != "$group" ]; do
    limit=$(cat "$group/$3" 2>/dev/null || echo max)
    if [ "$limit" != max ]; then
      cached=$(awk -v name="$5" '$1 == name {print $2}' "$group/memory.stat")
      left=$(((limit - $(cat "$group/$4") + cached) >> 20))
      [ "$left" -ge "$free" ] || free=$left
    fi
    group=${group%/*}
  done
}
within /sys/fs/cgroup "$(sed -n 's/^0:://p' /proc/self/cgroup)" \
  memory.max memory.current inactive_file
within /sys/fs/cgroup/memory "$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)" \
  memory.limit_in_bytes memory.usage_in_bytes total_inactive_file

cores=$(nproc)
jobs=$((free / each))
[ "$jobs" -ge 1 ] || echo "jobs.sh: $free MB of memory are free, and compiling takes up to $each;" \
  "should the compiler be killed, free memory or add swap" >&2
[ "$jobs" -ge 1 ] || jobs=1
[ "$jobs" -le "$cores" ] || jobs=$cores
echo "$jobs"
