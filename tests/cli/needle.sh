#!/bin/sh
# Runs a small needle grid to its end, again, and after damage, and generates with and without
# files.
# usage: needle.sh TOPKV MODEL_DIRECTORY WORK_DIRECTORY
set -u
topkv=$1 model=$2 work=$3
. "$(dirname "$0")/holds.sh"
tools=$(cd "$(dirname "$0")/../../tools" && pwd)
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1
needle() { "$topkv" needle -m "$model" -c 2K --depths 3 -n 12 -o out "$@" >stdout 2>stderr; }

holds 'a grid runs to its end' needle
holds 'every cell is a line of cells.jsonl' [ "$(wc -l <out/cells.jsonl)" -eq 3 ]
holds 'the model finds all needles of 2K' grep -q '^score .* 3 of 3 found' stdout
holds 'there is a configuration' grep -q '"kv_topk": "128"' out/run.json
holds 'there is a summary' grep -q '^2048,[0-9]*,"codes:k=32,v=8",3,3,1.0000,' out/summary.csv
holds 'there is a picture' grep -q '</svg>' out/heatmap.svg
holds 'there is a page with the picture' grep -q '</svg>' out/report.html
holds 'a cell has how its context was read' [ "$(grep -c '"prefill":"window"' out/cells.jsonl)" -eq 3 ]
holds 'the page has the settings' grep -q '<td>kv_topk</td>' out/report.html
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

holds 'an unmeasured recall is null' [ "$(grep -c '"recall":null' whole.jsonl)" -eq 3 ]
holds 'length and context tokens are named apart' grep -q '^length,context_tokens,index,' out/summary.csv
holds 'and are those of the cells' sh -c \
  'grep -q "^2048,$(sed -n "s/.*\"context_tokens\":\([0-9]*\).*/\1/p" whole.jsonl | head -n 1),\"codes:k=32,v=8\"" out/summary.csv'

cp out/cells.jsonl before.jsonl
holds 'more lengths are added' \
  sh -c '"$1" needle -m "$2" -c 1K,2K --depths 3 -n 12 -o out >stdout 2>stderr' - "$topkv" "$model"
holds 'to the cells there' sh -c 'head -n 3 out/cells.jsonl | cmp - before.jsonl'
holds 'which are not run again' sh -c 'grep -q "^1K prefill" stderr && ! grep -q "^2K prefill" stderr'
holds 'and all are shown' grep -q '^score .* of 6 found' stdout
holds 'more indices are added' needle --kv-index hnsw
holds 'and all are shown' grep -q '^score .* of 9 found ([0-9]* %)$' stdout
holds 'an index is the same in another spelling' needle --kv-index hnsw:M=16
holds 'and its cells are there' [ "$(wc -l <out/cells.jsonl)" -eq 9 ]

cp -r out kept
"$topkv" needle -m "$model" -c 1T --depths 3 -n 12 -o out --fresh >stdout 2>stderr
holds 'a run that is refused keeps what was there' diff -r out kept
"$topkv" needle -m "$model" -c 64 --depths 3 -n 12 -o out --fresh >stdout 2>stderr
holds 'also when it is refused late' diff -r out kept
"$topkv" needle -m "$model" -c 64 --depths 3 -n 12 -o new/deep >stdout 2>stderr
holds 'and makes nothing new' [ ! -e new ]
holds 'without -o different settings go to different folders' sh -c '
  "$1" needle -m "$2" -c 1K --depths 1 -n 4 >stdout 2>stderr &&
  "$1" needle -m "$2" -c 1K --depths 1 -n 4 --kv-topk 32 >stdout 2>stderr &&
  "$1" needle -m "$2" -c 1K,2K --depths 1 -n 4 --kv-topk 32 >stdout 2>stderr &&
  [ "$(ls -d out/needle-needle-14m-* | wc -l)" -eq 2 ]' - "$topkv" "$model"
