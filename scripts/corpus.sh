#!/usr/bin/env bash
# Gathers a corpus: real text out of free Debian packages, fetched and unpacked but never installed.
#   scripts/corpus.sh [DIR]        six domains, 14 MB: writes DIR/train/<domain>.txt and, the last 5%
#                                  of every source held out, DIR/valid/<domain>.txt
#                                  (DIR = data/corpus)
#   scripts/corpus.sh --size 200M [DIR]
#                                  fourteen domains, so many bytes of text: DIR/train/<domain>.jsonl,
#                                  a document a line, each once, and every fiftieth document, chosen
#                                  by a hash of its content, in DIR/valid; DIR/sources.txt says what
#                                  is in it and under which licence (DIR = data/corpus-200M)
# Needs nothing beyond a base Debian, 12 or 13, and the network; ready at once when DIR was made by
# this same version of the script.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
size='' bytes=0 ending=txt
if [ "${1:-}" = --size ]; then
  size=${2:-} ending=jsonl
  case $size in
    *[!0-9]*M | *[!0-9]*G | M | G) bytes=0 ;;
    *M) bytes=$((${size%M} * 1000000)) ;;
    *G) bytes=$((${size%G} * 1000000000)) ;;
  esac
  [ "$bytes" -gt 0 ] || {
    echo "corpus.sh: --size is '$size'; give a number of bytes as 200M or 1G" >&2
    exit 2
  }
  shift 2
fi
root=${1:-$here/../data/corpus${size:+-$size}}
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

# The same of the large corpus. What is cut to a size here would else be most of it.
large_sources() {
  cat <<'END'
stories    prose       9000000  r-cran-janeaustenr             */data/Rdata.rdb                   Jane Austen's six novels, public domain (MIT)
stories    prose       9000000  r-cran-tidytext                */extdata/books.rda                novels by Dickens, Verne and Wells, public domain (MIT)
stories    prose       9000000  r-cran-tokenizers              */data/Rdata.rdb                   Herman Melville's Moby Dick, public domain (MIT)
stories    prose       9000000  golang-github-pierrec-lz4-dev  */testdata/pg1661.txt              twelve cases of Sherlock Holmes, public domain (BSD)
stories    prose       9000000  golang-github-pierrec-lz4-dev  */testdata/Mark.Twain*Sawyer.txt   Mark Twain's Tom Sawyer, public domain (BSD)
bible      scripture   9000000  sword-text-kjv                 */ztext/*/[no]t.bzz                the King James Bible, public domain (GPL-2+)
bible      scripture   9000000  sword-text-web                 */ztext/*/[no]t.bzz                the World English Bible, public domain
dictionary dictionary 20000000  dict-wn                        */wn.dict.dz                       the dictionary WordNet, WordNet licence (as BSD)
dictionary dictionary  9000000  dict-foldoc                    */foldoc.dict.dz                   the Free On-line Dictionary of Computing, GFDL-1.3+
dictionary dictionary  9000000  dict-jargon                    */jargon.dict.dz                   the Jargon File, public domain
german     dictionary 12000000  dict-freedict-deu-eng          */*.dict.dz                        a German-English dictionary (Ding), GPL-2+
german     translated  9000000  libreoffice-help-de            */text/*.html                      LibreOffice's help in German, MPL-2.0
german     manual      9000000  manpages-de                    */man?/*                           manual pages in German, GPL-3+
german     translated  9000000  debian-handbook                */html/de-DE/*.html                The Debian Administrator's Handbook in German, GPL-2+ or CC-BY-SA-3.0
german     translated  9000000  debian-reference-de            */*.html                           the Debian Reference in German, GPL-2+
french     translated  9000000  libreoffice-help-fr            */text/*.html                      LibreOffice's help in French, MPL-2.0
french     manual      9000000  manpages-fr                    */man?/*                           manual pages in French, GPL-3+
french     translated  9000000  debian-handbook                */html/fr-FR/*.html                The Debian Administrator's Handbook in French, GPL-2+ or CC-BY-SA-3.0
french     translated  9000000  debian-reference-fr            */*.html                           the Debian Reference in French, GPL-2+
spanish    translated  9000000  libreoffice-help-es            */text/*.html                      LibreOffice's help in Spanish, MPL-2.0
spanish    manual      9000000  manpages-es                    */man?/*                           manual pages in Spanish, GPL-3+
spanish    translated  9000000  debian-handbook                */html/es-ES/*.html                The Debian Administrator's Handbook in Spanish, GPL-2+ or CC-BY-SA-3.0
italian    translated  9000000  libreoffice-help-it            */text/*.html                      LibreOffice's help in Italian, MPL-2.0
italian    translated  9000000  debian-handbook                */html/it-IT/*.html                The Debian Administrator's Handbook in Italian, GPL-2+ or CC-BY-SA-3.0
manual     manual      9000000  manpages                       */man?/*                           Linux' manual pages, GPL-2+, BSD and verbatim copying
manual     manual      9000000  manpages-dev                   */man?/*                           Linux' manual pages for programmers, GPL-2+, BSD and verbatim copying
manual     pod        12000000  perl-doc                       */*.pod                            Perl's documentation, Artistic or GPL-1+
help       help        9000000  libreoffice-help-en-us         */text/*.html                      LibreOffice's help, MPL-2.0
help       help        9000000  debian-handbook                */html/en-US/*.html                The Debian Administrator's Handbook, GPL-2+ or CC-BY-SA-3.0
help       help        9000000  debian-reference-en            */*.html                           the Debian Reference, GPL-2+
help       help        9000000  developers-reference           */*.html                           the Debian Developer's Reference, GPL-2+
help       help        9000000  cmake-doc                      */*.html                           CMake's documentation, BSD
help       help        9000000  python-django-doc              */*.html                           Django's documentation, BSD
help       help        9000000  python-sympy-doc               */*.html                           SymPy's documentation, BSD
help       help        9000000  racket-doc                     */*.html                           Racket's documentation, MIT or Apache-2.0
help       help        9000000  qtbase5-doc-html               */*.html                           Qt's documentation, GFDL-1.3
help       help        9000000  qtdeclarative5-doc-html        */*.html                           Qt Quick's documentation, GFDL-1.3
help       help        9000000  erlang-doc                     */*.html                           Erlang's documentation, Apache-2.0
help       help        9000000  ghc-doc                        */*.html                           Haskell's libraries, BSD
help       help        9000000  octave-doc                     */*.html                           Octave's documentation, GPL-3+
cpp        code        9000000  libeigen3-dev                  */src/*.h                          the library Eigen, MPL-2.0
cpp        code       20000000  libcgal-dev                    */include/*.h                      the library CGAL, GPL-3+ and LGPL-3+
cpp        code       20000000  libdeal.ii-dev                 */include/*.h                      the library deal.II, LGPL-2.1+
cpp        code       20000000  libvtk9-dev                    */include/*.h                      the library VTK, BSD
python     code        9000000  python3-docutils               */docutils/*.py                    the package docutils, public domain and BSD
python     code       20000000  python3-sympy                  */sympy/*.py                       the package SymPy, BSD
python     code       20000000  python3-scipy                  */scipy/*.py                       the package SciPy, BSD
python     code       20000000  python3-sklearn                */sklearn/*.py                     the package scikit-learn, BSD
python     code       20000000  python3-pandas                 */pandas/*.py                      the package pandas, BSD
python     code       20000000  python3-statsmodels            */statsmodels/*.py                 the package statsmodels, BSD
python     code       20000000  python3-django                 */django/*.py                      the package Django, BSD
python     code       20000000  python3-twisted                */twisted/*.py                     the package Twisted, MIT
go         code        9000000  golang-golang-x-tools-dev      */*.go                             Go's tools, BSD
go         code        9000000  golang-golang-x-net-dev        */*.go                             Go's network libraries, BSD
rust       code        9000000  librust-tokio-dev              */*.rs                             the library Tokio, MIT
lisp       lisp       20000000  emacs-el                       */*.el                             Emacs, GPL-3+
lisp       lisp       12000000  sbcl-source                    */*.lisp                           the compiler SBCL, public domain and BSD
END
}
[ -z "$size" ] || sources() { large_sources; }

