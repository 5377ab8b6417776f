#!/bin/sh
# Contexts in files with the tool: what is asked of one equals what is asked of the text, plain and
# in a chat template; what does not fit together is refused; a process that is killed while it
# writes leaves the file that was there.
# usage: ask.sh TOPKV MODEL_DIRECTORY WORK_DIRECTORY
set -u
topkv=$1 model=$(cd "$2" && pwd) work=$3
. "$(dirname "$0")/holds.sh"
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1

noise='The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.'
{
  for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo "$noise"; done
  echo 'One of the special magic numbers for quiet-river is: 7281934.'
  for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo "$noise"; done
  printf 'One of the special magic numbers for tall-tower is: 5520017.'
} >notes.txt
ask() {
  echo " What is the special magic number for $1 mentioned in the provided text? The special magic number for $1 mentioned in the provided text is"
}
first=$(ask quiet-river) second=$(ask tall-tower)
flags='--device cpu -t 2 --kv-window 64'
"$topkv" prefill -m "$model" -f notes.txt -o notes.tkv --device cpu -t 2 2>log || echo "FAILED: $(cat log)"
holds 'prefill writes nothing to standard output' test "$("$topkv" prefill -m "$model" -f notes.txt -o other.tkv --device cpu 2>/dev/null | wc -c)" -eq 0
holds 'the same text gives the same bytes' cmp -s notes.tkv other.tkv
"$topkv" ask notes.tkv -m "$model" $flags -n 9 -p "$first" -p "$second" >answers 2>log || echo "FAILED: $(cat log)"
holds 'an answer for each prompt' test "$(cat answers)" = ' 7281934.
 5520017.'
holds 'a line of times for each' test "$(grep -c '^\[.* tokens read' log)" -eq 2
printf '%s\n\n%s\n' "$first" "$second" | "$topkv" ask notes.tkv -m "$model" $flags -n 9 --mmap >mapped 2>log
holds 'lines of standard input, rows in the file' cmp answers mapped
printf '%s\n\377\n%s\n' "$first" "$second" | "$topkv" ask notes.tkv -m "$model" $flags -n 9 >before 2>log
holds 'a line that is not UTF-8 ends it' grep -q '^topkv: error: standard input' log
holds 'and those before it are answered' test "$(cat before)" = ' 7281934.'
for prompt in "$first" 'x' '.5' ' and' '
then' '17' 'é'; do
  "$topkv" generate -m "$model" -f notes.txt -p "$prompt" $flags -n 1 --json >whole.json 2>/dev/null
  "$topkv" ask notes.tkv -m "$model" $flags -n 1 -p "$prompt" --json >kept.json 2>/dev/null
  holds "as many tokens as the text and the prompt have as one: '$prompt'" python3 -c '
import json
whole, kept = (json.loads(open(f).readlines()[-1]) for f in ("whole.json", "kept.json"))
assert whole["context_tokens"] + whole["prompt_tokens"] == kept["context_tokens"] + kept["prompt_tokens"]'
done
"$topkv" generate -m "$model" -f notes.txt -p "$first" $flags -n 9 >whole 2>/dev/null
"$topkv" ask notes.tkv -m "$model" $flags -n 9 -p "$first" >kept 2>/dev/null
holds 'asked of the file as of the text' cmp -s whole kept
# Indices of FAISS come from the file as they were built.
"$topkv" prefill -m "$model" -f notes.txt -o faiss.tkv --device cpu -t 2 --kv-index faiss:IVF,SQ8 --kv-index faiss:HNSW8 2>log || echo "FAILED: $(cat log)"
holds 'verifies' "$topkv" verify faiss.tkv
for index in faiss:IVF,SQ8 faiss:HNSW8; do
  "$topkv" generate -m "$model" -f notes.txt -p "$first" $flags -n 9 --kv-index $index --kv-topk 32 >whole 2>/dev/null
  "$topkv" ask faiss.tkv -m "$model" $flags -n 9 -p "$first" --kv-index $index --kv-topk 32 >kept 2>log
  holds "$index of a file answers as one that is built" cmp -s whole kept
  holds "$index is loaded, not built" sh -c '! grep -q "^index " log'
