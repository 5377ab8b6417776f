#!/usr/bin/env bash
# Walks README's first use as a new user does, in a Debian 12 that has its base system alone, and
# prints the record of it as a page: each command, what it printed, and what it cost.
#
# usage: walk.sh command|python ROOT >docs/tutorials/walk-….md     as root
#   ROOT  a folder that `debootstrap --variant=minbase bookworm ROOT` has just filled. The walk's last
#         commit is cloned into it; its network is this machine's (PIP_CERT: the certificates that
#         it takes, if not the common ones)
set -euo pipefail
source_tree=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tools/first_use.sh
source "$source_tree/tools/first_use.sh"
way=$1 root=$2
[[ ! -e $root/root/topkv ]] || {
  echo "walk: error: $root has been walked in; make it anew" >&2
  exit 1
}

git clone --quiet --no-hardlinks "$source_tree" "$root/root/topkv"
long_text >"$root/root/topkv/notes.txt"
cp -L /etc/resolv.conf "$root/etc/"
environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
if [[ -n ${PIP_CERT-} ]]; then
  cp "$PIP_CERT" "$root/root/certificates.pem"
  environment+=(PIP_CERT=/root/certificates.pem)
fi
work=$(mktemp -d)
mount --bind /proc "$root/proc"
trap 'umount "$root/proc"; rm -rf "$work"' EXIT

# COMMAND [LINES]: runs it in the clone and adds it to the record, with the last LINES of its output [all].
TIMEFORMAT='%R %U %S'
step() {
  local wall user system cpu status=0
  { time env -i "${environment[@]}" chroot "$root" bash -c "cd ~/topkv && $1" >"$work/output" 2>&1; } \
    2>"$work/time" || status=$?
  read -r wall user system <"$work/time"
  cpu=$(bc <<<"$user + $system")
  printf '| `%s` | %.1f | %.1f |\n' "${1//|/\\|}" "$wall" "$cpu" >>"$work/table"
  {
    printf '    $ %s\n' "$1"
    [[ -z ${2-} || $(wc -l <"$work/output") -le $2 ]] || echo '    …'
    tail -n "${2-1000}" "$work/output" | sed 's/^/    /; s/ *$//'
    printf '\n'
  } >>"$work/record"
  [[ $status -eq 0 ]] || {
    cat "$work/record"
    echo "walk: error: exit status $status" >&2
    exit 1
  }
}

# The step before has answered with the fact.
answered() {
  grep -q "^ *$number" "$work/output" || {
    cat "$work/record"
    echo "walk: error: the last command does not answer $number" >&2
    exit 1
  }
}

load() { cut -d' ' -f1 /proc/loadavg; }
load_before=$(load)
started=$(date -u '+%Y-%m-%d')
case $way in
  command)
    title='The command, from a bare system to an answer'
    recorded="[the tutorial's commands](command.md#read-once-ask-often), with README's fact,"
    topkv=build/release/src/cli/topkv
    step 'apt-get update && apt-get install --yes make' 2
    step 'make setup' 2
    step 'make build' 2
    step "$topkv prefill -m models/needle-14m -f notes.txt -o notes.tkv --prefill window" 6
    step "$topkv ask notes.tkv -m models/needle-14m -n 12 -p '$question'"
    answered
    step "echo '$chat_question' | $topkv chat -m models/needle-14m -f notes.txt -n 9 --prefill window" 4
    ;;
  python)
    title='Python, from a bare system to an answer'
    recorded="[README's first use](../../README.md#a-first-use)"
    first_program >"$root/root/topkv/first.py"
    step 'apt-get update && bash tools/setup.sh' 2
    step 'python3 -m venv venv && . venv/bin/activate && pip install .' 2
    step 'cat first.py'
    step '. venv/bin/activate && python first.py'
    ;;
esac
answered

cat <<TEXT
# $title

This page records $recorded in a Debian 12 that has its base system only, without
a GPU. It shows each command, its cost and its output.

- machine: $(nproc) cores ($(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1)), load $load_before at the beginning and $(load) at the end
- date: $started
- \`notes.txt\`: $(wc -m <"$root/root/topkv/notes.txt") characters, the pages of this documentation with README's fact as the line in the middle
- commit: \`$(git -C "$root/root/topkv" rev-parse --short HEAD)\`

This command recorded it, with [\`tools/walk.sh\`](../../tools/walk.sh):

    debootstrap --variant=minbase bookworm ROOT && bash tools/walk.sh $way ROOT

| command | seconds | seconds of processors |
| --- | --: | --: |
TEXT
cat "$work/table"
awk -F'|' '{ wall += $(NF - 2); cpu += $(NF - 1) } END { printf "| all | %.1f | %.1f |\n\n", wall, cpu }' "$work/table"
sed '$d' "$work/record"
