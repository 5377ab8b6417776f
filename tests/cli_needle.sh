#!/bin/sh
# Runs a small needle grid to its end, again, and after damage, and generates with and without
# files.
# usage: cli_needle.sh TOPKV MODEL_DIRECTORY WORK_DIRECTORY
set -u
topkv=$1 model=$2 work=$3
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1
failures=0

# holds WHAT COMMAND...: the command succeeds
holds() {
  what=$1
  shift
  "$@" >/dev/null || {
    failures=$((failures + 1))
    echo "FAILED: $what"
  }
}
needle() { "$topkv" needle -m "$model" -c 2K --depths 3 -n 12 -o out "$@" >stdout 2>stderr; }

holds 'a grid runs to its end' needle
holds 'every cell is a line of cells.jsonl' [ "$(wc -l <out/cells.jsonl)" -eq 3 ]
holds 'the model finds all needles of 2K' grep -q '^score .* 3 of 3 found' stdout
holds 'there is a configuration' grep -q '"kv_topk": "64"' out/run.json
holds 'there is a summary' grep -q '^2048,exact,3,3,1.0000,' out/summary.csv
holds 'there is a picture' grep -q '</svg>' out/heatmap.svg
cp out/cells.jsonl whole.jsonl

holds 'a finished grid is shown again' needle
holds 'nothing is prefilled for it' sh -c '! grep -q "prefill .*tokens/s" stderr'
holds 'its cells stay' cmp out/cells.jsonl whole.jsonl

head -c -40 whole.jsonl >out/cells.jsonl
holds 'a grid goes on after its last line was cut' needle --json
holds 'all cells are there again' [ "$(wc -l <out/cells.jsonl)" -eq 3 ]
holds '--json prints a line per cell' [ "$(grep -c '^{"length":2048,' stdout)" -eq 3 ]
holds 'finished cells were not asked again' sh -c 'head -n 2 out/cells.jsonl | cmp - kept.jsonl' \
  "$(head -n 2 whole.jsonl >kept.jsonl)"

needle --kv-topk 32
holds 'another configuration is refused' [ $? -eq 1 ]
holds 'and the difference named' grep -q 'kv_topk "64" there, "32" here' stderr
holds 'unless started over' needle --kv-topk 32 --fresh

holds 'text is generated' \
  sh -c '"$1" generate -m "$2" -p "Once upon" -n 4 >text 2>stats && [ -s text ]' - "$topkv" "$model"
holds 'its figures go to stderr' grep -q '^generated  4 tokens' stats
fact='One of the special magic numbers for blue-owl is: 5551234.'
question='The special magic number for blue-owl mentioned in the provided text is'
holds 'a file is context' sh -c \
  'echo "$3" | "$1" generate -m "$2" -f - -p "$4" -n 8 --json 2>/dev/null | grep -q 5551234' - \
  "$topkv" "$model" "$fact" "$question"

[ "$failures" -eq 0 ] && echo "all as it should be"
exit "$failures"