table() {
  printf '%-10s %12s %12s\n' domain 'train bytes' 'valid bytes'
  for file in "$root"/train/*."$ending"; do
    printf '%-10s %12d %12d\n' "$(basename "$file" ".$ending")" "$(wc -c <"$file")" \
      "$(wc -c <"$root/valid/$(basename "$file")")"
  done
  printf '%-10s %12d %12d   in %s\n' total "$(cat "$root"/train/*."$ending" | wc -c)" \
    "$(cat "$root"/valid/*."$ending" | wc -c)" "$root"
}

version=$(cat "$here/corpus.sh" "$here/corpus_clean.pl" | cksum)${size:+ $size}
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

# What reads them would start a program for each.
if [ -n "$size" ]; then
  find "$work/x" -type f \( -path '*/man/*.gz' -o -name '*.el.gz' \) -exec gzip -df {} +
fi

# Paths relative to the unpacked packages, sorted, so that their order is the same everywhere.
sources | while read -r domain kind most package pattern title; do
  (cd "$work/x" && find "$package" -type f -path "$pattern" | sort) >"$work/list"
  [ -s "$work/list" ] || {
    echo "corpus.sh: no files for '$title': the Debian package $package has changed its layout" >&2
    exit 1
  }
  printf '%s %s %s %s\n' "$domain" "$kind" "$most" "$title"
  cat "$work/list"
  echo
done >"$work/sources"
(cd "$work/x" && perl "$here/corpus_clean.pl" "$work/out" ${size:+"$bytes"} <"$work/sources")
if [ -n "$size" ]; then
  mkdir "$work/out/licences"
  for package in "${packages[@]}"; do
    copyright=$work/x/$package/usr/share/doc/$package/copyright
    if [ -f "$copyright" ]; then cp "$copyright" "$work/out/licences/$package"; fi
  done
fi

rm -rf "$root/train" "$root/valid" "$root/licences" "$root/sources.txt" "$root/.made-by"
cp -r "$work"/out/* "$root/"
echo "$version" >"$root/.made-by"
table
