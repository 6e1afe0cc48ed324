#!/usr/bin/env bash
# What takes longer than .ci/run has time for, some two hours: to be run by hand on a quiet
# machine, after scripts/test.sh, before a release or before an issue is called resolved. Leaves
# what each check printed in build/full_check.
#   scripts/full_check.sh [TEXT]
# TEXT: some text that compares perplexity, exports and quantisers with llama.cpp too, which takes
# another half hour.
set -euo pipefail
cd "$(dirname "$0")/.."
work=build/full_check
mkdir -p "$work"
. scripts/checks.sh

kept() { # kept NAME COMMAND...: the command, its output also in a file
  local name=$1
  shift
  "$@" 2>&1 | tee "$work/$name.log"
}

sanitized() {
  scripts/sanitized.sh
  ctest --test-dir build/asan --output-on-failure -j2 --no-tests=error -E '@(avx.*|baseline)$'
}

check 'every test under the sanitizers' kept asan sanitized
check 'memory estimated and taken, every verb, within 15%' kept memory scripts/memory_check.sh
check 'alarms of ten failing and ten healthy seeds of each run' kept alarms scripts/alarm_check.sh
check 'the wheel and the source distribution' kept wheel scripts/wheel.sh
check 'the Debian packages' kept deb scripts/deb.sh
check 'the server under load, and the templates' kept server scripts/server_test.sh
check 'runs on several hosts, with faults at random moments' kept cluster scripts/cluster_test.sh
check 'seconds of a step estimated by moe plan, within 15%' kept plan scripts/plan_check.sh
check 'every fuzzer, 100000 runs' kept fuzz scripts/fuzz.sh 100000
[ $# -eq 0 ] || check 'llama.cpp' kept llama.cpp scripts/llama_cpp_test.sh "$1"
summary
