#!/usr/bin/env bash
# The Python wheel: built, installed into a virtual environment, type-checked and tested from another folder, against the command.
# BIN=path of moe (default build/release/moe); the wheel takes libmoe.so from build/release, or from the installation that MOE_PREFIX names.
# The packages of python/requirements-dev.txt live in ${MOE_CACHE:-~/.cache/moe.cpp}/python and are fetched once.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
BIN=$(realpath -m "${BIN:-build/release/moe}")
[ -x "$BIN" ] || { echo "$BIN is not built: run cmake --preset release && cmake --build --preset release, or set BIN" >&2; exit 1; }
export BIN PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
venv=${MOE_CACHE:-$HOME/.cache/moe.cpp}/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0

# The folder is used as it is when its copy of the pins equals ours; a half-made one has no copy and is made anew.
install_tools() {
  if cmp -s python/requirements-dev.txt "$venv/requirements.txt"; then return; fi
  echo "installing NumPy, mypy and pytest into $venv (once)" >&2
  rm -rf "$venv"
  mkdir -p "$(dirname "$venv")"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet -r python/requirements-dev.txt >&2
  cp python/requirements-dev.txt "$venv/requirements.txt"
}

# check NAME COMMAND...: one line for the check; a failure shows what the command wrote.
check() {
  local name=$1
  shift
  if "$@" >"$work/out" 2>&1; then
    passed=$((passed + 1))
    echo "ok    $name: $(tail -n 1 "$work/out")"
  else
    failed=$((failed + 1))
    echo "FAIL  $name"
    sed 's/^/      /' "$work/out"
  fi
}

# Nothing is fetched: what builds it is in the virtual environment.
build_wheel() {
  "$venv/bin/python" -m pip wheel --quiet --no-build-isolation --no-deps --no-index -w "$work" "$repository/python" || return 1
  basename "$(echo "$work"/moe_cpp-[0-9]*-py3-none-linux_"$(uname -m)".whl)" | grep -v '\*'
}

install_wheel() {
  "$venv/bin/python" -m pip install --quiet --force-reinstall --no-deps --no-index "$work"/moe_cpp-*.whl || return 1
  "$venv/bin/python" -m pip check
}

# The types that a user sees are those of the installed package.
check_types() {
  (cd "$work" && "$venv/bin/python" -m mypy --config-file "$repository/python/pyproject.toml" --cache-dir "$work/mypy" --package moe_cpp &&
    "$venv/bin/python" -m mypy --config-file "$repository/python/pyproject.toml" --cache-dir "$work/mypy" "$repository"/python/tests)
}

run_tests() { (cd "$work" && "$venv/bin/python" -m pytest -q -c "$repository/python/pyproject.toml" --basetemp "$work/tests" "$repository/python/tests"); }

install_tools
check "wheel builds" build_wheel
check "wheel installs" install_wheel
check "mypy --strict" check_types
check "pytest" run_tests
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