rm -rf out/needle-*
holds 'output fits 80 columns where there is no terminal' sh -c '
  "$1" needle -m "$2" -c 1K,2K --depths 3 -n 12 -o out >stdout 2>stderr &&
  [ "$(sed "s/…/./g" stdout | awk "length(\$0) > 80" | wc -l)" -eq 0 ]' - "$topkv" "$model"
holds 'and has no escapes' sh -c '! grep -q "$(printf "\033")" stdout && ! grep -q "$(printf "\r")" stderr'
holds 'lengths can count as RULER does' sh -c '
  "$1" needle -m "$2" -c 1K --depths 3 -n 12 -o ruler --ruler-length --json 2>stderr |
  sed "s/.*\"context_tokens\":\([0-9]*\).*\"question_tokens\":\([0-9]*\).*/\1 \2/" |
  awk "{ if (\$1 + \$2 + 128 > 1024 || \$1 + \$2 + 128 < 960) exit 1 } END { if (NR != 3) exit 1 }"' - "$topkv" "$model"

needle --kv-topk 32
holds 'another configuration is refused' [ $? -eq 1 ]
holds 'and the difference named' grep -q 'kv_topk "128" there, "32" here' stderr
holds 'unless started over' needle --kv-topk 32 --fresh

holds 'text is generated' \
  sh -c '"$1" generate -m "$2" -p "Once upon" -n 4 >text 2>stats && [ -s text ]' - "$topkv" "$model"
holds 'its figures go to stderr' grep -q '^generated  4 tokens' stats
fact='One of the special magic numbers for blue-owl is: 5551234.'
question='The special magic number for blue-owl mentioned in the provided text is'
holds 'a file is context' sh -c \
  'echo "$3" | "$1" generate -m "$2" -f - -p "$4" -n 8 --json 2>/dev/null | grep -q 5551234' - \
  "$topkv" "$model" "$fact" "$question"

# A file and a prompt are one text: its tokens, however it is cut.
tokens() {
  "$topkv" generate -m "$model" -n 1 --json "$@" 2>/dev/null |
    sed -n 's/.*"context_tokens":\([0-9]*\).*"prompt_tokens":\([0-9]*\).*/\1 \2/p'
}
sum() { set -- $1; echo $(($1 + $2)); }
asked='What is the special magic number for blue-owl mentioned in the provided text?'
whole=$(tokens -p "$fact
$asked")
echo "$fact" >line.txt
printf '%s' "$fact" >no_line.txt
holds 'a file that ends its line and a question are one text' \
  [ "$(sum "$(tokens -f line.txt -p "$asked")")" -eq "$(sum "$whole")" ]
holds 'so are a file that does not, and a line break' \
  [ "$(sum "$(tokens -f no_line.txt -p "
$asked")")" -eq "$(sum "$whole")" ]
holds 'a prompt that is all of the text makes no context' \
  sh -c 'printf o >o.txt; [ "$1" = "0 1" ]' - "$(printf wh >o.txt; tokens -f o.txt -p at)"

# Keys with biases as large as those of Qwen2.5, in 4 bits.
python3 "$tools/bias_keys.py" "$model" biased --norm 900
holds 'keys with large biases are found in 4 bits' \
  sh -c '"$1" needle -m biased -c 2K --depths 3 -n 12 --kv-dtype q4 -o out-biased >stdout 2>stderr' - "$topkv"
holds 'all of them' grep -q '^score .* 3 of 3 found' stdout
holds 'without a warning' [ "$(grep -c warning stderr)" -eq 0 ]

# Paths of any bytes; output is UTF-8.
bad=$(printf 'caf\351')
cp -r "$model" "$bad" && holds 'a path that is not UTF-8 is taken' \
  "$topkv" needle -m "$bad" -c 1K --depths 1 -n 4 -o "out-$bad" 2>/dev/null
holds 'and taken up again' "$topkv" needle -m "$bad" -c 1K --depths 1 -n 4 -o "out-$bad" 2>/dev/null
for file in run.json cells.jsonl summary.csv heatmap.svg report.html; do
  holds "its $file is UTF-8" iconv -f utf-8 -t utf-8 "out-$bad/$file"
done

end
