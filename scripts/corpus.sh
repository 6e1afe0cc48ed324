#!/usr/bin/env bash
# Gathers the default corpus: real text in six domains out of free Debian packages, fetched and unpacked but never installed.
#   scripts/corpus.sh [DIR]        writes DIR/train/<domain>.txt and, the last 5% of every source held out, DIR/valid/<domain>.txt (DIR = data/corpus)
# Needs nothing beyond a base Debian and the network; ready at once when DIR was made by this same version of the script.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=${1:-$here/../data/corpus}
mkdir -p "$root"
root=$(cd "$root" && pwd)
export LC_ALL=C

table() {
  printf '%-10s %12s %12s\n' domain 'train bytes' 'valid bytes'
  for file in "$root"/train/*.txt; do
    printf '%-10s %12d %12d\n' "$(basename "$file" .txt)" "$(wc -c <"$file")" "$(wc -c <"$root/valid/$(basename "$file")")"
  done
  printf '%-10s %12d %12d   in %s\n' total "$(cat "$root"/train/*.txt | wc -c)" "$(cat "$root"/valid/*.txt | wc -c)" "$root"
}

version=$(cat "$here/corpus.sh" "$here/corpus_clean.pl" | cksum)
if [ "$(cat "$root/.made-by" 2>/dev/null)" = "$version" ]; then table; exit 0; fi

packages=(jargon-text developers-reference debian-faq git-doc libreoffice-help-de developers-reference-de maint-guide-de libreoffice-help-fr
          developers-reference-fr maint-guide-fr libeigen3-dev libstdc++-12-dev libpython3.11-stdlib)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/deb" "$work/x" "$work/lists" "$work/out" "$work/out/train" "$work/out/valid"

fetch() { (cd "$work/deb" && apt-get download -qq -o Acquire::Retries=3 -o APT::Sandbox::User=root "${packages[@]}") >"$work/log" 2>&1; }
refresh() {
  if [ "$(id -u)" = 0 ]; then apt-get update -qq; elif command -v sudo >/dev/null; then sudo apt-get update -qq; else false; fi >>"$work/log" 2>&1
}
echo "fetching ${#packages[@]} packages" >&2
fetch || { refresh || true; fetch; } || { sleep 5; fetch; } || {
  tail -n 5 "$work/log" >&2
  echo "corpus.sh: could not fetch the packages. Is the network up, and has 'apt-get update' been run? Any text of your own does as well: moe train --data PATH" >&2
  exit 1
}
for package in "${packages[@]}"; do
  mkdir "$work/x/$package"
  dpkg-deb -x "$work"/deb/"${package}"_*.deb "$work/x/$package"
done

# source NAME FIND-ARGUMENTS...: the list of files of one source, paths relative to the unpacked packages so that their order is the same everywhere.
source_files() {
  local name=$1
  shift
  (cd "$work/x" && find "$@" -type f | sort) >"$work/lists/$name"
  [ -s "$work/lists/$name" ] || { echo "corpus.sh: no files for '$name': the Debian package has changed its layout" >&2; exit 1; }
}
source_files jargon jargon-text/usr/share/doc/jargon-text -name 'jargon.txt.gz'
source_files reference developers-reference/usr/share/developers-reference -name '*.html'
source_files faq debian-faq/usr/share -name '*.html'
source_files git git-doc/usr/share/doc/git-doc -name '*.txt' ! -path '*/RelNotes/*'
source_files office-de libreoffice-help-de/usr/share/libreoffice -path '*/text/*' -name '*.html'
source_files reference-de developers-reference-de/usr/share -name '*.html'
source_files guide-de maint-guide-de/usr/share -name '*.html'
source_files office-fr libreoffice-help-fr/usr/share/libreoffice -path '*/text/*' -name '*.html'
source_files reference-fr developers-reference-fr/usr/share -name '*.html'
source_files guide-fr maint-guide-fr/usr/share -name '*.html'
source_files eigen libeigen3-dev/usr/include -path '*/src/*' -name '*.h'
source_files libstdcxx libstdc++-12-dev/usr/include/c++ ! -path '*/pb_ds/*' ! -path '*/x86_64*'
source_files python libpython3.11-stdlib/usr/lib/python3.11 -name '*.py' ! -path '*/encodings/*' ! -path '*/pydoc_data/*' ! -name '_sysconfigdata*'

# clean DOMAIN KIND:BYTES:LIST...
clean() { (cd "$work/x" && perl "$here/corpus_clean.pl" "$work/lists" "$work/out" "$@"); }
clean english text:1600000:jargon html:250000:reference html:150000:faq
clean german translated:1600000:office-de translated:300000:reference-de translated:100000:guide-de
clean french translated:1600000:office-fr translated:300000:reference-fr translated:100000:guide-fr
clean cpp code:1000000:eigen code:1000000:libstdcxx
clean python code:2000000:python
clean asciidoc text:2000000:git

rm -rf "$root/train" "$root/valid" "$root/.made-by"
cp -r "$work/out/train" "$work/out/valid" "$root/"
echo "$version" >"$root/.made-by"
table
