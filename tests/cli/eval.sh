#!/bin/sh
# Runs small evaluations to their end, again, after damage and with more of everything.
# usage: eval.sh TOPKV MODEL_DIRECTORY WORK_DIRECTORY
set -u
topkv=$1 model=$2 work=$3
. "$(dirname "$0")/holds.sh"
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1
samples=1 window=64
evaluate() {
  "$topkv" eval -m "$model" --lengths 1K --samples "$samples" --kv-window "$window" -o out "$@" \
    >stdout 2>stderr
}
lines() { wc -l <out/samples.jsonl; }

holds 'an evaluation runs to its end' evaluate --tasks niah_single_1,passkey,passkey_steps \
  --methods 'dense;exact;streaming' --budgets 32,64
holds 'auto is named by the mode that it became' sh -c 'grep -q "^settings .*; prefill dense" stdout && [ "$(grep -c "\"prefill\":\"dense\"" out/samples.jsonl)" -eq 15 ]'
holds 'every answer is a line: one of dense, one for each budget of others' [ "$(lines)" -eq 15 ]
holds 'dense has no budget' [ "$(grep -c '"method":"dense","budget":null' out/samples.jsonl)" -eq 3 ]
holds 'dense finds the needle' \
  grep -q '"task":"niah_single_1".*"method":"dense".*"score":1.0' out/samples.jsonl
holds 'exact attends as many rows as the budget says' \
  [ "$(grep '"method":"exact","budget":32' out/samples.jsonl | grep -c '"rows_per_head":32.0')" -eq 3 ]
holds 'streaming attends a wider window' \
  [ "$(grep -c '"rows_per_head":0.0.*"index":"none","tail":"none","window":128' out/samples.jsonl)" -eq 3 ]
# The model has 8 layers of 2 KV heads with rows of 256 bytes: 4096 bytes a token.
holds 'dense reads all rows of its text' sh -c '
  sed -n "s/.*\"method\":\"dense\".*\"context_tokens\":\([0-9]*\),.*\"bytes_read\":\([0-9]*\),.*/\1 \2/p" \
    out/samples.jsonl | awk "{ if (\$1 * 4096 != \$2) exit 1 } END { if (NR != 3) exit 1 }"'
holds 'exact search reads all keys, sinks, window and what 6 query heads found' sh -c '
  sed -n "s/.*\"method\":\"exact\",\"budget\":32.*\"context_tokens\":\([0-9]*\),.*\"bytes_read\":\([0-9]*\),.*/\1 \2/p" \
    out/samples.jsonl | awk "{ if (\$1 * 2048 + 68 * 4096 + 32 * 8 * 6 * 256 != \$2) exit 1 }
    END { if (NR != 3) exit 1 }"'
holds 'streaming reads sinks and window' \
  [ "$(grep -c '"bytes_read":540672,.*"index":"none","tail":"none","window":128' out/samples.jsonl)" -eq 3 ]
holds 'context, question and answer are within the length' sh -c '
  sed "s/.*\"task\":\"\([a-z_0-9]*\)\".*\"context_tokens\":\([0-9]*\),\"question_tokens\":\([0-9]*\).*/\1 \2 \3/" \
    out/samples.jsonl | awk "{ answer = \$1 ~ /niah/ ? 128 : 16
    if (\$2 + \$3 + answer > 1024 || \$2 + \$3 + answer < 960) exit 1 } END { if (NR != 15) exit 1 }"'
holds 'both protocols of a passkey have one text' sh -c '
  [ "$(sed -n "s/.*\"task\":\"passkey.*\"references\":\(\[[^]]*\]\).*/\1/p" out/samples.jsonl | sort -u | wc -l)" -eq 1 ]'
holds 'there is a summary' grep -q \
  '^method,length,budget,niah_single_1,passkey,passkey_steps,average,rows_per_head,bytes_read$' out/summary.csv
holds 'there are scores' grep -q '^dense,niah_single_1,1024,,1,100.00,20.65,100.00,wilson,percent,' out/scores.csv
holds 'there is a picture' grep -q '</svg>' out/scores.svg
holds 'there is a page with the picture' grep -q '</svg>' out/report.html
holds 'the table has a line for each method and budget' [ "$(grep -c '^ *1K  ' stdout)" -ge 5 ]
cp out/samples.jsonl whole.jsonl

again() {
  evaluate --tasks niah_single_1,passkey,passkey_steps --methods 'dense;exact;streaming' \
    --budgets 32,64 "$@"
}
holds 'a finished evaluation is shown again' again
holds 'its answers stay' cmp out/samples.jsonl whole.jsonl
holds 'and nothing is asked' sh -c '! grep -q "answers/s" stderr'
head -c -40 whole.jsonl >out/samples.jsonl
holds 'it goes on after its last line was cut' again --json
holds 'all answers are there again' [ "$(lines)" -eq 15 ]
holds 'finished ones were not asked again' sh -c 'head -n 14 out/samples.jsonl | cmp - kept.jsonl' \
  "$(head -n 14 whole.jsonl >kept.jsonl)"
