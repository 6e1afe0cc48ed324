#!/usr/bin/env bash
# Debian packages of the system it runs on (Debian 12 or 13), in build/deb/packages: moe-cpp (the
# command, its manual page and completions), libmoe-cpp0.1 (the library) and libmoe-cpp-dev
# (headers, CMake and pkg-config files). Installs what it needs, as scripts/deps.sh package says.
#   scripts/deb.sh
#   sudo apt install ./build/deb/packages/moe-cpp_*.deb
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/deps.sh package

. /etc/os-release
build=build/deb
rm -rf "$build/packages"
# What Debian builds its own packages with, but for the checks at run time, which cost speed.
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr \
  -DMOE_TESTS=OFF -DMOE_BENCH=OFF -DMOE_TOGETHER=ON \
  -DMOE_DEB=ON -DMOE_DEB_RELEASE="1+deb${VERSION_ID:?}" \
  -DMOE_ZSH_COMPLETIONS=share/zsh/vendor-completions \
  -DCMAKE_EXE_LINKER_FLAGS=-Wl,-z,relro,-z,now \
  -DCMAKE_SHARED_LINKER_FLAGS=-Wl,-z,relro,-z,now >/dev/null
cmake --build "$build" --parallel "$(scripts/jobs.sh)" --target moe_package
(cd "$build" && umask 022 && cpack -G DEB -B packages >cpack.log) || {
  cat "$build/cpack.log" >&2
  exit 1
}
rm -rf "$build/packages/_CPack_Packages"

# holds PACKAGE FILE...: these below /usr, with its papers, and nothing else.
holds() {
  local name=$1
  shift
  diff -u \
    <(printf './usr/%s\n' "$@" "share/doc/$name/"{changelog.Debian.gz,copyright} | LC_ALL=C sort) \
    <(dpkg-deb -c "$build/packages/${name}_"*.deb | awk '$6 !~ /\/$/ {print $6}' |
      LC_ALL=C sort) || {
    echo "deb.sh: $name does not hold what it should" >&2
    exit 1
  }
}
version=$("$build/moe" --version | sed -n 's/^moe //p')
lib=lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
holds moe-cpp bin/moe lib/systemd/system/moe-serve@.service share/man/man1/moe.1.gz \
  share/bash-completion/completions/moe share/fish/vendor_completions.d/moe.fish \
  share/zsh/vendor-completions/_moe
holds "libmoe-cpp${version%.*}" "$lib/libmoe.so.$version" "$lib/libmoe.so.${version%.*}"
holds libmoe-cpp-dev include/moe/moe.{h,hpp} "$lib/libmoe.so" "$lib/pkgconfig/moe.pc" \
  "$lib"/cmake/moe/moe{Config,ConfigVersion,Targets,Targets-release}.cmake

# Errors of Debian's own checker are ours.
lintian --fail-on error "$build"/packages/*.deb
for package in "$build"/packages/*.deb; do
  printf '%6.2f MB  %s\n' "$(($(stat -c %s "$package") / 10000))e-2" "$package"
done
