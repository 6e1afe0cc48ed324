#!/usr/bin/env bash
# `moe serve` under load, and the chat templates of llama.cpp's sources:
# - 2,000 requests over 200 connections, three times: a third leaves, a tenth is rubbish, every other
#   reply is what it is alone, and the server's size stays (tools/interop/serve_load.py);
# - each of the templates with six dialogues, as jinja2 writes them (tools/interop/template_check.py).
# The templates come out of the source distribution that tools/requirements-llama.txt pins, which is
# fetched once into ${MOE_CACHE:-~/.cache/moe.cpp}/llama-source, as are jinja2 and its friends.
#   scripts/server_test.sh      BIN=path of moe (default build/release/moe)
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

load() {
  local url server
  "$bin" serve "$work/model" --port 0 --queue 4000 2>"$work/serve.log" &
  server=$!
  for _ in $(seq 300); do
    url=$(sed -n 's/^listening on //p' "$work/serve.log")
    [ -z "$url" ] || break
    sleep 0.1
  done
  python3 tools/interop/serve_load.py --url "$url" --pid "$server" || {
    kill "$server"
    return 1
  }
  kill "$server"
  wait "$server"  # 0: it drained
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
check "2,000 requests over 200 connections, three times" load
peers=$cache/peers
virtual_environment "$peers" tools/requirements.txt
check "the templates are there" templates
check "the templates of llama.cpp's sources" "$peers/bin/python" tools/interop/template_check.py \
  --bin "$bin" --model "$work/model" --templates "$(templates)" --work "$work/template"
summary
