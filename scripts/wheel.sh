#!/usr/bin/env bash
# The Python package and the command `moe` in one wheel, the libraries they need inside, for every
# x86-64 Linux with the glibc of Debian 12 or later (auditwheel finds that an earlier one is enough,
# and says which in the name); and the source distribution, from which pip builds the same where
# there is a compiler.
# To be run on Debian 12. Installs what it needs, as scripts/deps.sh package says.
#   scripts/wheel.sh            both, into build/wheel/dist
#   pip install build/wheel/dist/moe_cpp-*.whl
# BUILD=a configured build folder to take the command and the library from (default: build/wheel,
# configured and built here).
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
work=$PWD/build/wheel
build=${BUILD:-$work}
scripts/deps.sh package
. scripts/checks.sh
venv=${MOE_CACHE:-$HOME/.cache/moe.cpp}/wheel
virtual_environment "$venv" python/requirements-wheel.txt
PATH=$venv/bin:$PATH

[ -n "${BUILD:-}" ] || cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DMOE_TESTS=OFF -DMOE_BENCH=OFF -DMOE_TOGETHER=ON >/dev/null
cmake --build "$build" --parallel "$(scripts/jobs.sh)" --target moe_package
rm -rf "$work"/{prefix,notices,plain,dist}
cmake --install "$build" --strip --prefix "$work/prefix" >/dev/null

# The licence of every library that goes into the wheel, as Debian tells it.
mkdir -p "$work/notices"
ldd "$work/prefix/bin/moe" "$work/prefix/lib/libmoe.so" |
  awk '$3 ~ /^\// {print $3}' | LC_ALL=C sort -u | while read -r library; do
  owned="*/$(uname -m)-linux-gnu/$(basename "$(realpath "$library")")"
  package=$(dpkg-query -S "$owned" | head -n 1 | cut -d: -f1)
  # Every Linux has these; they stay out.
  case $package in libc6 | libstdc++6 | libgcc-s1) continue ;; esac
  cp "/usr/share/doc/$package/copyright" "$work/notices/$package"
done

export PIP_DISABLE_PIP_VERSION_CHECK=1
MOE_PREFIX=$work/prefix MOE_NOTICES=$work/notices python -m pip wheel --quiet \
  --no-build-isolation --no-deps -w "$work/plain" ./python
auditwheel repair --plat "manylinux_2_36_$(uname -m)" -w "$work/dist" "$work"/plain/moe_cpp-*.whl
python -m build --sdist --no-isolation --outdir "$work/dist" ./python >"$work/sdist.log"
for file in "$work"/dist/*; do
  printf '%6.2f MB  %s\n' "$(($(stat -c %s "$file") / 10000))e-2" "${file#"$repository"/}"
done
