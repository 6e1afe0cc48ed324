#!/usr/bin/env bash
# Fetches the headers that the CUDA backend takes from PyPI, CUTLASS's and cudnn-frontend's, and
# prints the options that tell CMake of them (docs/cuda.md):
#   cmake --preset release -DMOE_CUDA=ON $(scripts/cuda_headers.sh)
#   scripts/cuda_headers.sh [FOLDER]     default: ~/.cache/moe.cpp/cuda
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-${MOE_CACHE:-$HOME/.cache/moe.cpp}/cuda}

# unpack NAME==VERSION INCLUDE: its include folder as FOLDER/NAME/include, which cudnn-frontend's
# headers call by that name.
unpack() {
  local name=${1%%==*} wheels
  [ ! -d "$folder/$name/include" ] || return 0
  wheels=$(mktemp -d)
  python3 -m pip download --quiet --no-deps --dest "$wheels" "$1" >&2
  mkdir -p "$folder/$name"
  python3 -m zipfile -e "$wheels"/*.whl "$wheels/all"
  cp -r "$wheels/all/$2" "$folder/$name/part"
  mv "$folder/$name/part" "$folder/$name/include"
  rm -r "$wheels"
}
unpack nvidia-cutlass==4.2.0.0 cutlass_library/source/include
unpack nvidia-cudnn-frontend==1.32.0 include
printf -- '-DMOE_CUTLASS=%s -DMOE_CUDNN=%s\n' "$folder/nvidia-cutlass/include" \
  "$folder/nvidia-cudnn-frontend/include"