done
# Several together, as many as there are and each as if alone.
"$topkv" ask notes.tkv -m "$model" $flags -n 9 -p "$first" -p ' The grass is' -p "$second" -p "$first" >together 2>/dev/null
{ for p in "$first" ' The grass is' "$second" "$first"; do "$topkv" ask notes.tkv -m "$model" $flags -n 9 -p "$p"; done; } >serial 2>/dev/null
holds 'answers together are those of each alone, in order' cmp together serial
for i in 1 2 3 4 5 6 7 8 9; do printf '%s\n%s\n' "$first" "$second"; done >prompts
"$topkv" ask notes.tkv -m "$model" $flags -n 9 --json <prompts >json 2>/dev/null
holds 'more than are stepped at a time, in JSON, in order' python3 -c '
import json
got = [one for one in map(json.loads, open("json")) if one["event"] == "answer"]
assert [one["answer"] for one in got] == list(range(18))
asked = open("prompts").read().splitlines()
assert [one["prompt"] for one in got] == asked and [one["text"] for one in got] == [" 7281934.", " 5520017."] * 9'
holds 'who waits for an answer before asking again gets it' python3 - "$topkv" "$model" "$first" "$second" <<'END'
import subprocess, sys
topkv, model, *prompts = sys.argv[1:]
command = [topkv, "ask", "notes.tkv", "-m", model, "--device", "cpu", "-t", "2", "--kv-window", "64", "-n", "9"]
with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as asked:
    for prompt, answer in zip(prompts, (" 7281934.", " 5520017.")):
        asked.stdin.write(prompt + "\n")
        asked.stdin.flush()
        assert asked.stdout.readline() == answer + "\n"
    asked.stdin.close()
    assert asked.wait() == 0
END
"$topkv" ask notes.tkv -m "$model" $flags -n 9 --draft-model "$model" -p "$first" -p "$second" >drafted 2>log
holds 'a draft model changes no answer' cmp answers drafted
"$topkv" prefill -m "$model" -f notes.txt -o graph.tkv --kv-index hnsw --device cpu 2>log || echo "FAILED: $(cat log)"
"$topkv" ask graph.tkv -m "$model" $flags -n 9 -p "$first" -p "$second" >graph 2>log
holds 'a graph is kept' cmp answers graph
holds 'and not built again' sh -c "! grep -q '^index ' log"
"$topkv" ask notes.tkv -m "$model" $flags -n 9 -p "$first" --kv-index hnsw >graph 2>log
holds 'where the file has none it is built, and that is told' grep -q '^index ' log
# The text counts for penalties, as it does where it is a file.
for penalty in 1 2; do
  dense="$flags -n 12 --kv-index exact --kv-topk 4096 --repetition-penalty $penalty"
  "$topkv" generate -m "$model" -f notes.txt -p ' The grass is' $dense >whole.$penalty 2>/dev/null
  "$topkv" ask notes.tkv -m "$model" -p ' The grass is' $dense >kept 2>/dev/null
  holds "with a repetition penalty of $penalty as of the text" cmp whole.$penalty kept
done
holds 'which changes the answer' sh -c '! cmp -s whole.1 whole.2'
"$topkv" ask notes.tkv -m "$model" $flags -n 9 -p "$first" --json >json 2>/dev/null
holds 'JSON, a line for each' python3 -c 'import json; r = [e for e in map(json.loads, open("json")) if e["event"] == "answer"]; assert len(r) == 1 and r[0]["text"] == " 7281934." and r[0]["context_tokens"] > 700'
"$topkv" ask notes.tkv -m "$model" $flags -n 9 -p "$first" --kv-index ivf --kv-tail none >built 2>/dev/null
holds 'an index that the file has not is built' test "$(cat built)" = ' 7281934.'

# A long prompt is a turn.
long=" $(for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do echo "$noise"; done)$first"
turn="$flags -n 9 --prefill-window 64 --prefill-keys 64 --prefill-least 0 --json"
"$topkv" ask notes.tkv -m "$model" ${turn% --json} --prefill sparse -p "$long" -p "$first" >out 2>log
holds 'what a turn attended is printed, for no short prompt' test "$(grep -c '^\[turn: sparse, .* of the keys\]$' log)" -eq 1
"$topkv" ask notes.tkv -m "$model" $turn --prefill sparse -p "$long" >json 2>log
holds 'and is in JSON' python3 -c 'import json; r = json.loads(open("json").readlines()[-1]); assert 0 < r["turn_keys"] < r["turn_mass"] <= 1'
"$topkv" ask notes.tkv -m "$model" $flags -n 9 --prefill window -p "$long" --json >json 2>log
holds 'with --prefill window there is no turn' python3 -c 'import json; r = json.loads(open("json").readlines()[-1]); assert r["turn_keys"] is None'

