#!/usr/bin/env bash
# The installed package as somebody else meets it: `cmake --install` into a folder that is then
# moved, the examples built against it by find_package and by pkg-config without a header of ours
# but those installed, run on a small text and compared with the installed command.
# BUILD=a configured build folder (default build/release, made and built here).
set -euo pipefail
cd "$(dirname "$0")/.."
repo=$PWD
build=${BUILD:-build/release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/moved/moe
export CMAKE_GENERATOR=Ninja  # as our presets; cmake alone would ask for make
. scripts/checks.sh

same() { diff -u "$1" "$2"; }

installs_what_it_should() {
  cmake --install "$build" --prefix "$work/first"
  mkdir -p "$work/moved"
  mv "$work/first" "$prefix"
  (cd "$prefix" && find . \( -type f -o -type l \) | sed 's|^\./||' |
    grep -v '^lib/cmake/moe/moeTargets-[a-z]*\.cmake$' | LC_ALL=C sort) >"$work/files"
  local version soversion
  version=$("$prefix/bin/moe" --version | sed -n 's/^moe //p')
  soversion=${version%.*}
  printf '%s\n' bin/moe include/moe/moe.h include/moe/moe.hpp \
    lib/cmake/moe/moe{Config,ConfigVersion,Targets}.cmake \
    lib/libmoe.so "lib/libmoe.so.$soversion" "lib/libmoe.so.$version" lib/pkgconfig/moe.pc \
    share/bash-completion/completions/moe share/fish/vendor_completions.d/moe.fish \
    $([ ! -e "$build/moe_mpi.so" ] || echo lib/moe/moe_mpi.so) \
    share/man/man1/moe.1 share/zsh/site-functions/_moe | LC_ALL=C sort >"$work/wanted"
  same "$work/wanted" "$work/files"
}

# Nothing is written while a part is missing, whichever it is; with all of them there, empty or not,
# nothing else is asked for.
installs_all_or_nothing() {
  local missing='is not built yet, and nothing was installed'
  local next='first run: cmake --build [^ ]* --target moe_package'
  local bare=$work/bare part parts=0
  cmake -S . -B "$bare" -DMOE_TESTS=OFF -DMOE_BENCH=OFF >"$work/bare.log"
  until cmake --install "$bare" --prefix "$work/none" >"$work/bare.log" 2>&1; do
    if [ -e "$work/none" ]; then cat "$work/bare.log"; return 1; fi
    part=$(tr -s ' \n' '  ' <"$work/bare.log" | sed -n "s/.*: \([^ ]*\) $missing; $next.*/\1/p")
    if [ -z "$part" ] || [ -e "$part" ]; then cat "$work/bare.log"; return 1; fi
    mkdir -p "$(dirname "$part")"
    : >"$part"
    parts=$((parts + 1))
  done
  echo "$parts parts"
  [ "$parts" -ge 6 ]
}

names_no_folder() {
  lacks -rnE "$repo|$work|/usr/local" "$prefix/lib/cmake" "$prefix/lib/pkgconfig"
}
# Neither a search path nor a library of this build: what the loader is told is the name alone.
has_no_rpath() {
  readelf -d "$prefix/lib/libmoe.so" >"$work/dynamic"
  lacks -E 'R(UN)?PATH' "$work/dynamic"
  has -E 'SONAME.*\[libmoe\.so\.[0-9]+\.[0-9]+\]' "$work/dynamic"
}
exports_the_header_alone() {
  nm -D --defined-only "$prefix/lib/libmoe.so" |
    awk '$2 != "A" {sub(/@.*/, "", $3); print $3}' | LC_ALL=C sort >"$work/exported"
  grep -oE '^MOE_API .*\(' "$prefix/include/moe/moe.h" |
    grep -oE 'moe_[a-z_]+\(' | tr -d '(' | LC_ALL=C sort >"$work/declared"
  [ -s "$work/declared" ]
  same "$work/declared" "$work/exported"
}

# compiles HEADER COMPILER FLAGS... (the language follows the header's name: -x c or -x c++)
compiles() {
  local header=$1
  shift
  printf '#include <moe/%s>\n' "$header" |
    "$@" -Wall -Wextra -Wshadow -Wconversion -pedantic -Werror -fsyntax-only -I"$prefix/include" -
}
needs_no_other_headers() {
  printf '#include <moe/moe.hpp>\n' |
    c++ -std=c++20 -x c++ -M -I"$prefix/include" - >"$work/headers"
  has -F moe.hpp "$work/headers"
  lacks -E '/(dnnl|oneapi|fmt|nlohmann|CLI|hwy|src)/|dnnl|pcre|omp\.h' "$work/headers"
}

builds_by_cmake() {
  cp -r examples "$work/examples"
  cmake -S "$work/examples" -B "$work/by-cmake" -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_CXX_FLAGS='-Wall -Wextra -Werror' -DCMAKE_C_FLAGS='-Wall -Wextra -Werror'
  cmake --build "$work/by-cmake"
}
# The next minor version may have another interface.
refuses_another_version() {
  mkdir -p "$work/later"
  printf '%s\n' 'cmake_minimum_required(VERSION 3.16)' 'project(later CXX)' \
    'find_package(moe 0.99 CONFIG REQUIRED)' >"$work/later/CMakeLists.txt"
  ends_with 1 cmake -S "$work/later" -B "$work/later/build" -DCMAKE_PREFIX_PATH="$prefix" \
    >"$work/later/log" 2>&1
  has -F 'requested version "0.99"' "$work/later/log"
}
builds_by_pkg_config() {
  export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
  pkg-config --modversion moe
  cc -std=c99 -Wall -Wextra -pedantic -Werror examples/route.c -o "$work/route" \
    $(pkg-config --cflags --libs moe)
  c++ -std=c++20 -Wall -Wextra -pedantic -Werror examples/train_and_generate.cpp \
    -o "$work/train_and_generate" $(pkg-config --cflags --libs moe)
}

routes_as_the_command() {
  grep -oE '\[\[2, 1.*\]\]' examples/route.c | sed 's/.*/{"logits": &}/' >"$work/four.json"
  "$prefix/bin/moe" route --recipe st-moe --logits "$work/four.json" --json >"$work/wanted"
  "$work/by-cmake/route" >"$work/got"
  same "$work/wanted" "$work/got"
  LD_LIBRARY_PATH=$prefix/lib "$work/route" >"$work/got"
  same "$work/wanted" "$work/got"
}
trains_and_generates() {
  cp README.md "$work/text.txt"
  GOMP_SPINCOUNT=3000 "$work/by-cmake/train_and_generate" "$work/text.txt" "$work/book" 8 \
    >"$work/got" 2>"$work/progress"
  has -E 'step 8 of 8, [0-9.]+ nats a token' "$work/progress"
  "$prefix/bin/moe" generate "$work/book-half" -p 'The ' -n 200 --temperature 0.7 --seed 1 --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["text"])' >"$work/wanted"
  head -n -2 "$work/got" | same "$work/wanted" -
  tail -n 2 "$work/got" >"$work/sayings"
  has -E '^[0-9.]+ bits per byte, perplexity [0-9.]+ a token$' "$work/sayings"
  # A word or a part of one, as the tokenizer cuts it; experts of the preset's 16.
  local expert='([0-9]|1[0-5])'
  has -E "^'T[a-z]*' goes to experts $expert and $expert of the first layer\$" "$work/sayings"
}
# refuses_in_one_line STATUS WORDS ARGUMENTS...: one line that has WORDS in it, and nothing written.
refuses_in_one_line() {
  local status=$1 words=$2
  shift 2
  ends_with "$status" "$work/by-cmake/train_and_generate" "$@" >"$work/got" 2>&1
  [ "$(wc -l <"$work/got")" = 1 ]
  has -F "$words" "$work/got"
  [ ! -e "$work/nothing" ]
}
says_what_is_wrong() {
  refuses_in_one_line 1 absent.txt "$work/absent.txt" "$work/nothing"
  refuses_in_one_line 2 '"steps" is "many"' "$work/text.txt" "$work/nothing" many
}

