#!/usr/bin/env bash
# Gathers the default corpus: real text in six domains out of free Debian packages, fetched and
# unpacked but never installed.
#   scripts/corpus.sh [DIR]        writes DIR/train/<domain>.txt and, the last 5% of every source
#                                  held out, DIR/valid/<domain>.txt (DIR = data/corpus)
# Needs nothing beyond a base Debian, 12 or 13, and the network; ready at once when DIR was made by
# this same version of the script.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=${1:-$here/../data/corpus}
mkdir -p "$root"
root=$(cd "$root" && pwd)
export LC_ALL=C

# Every source: domain, how it is read, most bytes of it, package (of one name in Debian 12 and 13),
# files in it, what it is and under which licence.
# All stories and the bible are in the public domain as texts; the licence named with them is that
# of the package around them.
sources() {
  cat <<'END'
stories  prose       9000000  r-cran-janeaustenr             */data/Rdata.rdb                   Jane Austen's six novels, public domain (MIT)
stories  prose       9000000  r-cran-tidytext                */extdata/books.rda                novels by Dickens, Verne and Wells, public domain (MIT)
stories  prose       9000000  r-cran-tokenizers              */data/Rdata.rdb                   Herman Melville's Moby Dick, public domain (MIT)
stories  prose       9000000  golang-github-pierrec-lz4-dev  */testdata/pg1661.txt              twelve cases of Sherlock Holmes, public domain (BSD)
stories  prose       9000000  golang-github-pierrec-lz4-dev  */testdata/Mark.Twain*Sawyer.txt   Mark Twain's Tom Sawyer, public domain (BSD)
bible    scripture   2000000  sword-text-kjv                 */ztext/*/[no]t.bzz                the King James Bible, public domain (GPL-2+)
german   translated  1300000  libreoffice-help-de            */text/*.html                      LibreOffice's help in German, MPL-2.0
french   translated  1300000  libreoffice-help-fr            */text/*.html                      LibreOffice's help in French, MPL-2.0
cpp      code        1000000  libeigen3-dev                  */src/*.h                          the library Eigen, MPL-2.0
python   code        1000000  python3-docutils               */docutils/*.py                    the package docutils, public domain and BSD
END
}

table() {
  printf '%-10s %12s %12s\n' domain 'train bytes' 'valid bytes'
  for file in "$root"/train/*.txt; do
    printf '%-10s %12d %12d\n' "$(basename "$file" .txt)" "$(wc -c <"$file")" \
      "$(wc -c <"$root/valid/$(basename "$file")")"
  done
  printf '%-10s %12d %12d   in %s\n' total "$(cat "$root"/train/*.txt | wc -c)" \
    "$(cat "$root"/valid/*.txt | wc -c)" "$root"
}

version=$(cat "$here/corpus.sh" "$here/corpus_clean.pl" | cksum)
if [ "$(cat "$root/.made-by" 2>/dev/null)" = "$version" ]; then table; exit 0; fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir "$work/deb" "$work/x" "$work/out" "$work/out/train" "$work/out/valid"
mapfile -t packages <<<"$(sources | awk '{ print $4 }' | sort -u)"

fetch() {
  (cd "$work/deb" && apt-get download -qq -o Acquire::Retries=3 -o APT::Sandbox::User=root \
    "${packages[@]}") >"$work/log" 2>&1
}
refresh() {
  if [ "$(id -u)" = 0 ]; then
    apt-get update -qq
  elif command -v sudo >/dev/null; then
    sudo apt-get update -qq
  else
    false
  fi >>"$work/log" 2>&1
}
echo "fetching ${#packages[@]} packages" >&2
fetch || { refresh || true; fetch; } || { sleep 5; fetch; } || {
  tail -n 5 "$work/log" >&2
  echo "corpus.sh: could not fetch the packages. Is the network up, and has 'apt-get update' been" \
    "run? Any text of your own does as well: moe train --data PATH" >&2
  exit 1
}
for package in "${packages[@]}"; do
  mkdir "$work/x/$package"
  dpkg-deb -x "$work"/deb/"${package}"_*.deb "$work/x/$package"
done

# Paths relative to the unpacked packages, sorted, so that their order is the same everywhere.
sources | while read -r domain kind bytes package pattern title; do
  (cd "$work/x" && find "$package" -type f -path "$pattern" | sort) >"$work/list"
  [ -s "$work/list" ] || {
    echo "corpus.sh: no files for '$title': the Debian package $package has changed its layout" >&2
    exit 1
  }
  printf '%s %s %s\n' "$domain" "$kind" "$bytes"
  cat "$work/list"
  echo
done >"$work/sources"
(cd "$work/x" && perl "$here/corpus_clean.pl" "$work/out" <"$work/sources")

rm -rf "$root/train" "$root/valid" "$root/.made-by"
cp -r "$work/out/train" "$work/out/valid" "$root/"
echo "$version" >"$root/.made-by"
table
