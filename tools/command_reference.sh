#!/usr/bin/env bash
# Prints docs/reference/command.md: the help of every command of a built topkv.
#   tools/command_reference.sh build/dev/src/cli/topkv > docs/reference/command.md
set -euo pipefail
topkv=$1
unset COLUMNS # the page is as wide as a pipe, wherever it is made

help_of() {
  printf '\n```text\n%s\n```\n' "$("$topkv" help "$@")"
}

cat <<'TEXT'
# The command

This page is the output of `topkv help` and `topkv help COMMAND`. To learn the command: [A first session](../tutorials/command.md).
TEXT
help_of
commands=$("$topkv" help | awk '/^  help COMMAND/ { exit } /^  [a-z]/ { print $1 }')
for command in $commands; do
  printf '\n## topkv %s\n' "$command"
  help_of "$command"
done
