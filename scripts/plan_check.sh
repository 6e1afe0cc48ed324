#!/usr/bin/env bash
# What `moe plan` estimates against what `mpirun moe train` takes on this machine, for six layouts
# that it was not calibrated on (tools/plan_check.py). By hand, on a quiet machine: some five
# minutes.
#   scripts/plan_check.sh [PROCESSES]    default 2
# MOE=the command (default build/release/moe).
set -euo pipefail
cd "$(dirname "$0")/.."
moe=$(realpath "${MOE:-build/release/moe}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat README.md docs/*.md docs/internals/*.md src/*/*.cpp >"$work/text.txt"
python3 tools/plan_check.py "$moe" "$work/text.txt" "$work" "${1:-2}"
