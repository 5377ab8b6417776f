#!/bin/bash
# What a shell that has read `topkv completion bash` offers, and that the scripts of all shells and the
# manual page are read without complaint, where their readers are on this machine.
# usage: completion.sh TOPKV MODEL_DIRECTORY WORK_DIRECTORY
set -u
topkv=$1 work=$3
rm -rf "$work" && mkdir -p "$work/models" && cd "$work" || exit 1
failures=0
indices='codes exact ivf hnsw faiss:IVF,SQ8 faiss:HNSW32 quest sparq squeezed retroinfer lowrank h2o tova none'
: >book.tkv
: >notes.txt
: >small.gguf
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
offers 'topkv ask ' 'models book.tkv'
offers 'topkv verify ' 'models book.tkv'
offers 'topkv serve -m models ' 'models book.tkv'
offers 'topkv info ' 'models small.gguf book.tkv'
offers 'topkv plan ' 'models small.gguf'
offers 'topkv ask -m ' 'models small.gguf'
offers 'topkv needle -o ' 'models'
offers 'topkv ask book.tkv --kv-index ' "$indices"
offers 'topkv generate --kv-index sq' 'squeezed'
offers 'topkv prefill --kv-index fa' 'faiss:IVF,SQ8 faiss:HNSW32'
offers 'topkv plan --kv-index ' 'codes exact'
offers 'topkv needle --haystack n' 'noise needles'
offers 'topkv bench ' 'decode prefill'
offers 'topkv generate ' ''
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

# fish_offers WORDS EXPECTED: as fish completes them
fish_offers() {
  local got
  got=$(HOME=$work fish -N -c 'source topkv.fish; complete -C $argv[1]' "$1" 2>&1 | cut -f 1 | sort | paste -s -d ' ')
  [[ $got == "$(tr ' ' '\n' <<<"$2" | sort | paste -s -d ' ')" ]] && return
  failures=$((failures + 1))
  echo "FAILED: fish offers '$got' behind '$1', expected '$2'"
}
if command -v fish >/dev/null; then
  fish_offers 'topkv ask ' 'book.tkv models/'
  fish_offers 'topkv verify bo' 'book.tkv'
  fish_offers 'topkv serve -m models ' 'book.tkv models/'
  fish_offers 'topkv info ' 'book.tkv models/ small.gguf'
  fish_offers 'topkv ask -m ' 'models/ small.gguf'
  fish_offers 'topkv ask book.tkv --kv-index ' "$indices"
  fish_offers 'topkv generate -f no' 'notes.txt'
  fish_offers 'topkv bench ' 'decode prefill'
fi

# zsh_says COMMAND SPEC: the script tells zsh's _arguments so
zsh_says() {
  zsh -f -c 'compdef() { :; }; _arguments() { print -rl -- "$@"; }; source ./_topkv
    words=(topkv $1 ""); CURRENT=3; _topkv' zsh "$1" | grep -qxF -e "$2" && return
  failures=$((failures + 1))
  echo "FAILED: zsh is not told '$2' of topkv $1"
}
if command -v zsh >/dev/null; then
  for command in ask serve verify; do zsh_says $command '*:FILE.tkv:_files -g "*.tkv"'; done
  zsh_says info '*:DIR|FILE.tkv:_files -g "*.(gguf|tkv)"'
  zsh_says bench '*:decode|prefill:(decode prefill)'
  zsh_says ask "*--kv-index[find rows with an index of the file, or build another one first]:SPEC:(${indices//:/\\:})"
  zsh_says generate '*--stop[end an answer before this text or special token; repeat for several; \\n, \\t, \\r, \\\\ as in C]:TEXT: '
fi
reads groff -k -man -Tutf8 -ww topkv.1

if [[ $failures -gt 0 ]]; then
  echo "$failures failed"
  exit 1
fi
