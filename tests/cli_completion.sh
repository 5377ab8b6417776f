#!/bin/bash
# What a shell that has read `topkv completion bash` offers, and that the scripts of all shells and the
# manual page are read without complaint, where their readers are on this machine.
# usage: cli_completion.sh TOPKV MODEL_DIRECTORY WORK_DIRECTORY
set -u
topkv=$1 work=$3
rm -rf "$work" && mkdir -p "$work/models" && cd "$work" || exit 1
failures=0
: >book.tkv
: >notes.txt
"$topkv" completion bash >topkv.bash || exit 1
source ./topkv.bash

# offers WORDS EXPECTED: behind these words, of which the last may be begun, in one line
offers() {
  IFS=' ' read -r -a COMP_WORDS <<<"$1"
  [[ $1 == *' ' ]] && COMP_WORDS+=('')
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  _topkv 2>/dev/null # compopt knows no completion here
  if [[ "${COMPREPLY[*]}" != "$2" ]]; then
    failures=$((failures + 1))
    echo "FAILED: '$1' offers '${COMPREPLY[*]}', expected '$2'"
  fi
}

offers 'topkv pre' 'prefill'
offers 'topkv help fid' 'fidelity'
offers 'topkv completion ' 'bash zsh fish'
offers 'topkv ask --mm' '--mmap'
offers 'topkv generate --kv-d' '--kv-dense-layers --kv-dtype'
offers 'topkv generate --kv-select ' 'query_head group'
offers 'topkv generate --device cu' 'cuda'
offers 'topkv generate -m mod' 'models'
offers 'topkv generate -f no' 'notes.txt'
offers 'topkv ask bo' 'book.tkv'
offers 'topkv generate -n ' ''
offers 'topkv verify --kv' ''

# reads READER ARGUMENTS...: prints nothing to standard error and ends well
reads() {
  command -v "$1" >/dev/null || return
  if ! "$@" >/dev/null 2>errors || [[ -s errors ]]; then
    failures=$((failures + 1))
    echo "FAILED: $*"
    cat errors
  fi
}

"$topkv" completion zsh >_topkv && "$topkv" completion fish >topkv.fish && "$topkv" manual >topkv.1 || exit 1
reads bash -n topkv.bash
reads zsh -n _topkv
reads fish -n topkv.fish
reads groff -k -man -Tutf8 -ww topkv.1

if [[ $failures -gt 0 ]]; then
  echo "$failures failed"
  exit 1
fi