if [ -z "${BUILD:-}" ]; then cmake --preset release >/dev/null; fi
cmake --build "$build" --target moe_package --parallel "$(scripts/jobs.sh)"

check \
  'cmake --install puts the command, the library, the headers and the packages, and nothing else' \
  installs_what_it_should
check 'cmake --install writes nothing while something is not built' installs_all_or_nothing
check 'the packages name no folder of this machine' names_no_folder
check 'libmoe.so has a version in its name and no search path' has_no_rpath
check 'libmoe.so exports what moe.h declares, and nothing else' exports_the_header_alone
for standard in c99 c11 c17; do
  check "moe.h is $standard" compiles moe.h cc -std=$standard -x c
done
check 'moe.h is C++20' compiles moe.h c++ -std=c++20 -x c++
check 'moe.hpp is C++20' compiles moe.hpp c++ -std=c++20 -x c++
if command -v clang++ >/dev/null; then
  check 'moe.h is C99 for clang' compiles moe.h clang -std=c99 -x c
  check 'moe.hpp is C++20 for clang' compiles moe.hpp clang++ -std=c++20 -x c++
fi
check 'moe.hpp includes nothing that is not installed with it or with the compiler' \
  needs_no_other_headers
check 'find_package(moe) in a project of its own' builds_by_cmake
check 'find_package(moe 0.99) is refused' refuses_another_version
check 'pkg-config and the compiler alone' builds_by_pkg_config
check 'route.c prints what the command prints' routes_as_the_command
check 'train_and_generate.cpp trains, saves, loads, and writes what the command writes' \
  trains_and_generates
check 'a text that is not there, or steps that are no number, end in one line' says_what_is_wrong

summary
