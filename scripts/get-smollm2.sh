#!/usr/bin/env bash
# Prints the path of SmolLM2-135M-Instruct's GGUF file, fetched once: `moe get smollm2`.
# BIN=path of moe (default build/release/moe).
set -euo pipefail
exec "${BIN:-$(dirname "$0")/../build/release/moe}" get smollm2
