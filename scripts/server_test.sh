#!/usr/bin/env bash
# `moe serve` under load, and the chat templates of llama.cpp's sources:
# - 2,000 requests over 200 connections, three times: a third leaves, a tenth is rubbish, every other
#   reply is what it is alone, and the server's size stays (tools/interop/serve_load.py);
# - each of the templates with six dialogues, as jinja2 writes them (tools/interop/template_check.py).
# The templates come out of the source distribution that tools/requirements-llama.txt pins, which is
# fetched once into ${MOE_CACHE:-~/.cache/moe.cpp}/llama-source, as are jinja2 and its friends.
#   scripts/server_test.sh [SANITIZER...]      BIN=path of moe (default build/release/moe)
# With sanitizers, as address,undefined and thread, a shorter load of a server that is built with
# each. thread takes one thread for the products, as it does not see libgomp's barriers.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${BIN:-build/release/moe}
cache=${MOE_CACHE:-$HOME/.cache/moe.cpp}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. scripts/checks.sh

# A model of a moment over a learned vocabulary.
make_model() {
  some_text 6000 >"$work/text.txt"
  "$bin" train --data "$work/text.txt" --out "$work/model" --tokenizer bpe:400 --layers 2 --width 64 \
    --heads 4 --experts 8 --top-k 2 --context 1024 --batch 2 --steps 20 --dtype f32 --seed 1
}

# load BIN SERVE_OPTIONS -- LOAD_OPTIONS
load() {
  local url server server_options=()
  while [ "$2" != -- ]; do
    server_options+=("$2")
    set -- "$1" "${@:3}"
  done
  "$1" serve "$work/model" --port 0 --queue 4000 "${server_options[@]}" 2>"$work/serve.log" &
  server=$!
  for _ in $(seq 300); do
    url=$(sed -n 's/^listening on //p' "$work/serve.log")
    [ -z "$url" ] || break
    sleep 0.1
  done
  python3 tools/interop/serve_load.py --url "$url" --pid "$server" "${@:3}" || {
    kill "$server"
    tail -50 "$work/serve.log"
    return 1
  }
  kill "$server"
  wait "$server" || { tail -50 "$work/serve.log"; return 1; }  # 0: it drained, nothing was found
}

load_sanitised() {
  local build=build/$1 threads=0
  [ "$1" != thread ] || threads=1
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" -DMOE_SANITIZE="$1" -DMOE_TESTS=OFF -DMOE_BENCH=OFF \
    >/dev/null
  cmake --build "$build" --target moe --parallel "$(scripts/jobs.sh 1500)" >/dev/null || return 1
  load "$build/moe" --threads "$threads" -- --requests 200 --connections 40 --rounds 1
}

# The folder of templates, fetched where it is not there.
templates() {
  local pinned sources="$cache/llama-source"
  pinned=$(grep '^llama_cpp_python==' tools/requirements-llama.txt)
  if [ ! -d "$sources/$pinned" ]; then
    mkdir -p "$sources"
    "$peers/bin/pip" download --quiet --no-deps --no-binary :all: --dest "$work" "$pinned" || return 1
    mkdir "$work/unpacked"
    tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work/unpacked" --strip-components 1 \
      --wildcards '*/vendor/llama.cpp/models/templates/*'
    mv "$work/unpacked" "$sources/$pinned"
  fi
  echo "$sources/$pinned/vendor/llama.cpp/models/templates"
}

check "a model for the server" make_model
check "2,000 requests over 200 connections, three times" load "$bin" --
for sanitizer in "$@"; do
  check "200 requests to a server built with $sanitizer" load_sanitised "$sanitizer"
done
peers=$cache/peers
virtual_environment "$peers" tools/requirements.txt
check "the templates are there" templates
check "the templates of llama.cpp's sources" "$peers/bin/python" tools/interop/template_check.py \
  --bin "$bin" --model "$work/model" --templates "$(templates)" --work "$work/template"
summary