holds '--json prints a line per answer' [ "$(grep -c '^{"task":' stdout)" -eq 15 ]
holds 'answers are the same in another run' sh -c '
  "$1" eval -m "$2" --lengths 1K --samples 1 --kv-window 64 -o other --tasks passkey --methods exact \
    --budgets 64 >stdout 2>stderr &&
  answer() { sed -n "s/.*\"task\":\"passkey\".*\"method\":\"exact\",\"budget\":64.*\"answer\":\(\"[^\"]*\"\).*/\1/p" "$1"; }
  [ -n "$(answer other/samples.jsonl)" ] && [ "$(answer other/samples.jsonl)" = "$(answer whole.jsonl)" ]' \
  - "$topkv" "$model"

samples=2
holds 'methods, tasks, budgets and samples are added' evaluate --tasks tables_hop,passkey \
  --methods 'exact+mean;codes' --budgets 16
holds 'to what is there' sh -c 'head -n 14 out/samples.jsonl | cmp - kept.jsonl'
holds 'and are answered alone' [ "$(lines)" -eq 23 ]
window=32
evaluate --tasks passkey
holds 'other settings are refused' [ $? -eq 1 ]
holds 'and the difference named' grep -q 'kv_window 64 there, 32 here' stderr
holds 'unless started over' evaluate --tasks passkey --methods exact --fresh

printf 'The capital of Ruritania is Strelsau.\n' >text.txt
cat >asked.jsonl <<'JSON'
{"question": "What is the capital of Ruritania?", "answers": ["Strelsau", "the city of Strelsau"]}
{"question": "Say what the text is about.", "tokens": 4}
JSON
holds 'questions about files are asked' sh -c '
  "$1" eval -m "$2" --tasks qa --lengths 512 --methods "dense;exact" --budgets 16 --file text.txt \
    --questions asked.jsonl -o qa --prefill window >stdout 2>stderr' - "$topkv" "$model"
holds 'each by each method' [ "$(wc -l <qa/samples.jsonl)" -eq 4 ]
holds 'an index serves all questions about one text' [ \
  "$(sed 's/.*"method":"\([a-z]*\)".*/\1/' qa/samples.jsonl | tr '\n' ' ')" = 'dense dense exact exact ' ]
holds 'one without answers is kept and not scored' [ "$(grep -c '"references":\[\],.*"score":null,"f1":null' qa/samples.jsonl)" -eq 2 ]
holds 'one with answers has two scores' grep -q '^dense,512,,[0-9.]*,[0-9.]*,[0-9.]*,0.00,[0-9]*$' qa/summary.csv
holds 'which are named' grep -q '^method,length,budget,qa,qa_f1,average,rows_per_head,bytes_read$' qa/summary.csv

mkdir essays && printf 'One is here. Two is there! ' >essays/a.txt
holds 'prose comes from a folder' sh -c '
  "$1" eval -m "$2" --tasks niah_single_2 --lengths 512 --samples 1 --methods exact --budgets 16 \
    --essays essays -o prose >stdout 2>stderr && grep -q "\"haystack\":\"essays\"" prose/samples.jsonl' - "$topkv" "$model"
holds 'output fits 80 columns where there is no terminal' \
  sh -c '[ "$(sed "s/[…–]/./g" stdout | awk "length(\$0) > 80" | wc -l)" -eq 0 ]'
holds 'and has no escapes' sh -c '! grep -q "$(printf "\033")" stdout && ! grep -q "$(printf "\r")" stderr'

# refuses STATUS TEXT ARGUMENTS...
refuses() {
  status=$1 text=$2
  shift 2
  "$topkv" eval -m "$model" -o refused "$@" >stdout 2>stderr
  holds "status $status of $*" [ $? -eq "$status" ]
  holds "'$text' of $*: $(cat stderr)" grep -q -e "$text" stderr
  holds "nothing is left of $*" [ ! -e refused ]
}
refuses 2 "--tasks: 'nial' is no task; expected some of ruler" --tasks nial
refuses 2 "--methods: method 'exct': .*methods are dense" --methods exct
refuses 2 '--budgets: expected' --budgets 0
refuses 2 '--lengths: expected' --lengths x
refuses 2 '--samples: expected' --samples 0
refuses 2 "task vt, length 64: .*use a longer length" --tasks vt --lengths 64
refuses 2 '--questions is missing; task qa needs' --tasks qa
refuses 2 '--file: belongs to task qa' --tasks vt --file text.txt
refuses 1 'none.jsonl' --tasks qa --questions none.jsonl
refuses 2 'task qa, length 64: .*for it is not cut\|leaves none for the context' --tasks qa --lengths 64 --file text.txt --questions asked.jsonl
refuses 2 "--essays: expected a directory of \*.txt and \*.md files, found 'text.txt'" --essays text.txt
end
