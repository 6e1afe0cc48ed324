#!/usr/bin/env bash
# Installs what moe.cpp needs from Debian 12 or 13, as root or through sudo. What is there already
# is left alone, so a second run is instant and works offline.
#   scripts/deps.sh [build]    what compiles and runs the command `moe`
#   scripts/deps.sh mpi        that of build, and what runs it as several processes (docs/cluster.md)
#   scripts/deps.sh package    what compiles it, and what makes the packages (scripts/deb.sh,
#                              scripts/wheel.sh)
#   scripts/deps.sh test       that of build, and what the tests, the fuzzers, the format check, the
#                              interop checks and the browser check need
#   scripts/deps.sh arm64      what compiles for 64-bit ARM on another machine and runs it there
#                              (scripts/arm64_check.sh)
#   scripts/deps.sh list       installs nothing, prints the packages of build, a line each
set -euo pipefail

# ocl-icd-opencl-dev: the CMake file of Debian 12's libdnnl-dev asks for OpenCL, the package does
# not depend on it.
build=(
  git ca-certificates g++ cmake ninja-build libdnnl-dev ocl-icd-opencl-dev libhwy-dev
  nlohmann-json3-dev libcli11-dev libboost-dev libeigen3-dev libfmt-dev libpcre2-dev libutf8proc-dev
)
mpi=(libopenmpi-dev openmpi-bin)
packaging=(dpkg-dev file lintian python3-venv)
tests=(
  ccache libgtest-dev libbenchmark-dev pkgconf clang libclang-rt-dev libomp-dev clang-format
  python3-venv chromium chromium-driver python3-selenium
)
arm64=(cmake ninja-build ccache g++-aarch64-linux-gnu qemu-user-static)

case ${1:-build} in
  build) wanted=("${build[@]}") ;;
  mpi) wanted=("${build[@]}" "${mpi[@]}") ;;
  package) wanted=("${build[@]}" "${packaging[@]}") ;;
  test) wanted=("${build[@]}" "${mpi[@]}" "${tests[@]}") ;;
  arm64) wanted=("${arm64[@]}") ;;
  list) printf '%s\n' "${build[@]}"; exit 0 ;;
  *) sed -n 2,12p "$0" >&2; exit 2 ;;
esac

command -v dpkg-query >/dev/null || {
  echo "deps.sh: this is not Debian; install by hand what stands for: ${wanted[*]}" >&2
  exit 1
}
missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || true
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || {
    echo "deps.sh: as root, run: apt-get install ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 \
    -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 "$@"
}

echo "installing: ${missing[*]}" >&2
trap 'exit 130' INT
trap 'exit 143' TERM
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for attempt in 1 2 3; do
  # A failing update is no failure yet: one broken third-party source must not stop an install the
  # others can serve.
  apt update >"$log" 2>&1 || true
  if apt install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then exit 0; fi
  [ "$attempt" = 3 ] || {
    echo "deps.sh: attempt $attempt failed, trying again in $((attempt * 5)) s" >&2
    sleep $((attempt * 5))
  }
done
tail -n 15 "$log" >&2
echo "deps.sh: could not install: ${missing[*]}" \
  "(is the network up, and is /etc/apt/sources.list.d right?)" >&2
exit 1
