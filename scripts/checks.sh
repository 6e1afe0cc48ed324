# For scripts that make a list of checks; to be sourced. They set $work, a folder of their own, call
# `check` for each and `summary` at the end.
passed=0
failed=0

# check NAME COMMAND...: one line for the check, with the last one that the command wrote; a failure
# shows the end of it.
check() {
  local name=$1 code
  shift
  # Not in an `if`: there bash would ignore the command's own `set -e`.
  set +e
  (set -e; "$@") >"$work/out" 2>&1
  code=$?
  set -e
  if [ "$code" = 0 ]; then
    passed=$((passed + 1))
    echo "ok    $name$([ ! -s "$work/out" ] || printf ': ')$(tail -n 1 "$work/out")"
  else
    failed=$((failed + 1))
    echo "FAIL  $name"
    tail -n 60 "$work/out" | sed 's/^/      /'
  fi
}

# For the commands of a check: `! a` is no failure to `set -e`, and the failing links of `a && b`
# are none before b, so each step stands on its own line.
# ends_with STATUS COMMAND...: the command fails as it should.
ends_with() {
  local wanted=$1 code=0
  shift
  "$@" || code=$?
  [ "$code" = "$wanted" ] || {
    echo "ended with status $code instead of $wanted: $*" >&2
    return 1
  }
}
# lacks GREP-ARGUMENTS...: nothing matches. What grep cannot read is a failure, not an absence.
lacks() { ends_with 1 grep "$@"; }
# has GREP-ARGUMENTS... FILE: some line of the file matches; the file is shown where none does.
has() {
  grep -q "$@" || {
    echo "no line like this: ${*:1:$#-1}" >&2
    tail -n 30 "${*: -1}"
    return 1
  }
}

# The last line of the script; its status is the script's.
summary() {
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
}

# virtual_environment FOLDER REQUIREMENTS: made once. It is used as it is when its copy of the pins
# equals ours; a half-made one has no copy and is made anew.
virtual_environment() {
  if cmp -s "$2" "$1/requirements.txt"; then return; fi
  echo "installing what $2 names into $1 (once)" >&2
  rm -rf "$1"
  mkdir -p "$(dirname "$1")"
  python3 -m venv "$1"
  "$1/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check -r "$2" >&2
  cp "$2" "$1/requirements.txt"
}

# some_text WORDS: that many words with some structure, the same each time.
some_text() {
  awk -v words="$1" '
    BEGIN {
      srand(7)
      known = "the a small large expert router token learns routes reads writes and then of to " \
              "model line word"
      n = split(known, w, " ")
      for (i = 0; i < words; ++i) {
        r = int(rand() * rand() * n) + 1
        printf "%s%s", w[r], (i % 11 == 10 ? ".\n" : " ")
      }
    }'
}