# In a chat template.
mkdir chat && ln -s "$model"/* chat/ && rm chat/chat_template.jinja
printf '%s' '{% for m in messages %}{{ "<" ~ m.role ~ ">" }}{{ m.content }}{{ "\n" }}{% endfor %}{{ "<a>" if add_generation_prompt }}' >chat/chat_template.jinja
"$topkv" prefill -m chat -f notes.txt -o chat.tkv --chat --system 'Be brief.' --device cpu 2>log || echo "FAILED: $(cat log)"
"$topkv" generate -m chat --chat --system 'Be brief.' -f notes.txt -p "$first" $flags -n 9 >whole 2>/dev/null
"$topkv" ask chat.tkv -m chat $flags -n 9 -p "$first" >kept 2>log || echo "FAILED: $(cat log)"
holds 'asked of the file as of the text, in the template' cmp whole kept
holds 'info says so' sh -c "'$topkv' info chat.tkv | grep -q 'in a chat template'"

# Keys that are turned for a length of text: the file says which.
mkdir turns && ln -s "$model"/* turns/ && rm turns/config.json
python3 -c '
import json, sys
config = json.load(open(sys.argv[1] + "/config.json"))
config["max_position_embeddings"] = 2048
config["rope_parameters"] = {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 2.3}
json.dump(config, open("turns/config.json", "w"))' "$model"
"$topkv" prefill -m turns -f notes.txt -o turns.tkv --length 4096 --device cpu 2>log || echo "FAILED: $(cat log)"
"$topkv" generate -m turns -f notes.txt -p "$first" $flags -n 9 --length 4096 >whole 2>/dev/null
"$topkv" ask turns.tkv -m turns $flags -n 9 -p "$first" >kept 2>log || echo "FAILED: $(cat log)"
holds 'asked with the length that it was read for' cmp whole kept
"$topkv" prefill -m turns -f notes.txt -o whole.tkv --device cpu 2>log || echo "FAILED: $(cat log)"
"$topkv" generate -m turns -f notes.txt -p "$first" $flags -n 9 >whole 2>/dev/null
"$topkv" ask whole.tkv -m turns $flags -n 9 -p "$first" >kept 2>log || echo "FAILED: $(cat log)"
holds 'as with none, where all the model can is no whole number of tokens' cmp whole kept
holds 'which info tells' sh -c "'$topkv' info turns.tkv | grep -q '^length      4,096$'"
mkdir trims && ln -s "$model"/* trims/ && rm trims/chat_template.jinja
printf '%s' '{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}' >trims/chat_template.jinja

"$topkv" info notes.tkv --json >info.json
"$topkv" info -m notes.tkv --json >out 2>log
holds 'info of a context, however it is given' cmp info.json out
holds 'info in JSON' python3 -c 'import json; i = json.load(open("info.json")); assert i["indices"] == ["exact", "codes:k=32,v=8"] and i["rows_bytes"] == i["tokens"] * 4096'
holds 'verify finds it whole' "$topkv" verify notes.tkv 2>log
"$topkv" verify notes.tkv --json >verified 2>log
holds 'and says so in JSON' python3 -c '
import json, os
v = json.load(open("verified"))
assert v["whole"] is True and v["file"] == "notes.tkv" and v["file_bytes"] == os.path.getsize("notes.tkv")'
"$topkv" verify notes.tkv --quiet >out 2>log
holds 'quietly it says nothing' test "$? $(cat out log)" = '0 '
"$topkv" prefill -m "$model" -f notes.txt -o quiet.tkv --quiet --device cpu >out 2>log
holds 'nor does prefill' test "$? $(cat out log)" = '0 '
holds 'which writes the same' cmp notes.tkv quiet.tkv
"$topkv" ask notes.tkv -m "$model" $flags </dev/null >nothing 2>log
holds 'nothing asked is no error' test "$? $(cat nothing)" = '0 '
holds 'but said' grep -q '^topkv: warning: nothing was asked: there is no -p' log

# What is refused, in a line.
fails() { # WHAT STATUS PATTERN COMMAND...
  what=$1 status=$2 pattern=$3
  shift 3
  "$@" >out 2>log </dev/null
  got=$?
  holds "$what ends with $status, not $got" test "$got" -eq "$status"
  holds "$what says $pattern, not $(cat log)" grep -q "^topkv: error: .*$pattern" log
  holds "$what prints nothing" test ! -s out
}
fails 'a template that has the text twice' 1 'cannot be kept' "$topkv" prefill -m trims -f notes.txt -o t.tkv --chat --device cpu
fails 'another model' 1 'notes.tkv: does not match this model and its flags: it was made with llama of .*, weights stored.*weights int8; give the model and the flags.*(fingerprints: ' "$topkv" ask notes.tkv -m "$model" --weights int8 -p x
fails 'another length' 1 'turns.tkv: does not match this model and its flags' "$topkv" ask turns.tkv -m turns --length 8192 --device cpu -p x
mkdir bare && ln -s "$model"/* bare/ && rm bare/chat_template.jinja
fails 'another model, without a chat template' 1 'chat.tkv: does not match this model' "$topkv" ask chat.tkv -m bare --weights int8 --device cpu -p x
fails 'an index that learns of queries, of a file without' 1 'notes.tkv: has no queries of its prefill, which h2o needs; name one of its indices (exact, codes:k=32,v=8)' "$topkv" ask notes.tkv -m "$model" -p x --kv-index h2o
holds 'and is told before anything is read' sh -c '! grep -q "^load" log'
fails 'no context' 1 'is not a context file' "$topkv" ask notes.txt -m "$model" -p x
fails 'nothing there' 1 'cannot be opened' "$topkv" ask nothing.tkv -m "$model" -p x
fails 'a folder that is not there' 1 'folder' "$topkv" prefill -m "$model" -f notes.txt -o no/x.tkv
fails 'a place where no file can be' 1 '/proc/x.tkv: cannot be ' "$topkv" prefill -m "$model" -f notes.txt -o /proc/x.tkv
holds 'is told before anything is read' sh -c '! grep -q "prefill  " log'
fails 'no text' 1 'is empty; expected text' "$topkv" prefill -m "$model" -f /dev/null -o x.tkv
printf hi >hi.txt
fails 'a text of one word' 1 'hi.txt: is too short: its last word is read with each prompt, .*give more text, or end it with a line end' "$topkv" prefill -m "$model" -f hi.txt -o x.tkv
printf 'hi\n' >hi.txt
"$topkv" prefill -m "$model" -f hi.txt -o x.tkv --device cpu 2>log
holds 'with a line end it is a context' test $? -eq 0
head -c 100000 notes.tkv >short.tkv
fails 'a file that is cut off' 1 'cut off' "$topkv" verify short.tkv
cp notes.tkv flipped.tkv && printf 'x' | dd of=flipped.tkv bs=1 seek=200000 conv=notrunc 2>/dev/null
fails 'a damaged one' 1 'damaged' "$topkv" verify flipped.tkv
fails 'a damaged one, quietly' 1 'damaged' "$topkv" verify flipped.tkv --quiet
for file in flipped.tkv short.tkv notes.txt nothing.tkv; do
  "$topkv" verify $file --json >verified 2>log
  holds "in JSON, too, $file ends with 1" test $? -eq 1
  holds "with its line on standard error ($file)" grep -q "^topkv: error: $file: " log
  holds "and one object with what is wrong ($file)" python3 -c '
import json, sys
v = json.load(open("verified"))
line = open("log").read().splitlines()[-1]
whole = None if sys.argv[1] == "nothing.tkv" else False
assert v["whole"] is whole and v["file"] == sys.argv[1] and line == "topkv: error: " + v["problem"], (v, line)' $file
done

# Killed at any time: the file is the old or the new one, and the next save leaves nothing else.
before=$(cksum <notes.tkv)
killed=0
for i in 1 2 3 4 5 6 7 8; do
  "$topkv" prefill -m "$model" -f notes.txt -f notes.txt -o notes.tkv --device cpu 2>/dev/null &
  sleep "0.$i"
  kill -9 $! 2>/dev/null && killed=$((killed + 1))
  wait $! 2>/dev/null
  "$topkv" verify notes.tkv >/dev/null 2>&1 || echo "FAILED: damaged when killed after 0.$i s"
done
"$topkv" prefill -m "$model" -f notes.txt -o notes.tkv --device cpu 2>/dev/null
holds 'some were killed' test "$killed" -gt 0
holds 'the last is as the first' test "$(cksum <notes.tkv)" = "$before"
holds 'nothing else is left' test "$(ls -A | grep -c topkv-part)" -eq 0
end
