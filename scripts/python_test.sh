#!/usr/bin/env bash
# The Python wheel: built, installed into a virtual environment, type-checked and tested from
# another folder, against the command.
# BIN=path of moe (default build/release/moe); the wheel takes libmoe.so and the command from
# build/release, or from the installation that MOE_PREFIX names. The packages of
# python/requirements-dev.txt live in ${MOE_CACHE:-~/.cache/moe.cpp}/python and are fetched once.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
BIN=$(realpath -m "${BIN:-build/release/moe}")
[ -x "$BIN" ] || {
  echo "$BIN is not built: run cmake --preset release && cmake --build --preset release," \
    "or set BIN" >&2
  exit 1
}
export BIN PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
venv=${MOE_CACHE:-$HOME/.cache/moe.cpp}/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. scripts/checks.sh

# Nothing is fetched: what builds it is in the virtual environment.
build_wheel() {
  "$venv/bin/python" -m pip wheel --quiet --no-build-isolation --no-deps --no-index -w "$work" \
    "$repository/python" || return 1
  basename "$(echo "$work"/moe_cpp-[0-9]*-py3-none-linux_"$(uname -m)".whl)" | grep -v '\*'
}

# The command, its launcher and the library, and nothing of the build beside them.
holds_what_it_should() {
  "$venv/bin/python" -m zipfile -l "$work"/moe_cpp-*.whl |
    awk 'NR > 1 && $1 !~ /\/$/ {print $1}' | grep -vE '\.dist-info/|\.py$' |
    LC_ALL=C sort >"$work/holds"
  printf '%s\n' moe_cpp-*.data/scripts/moe moe_cpp/LICENSE moe_cpp/bin/moe moe_cpp/libmoe.so \
    moe_cpp/options.pyi moe_cpp/py.typed >"$work/should"
  sed 's/^moe_cpp-[0-9.]*\.data/moe_cpp-*.data/' "$work/holds" | diff -u "$work/should" -
}

# Everything that the engine's build reads is in the source distribution: it is configured from
# there alone.
builds_from_source() {
  (cd "$repository/python" &&
    "$venv/bin/python" setup.py -q egg_info -e "$work" sdist -d "$work") || return 1
  mkdir "$work/source"
  tar -xzf "$work"/moe_cpp-*.tar.gz -C "$work/source" --strip-components=1
  cmake -G Ninja -S "$work/source/engine" -B "$work/source/build" \
    -DMOE_TESTS=OFF -DMOE_BENCH=OFF >"$work/source/log"
  du -k "$work"/moe_cpp-*.tar.gz | awk '{print $1 " KB"}'
}

install_wheel() {
  "$venv/bin/python" -m pip install --quiet --force-reinstall --no-deps --no-index \
    "$work"/moe_cpp-*.whl || return 1
  "$venv/bin/python" -m pip check
}

# The types that a user sees are those of the installed package.
check_types() {
  local mypy=("$venv/bin/python" -m mypy --cache-dir "$work/mypy"
    --config-file "$repository/python/pyproject.toml")
  (cd "$work" && "${mypy[@]}" --package moe_cpp && "${mypy[@]}" "$repository"/python/tests)
}

run_tests() {
  (cd "$work" && "$venv/bin/python" -m pytest -q -c "$repository/python/pyproject.toml" \
    --basetemp "$work/tests" "$repository/python/tests")
}

virtual_environment "$venv" python/requirements-dev.txt
check "wheel builds" build_wheel
check "wheel holds the command and the library" holds_what_it_should
check "source distribution holds the engine" builds_from_source
check "wheel installs" install_wheel
check "mypy --strict" check_types
check "pytest" run_tests
summary
