#!/bin/bash
# The command's page in docs/ is what the command's help says.
# usage: command_reference.sh TOPKV SOURCE_DIRECTORY
set -eu
page=$2/docs/reference/command.md
if ! "$2/tools/command_reference.sh" "$1" | diff "$page" -; then
  echo "FAILED: docs/reference/command.md is not what topkv's help says (above, its lines are <);" \
    "run: tools/command_reference.sh $1 > docs/reference/command.md"
  exit 1
fi
