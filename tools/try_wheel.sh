#!/usr/bin/env bash
# Tries a wheel as one who has nothing else: in a fresh environment, and without any variable of this
# shell, README's program in Python and the command `topkv` find a fact in a long text.
#
# usage: try_wheel.sh PYTHON WHEEL...     WHEEL: topkv's, and what it needs where PyPI is not reached
set -euo pipefail
source_tree=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tools/first_use.sh
source "$source_tree/tools/first_use.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "try_wheel: FAILED: $*" >&2
  exit 1
}

python=$(command -v "$1") || fail "no interpreter $1"  # its environment has no PATH to find it by
shift
env -i "$python" -m venv "$work/venv"
env -i "$work/venv/bin/pip" install --quiet "$@"
mkdir "$work/user" && cd "$work/user"
ln -s "$source_tree/models" .
long_text >notes.txt
first_program >program.py
topkv=$work/venv/bin/topkv

env -i "$work/venv/bin/python" program.py | tee answer
[[ $(<answer) =~ ^\ *"$number" ]] || fail "the program's answer does not begin with $number"
rm notes.tkv

env -i "$topkv" prefill -m models/needle-14m -f notes.txt -o notes.tkv --prefill window
env -i "$topkv" ask notes.tkv -m models/needle-14m -n 12 -p "$question" | tee answer
[[ $(<answer) =~ ^\ *"$number" ]] || fail "the command's answer does not begin with $number"

coproc server { exec env -i "$topkv" serve -m models/needle-14m --port 0 notes.tkv; }
read -r address <&"${server[0]}" || fail "topkv serve does not start"
env -i "$work/venv/bin/python" -c 'import sys, urllib.request as r; print(r.urlopen(sys.argv[1] + "/v1/models").read().decode())' "$address"
kill "$server_PID"
wait "$server_PID" || fail "topkv serve ends with status $?"
echo "$("$topkv" --version) of $(basename "$1") works"
