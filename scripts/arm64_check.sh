#!/usr/bin/env bash
# The build for 64-bit ARM and its tests on another machine: g++ compiles against the libraries that
# Debian has for ARM, unpacked in build/arm64/root, and qemu runs what comes out. For hours; by hand.
# On an ARM machine itself scripts/test.sh does it all.
#   scripts/arm64_check.sh [CTEST_OPTION...]     e.g. -R ops/
# Left out are the tests that start the command: qemu runs a program, not those that it starts.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/deps.sh arm64
here=$PWD/build/arm64
root=$here/root

# The packages of this machine's own release, by apt's own lists kept in a folder apart: nothing is
# installed and the system's lists stay as they are.
unpack_root() {
  local options=(
    -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Install-Recommends=0
    -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=3
    -o Dir::State="$here/apt" -o Dir::Cache="$here/apt" -o Dir::State::status="$here/apt/status"
  )
  local package libraries
  mapfile -t libraries < <(scripts/deps.sh list | grep -e '-dev$')
  rm -rf "$here/apt" "$here/unpacked"
  mkdir -p "$here/apt/lists/partial" "$here/apt/archives/partial" "$here/unpacked/usr/lib"
  : >"$here/apt/status"
  # Some source of packages may have none for ARM.
  apt-get "${options[@]}" update || true
  apt-get "${options[@]}" install -y --download-only "${libraries[@]}" libgtest-dev
  # Programs ask for their loader in lib. Debian 13 has it in usr/lib; packages of Debian 12 put a
  # folder lib in place of this link.
  ln -s usr/lib "$here/unpacked/lib"
  for package in "$here"/apt/archives/*.deb; do dpkg-deb -x "$package" "$here/unpacked"; done
  rm -r "$here/apt"
  mv "$here/unpacked" "$root"
}
if [ ! -d "$root" ]; then unpack_root; fi

cmake -S . -B "$here/build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/arm64.cmake" \
  -DCMAKE_BUILD_TYPE=Release -DMOE_BENCH=OFF -DMOE_TOGETHER=ON
cmake --build "$here/build" --parallel "$(scripts/jobs.sh)"
ctest --test-dir "$here/build" --output-on-failure -j2 --timeout 14400 --no-tests=error \
  -E '^(api|cli)/' "$@"
