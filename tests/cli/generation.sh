#!/bin/sh
# How answers end and are shown: stop texts, samples, events in JSON, and nothing beside them.
# usage: generation.sh TOPKV MODEL_DIRECTORY WORK_DIRECTORY
set -u
topkv=$1 model=$(cd "$2" && pwd) work=$3
. "$(dirname "$0")/holds.sh"
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1

# refuses PATTERN FLAGS...: status 2, nothing on stdout, one line on stderr that has the pattern
refuses() {
  pattern=$1
  shift
  "$topkv" generate -m "$model" -p a "$@" >out 2>err
  holds "refused: $*" test $? -eq 2 -a ! -s out -a "$(grep -c -e "$pattern" err)" -eq 1
}
generate() { "$topkv" generate -m "$model" --device cpu -t 2 -p 'The grass is' "$@"; }
generate -n 12 --quiet >whole 2>log || echo "FAILED: $(cat log)"
holds 'quiet leaves nothing on stderr' test ! -s log
holds 'and the answer on stdout' test -s whole
printf 'The grass is' >text
"$topkv" generate -m "$model" --device cpu -t 2 -n 12 --quiet -f text >cut
holds 'a file alone is continued as a prompt is' cmp whole cut
"$topkv" generate -m "$model" --device cpu -t 2 -n 12 --quiet -f - <text >cut
holds 'standard input alone is, too' cmp whole cut
stop=$(cut -c 8-10 whole | head -n 1)
generate -n 12 --stop 'not there' --stop "$stop" >cut 2>log
holds 'an answer ends before a stop text' python3 -c '
whole, cut, stop = (open("whole").read(), open("cut").read(), __import__("sys").argv[1])
assert cut == whole[: whole.index(stop)] + "\n", (cut, stop)' "$stop"
holds 'and says so' grep -q 'ended by a stop text' log
lines() { "$topkv" generate -m "$model" --device cpu -t 2 --temp 0 -n 30 --quiet -p 'The grass is green.
The sky is blue.
The' "$@"; }
lines >whole && lines --stop '\n' >cut
holds 'an answer of several lines' test "$(wc -l <whole)" -gt 1
holds 'ends with the first before \n' test "$(wc -l <cut)" -eq 1 -a "$(cat cut)" = "$(head -n 1 whole)"
lines --stop '\\n' >cut
holds 'and goes on where the text has a backslash' cmp whole cut

# Answers of a JSON schema.
echo '{"type": "object", "properties": {"day": {"type": "integer", "minimum": 1, "maximum": 31}}, "required": ["day"]}' >schema.json
generate -n 160 --quiet --json-schema schema.json >out 2>err  # it writes much white space
holds 'an answer conforms to its schema' python3 -c '
import json
answer = json.load(open("out"))
assert list(answer) == ["day"] and 1 <= answer["day"] <= 31, answer'
echo '{"type": "day"}' >schema.json
generate -n 40 --json-schema schema.json >out 2>err
holds 'a schema that is none is refused with its name' test $? -eq 1 -a ! -s out -a "$(grep -c '^topkv: error: schema.json: ' err)" -eq 1
generate -n 40 --json-schema nowhere >out 2>err
holds 'a schema that is not there, too' test $? -eq 1 -a ! -s out -a "$(grep -c '^topkv: error: nowhere: ' err)" -eq 1

# Tokens that are drafted from the text change no answer.
drafts() { lines -f long.txt "$@"; }
python3 -c 'print("The sky is blue and the grass is green. The sun is over the hill by the sea. " * 20)' >long.txt
drafts >whole && drafts --draft none >cut
holds 'drafts change no answer' cmp whole cut
drafts --draft-model "$model" --draft-window 64 >cut
holds 'a draft model changes none, either' cmp whole cut
lines --json --draft-model "$model" >events
holds 'programs are told how many it drafted' grep -q '"model_drafted_tokens":[0-9]*,"model_accepted_tokens":[0-9]*' events
lines --json --draft none >events
holds 'programs are told how many there were' grep -q '"drafted_tokens":0,"accepted_tokens":0' events

# A text that is longer than what its tokens attend.
python3 -c 'print("The sky is blue and the grass is green. The sun is over the hill by the sea. " * 150)' >long.txt
over() { "$topkv" generate -m "$model" --device cpu -t 2 -f long.txt -p 'The sky' -n 4 "$@"; }
sparse='--prefill sparse --prefill-window 64 --prefill-keys 256 --prefill-least 0'
over $sparse >out 2>log
holds 'the share of attention that a sparse prefill met is told' grep -q '^prefill    sparse: [0-9.]* % of dense attention by estimate ([0-9.]* % in layer [0-9], the least), [0-9.]* % of the keys$' log
over $sparse --quiet >out 2>log
holds 'but not to who wants no figures' test ! -s log
over $sparse --json >events 2>/dev/null
holds 'programs are told, too' python3 -c '
import json
answer = json.loads(open("events").readlines()[-1])
assert answer["prefill"] == "sparse"
assert 0 < answer["attended_keys"] < 0.5 and 0 < answer["attended_mass_least"] < answer["attended_mass"] < 1'
wide='--prefill sparse --prefill-window 8K' # all of the text
over $wide --json >events 2>/dev/null
holds 'a text within its window is attended whole' grep -q '"prefill":"sparse","attended_mass":1.0,"attended_mass_least":1.0,"attended_keys":1.0' events
over --prefill window --prefill-window 64 --json >events 2>/dev/null
holds 'the share that a window holds is unknown' grep -q '"prefill":"window","attended_mass":null,"attended_mass_least":null,"attended_keys":null' events
# A long prompt is a turn over the text.
turn() { "$topkv" generate -m "$model" --device cpu -t 2 -f long.txt -p "$(cut -c -3000 long.txt)" -n 2 "$@"; }
turn $sparse >out 2>log
holds 'the share that a turn met is told' grep -q '^turn       sparse: [0-9.]* % of dense attention by estimate ([0-9.]* % in layer [0-9], the least), [0-9.]* % of the keys$' log
turn $sparse --json >events 2>/dev/null
holds 'to programs, too' python3 -c '
import json
answer = json.loads(open("events").readlines()[-1])
assert answer["prompt_tokens"] > 300
assert 0 < answer["turn_keys"] < 0.5 and 0 < answer["turn_mass"] < 1'
turn --prefill window --json >events 2>/dev/null
holds 'no turn attends a window alone' grep -q '"turn_mass":null,"turn_keys":null' events
over --prefill dense --quiet >dense && over $wide --quiet >all && over --quiet >auto
holds 'as a dense prefill attends it' cmp dense all
holds 'auto is dense while a text is short' cmp dense auto
over --json >events 2>/dev/null
holds 'and says so' grep -q '"prefill":"dense"' events
over $wide >out 2>log
holds 'which is said' grep -q '^prefill    sparse: tokens attended to all earlier ones$' log
over --prefill window --prefill-window 64 >out 2>log
holds 'a window says its tokens' grep -q '^prefill    window: the latest 64 tokens and the first 4$' log
over >out 2>log
holds 'auto says what it was' grep -q '^prefill    dense$' log
read_it() { "$topkv" prefill -m "$model" --device cpu -t 2 -f long.txt -o long.tkv "$@"; }
read_it $sparse --measure >out 2>log
holds 'prefill can measure the share' grep -q '^prefill    sparse: [0-9.]* % of dense attention, measured (' log
read_it $sparse --json >estimated 2>log
holds 'with --json there is nothing else' test "$(wc -l <estimated)" -eq 1 -a "$(grep -c '^context' log)" -eq 0
read_it $sparse --measure --json >measured 2>log
holds 'layer by layer' python3 -c '
import json
estimated, measured = (json.load(open(f)) for f in ("estimated", "measured"))
assert measured["measured"] and not estimated["measured"]
assert len(measured["layers"]) == len(estimated["layers"]) > 1
assert [x["attended_keys"] for x in measured["layers"]] == [x["attended_keys"] for x in estimated["layers"]]
for a, b in zip(measured["layers"], estimated["layers"]):
    assert abs(a["attended_mass"] - b["attended_mass"]) < 0.1
assert measured["attended_mass_least"] == min(x["attended_mass"] for x in measured["layers"])
assert measured["attended_mass"] != estimated["attended_mass"]'
read_it $wide --measure --json >measured 2>log
holds 'nothing is measured where tokens attend to all' python3 -c '
import json
short = json.load(open("measured"))
assert short["measured"] is False and short["attended_mass"] == 1'
read_it $wide --measure >out 2>log
holds 'which is said' grep -q '^prefill    sparse: tokens attended to all earlier ones$' log
read_it $sparse >out 2>log
holds 'the file says how it was read' sh -c '"$0" info long.tkv | grep -q "sparse prefill"' "$topkv"

generate -n 6 --temp 1.5 --seed 7 --logprobs 2 --json >events 2>/dev/null
generate -n 6 --temp 1.5 --seed 7 >text 2>/dev/null
holds 'events are the tokens, the text and the answer' python3 -c '
import json
events = [json.loads(line) for line in open("events")]
tokens = [e for e in events if e["event"] == "token"]
answer = events[-1]
assert answer["event"] == "answer" and answer["answer"] == 0 and answer["finish"] in ("length", "end_token")
assert [e["token"] for e in tokens] == answer["tokens"]
assert "".join(e["text"] for e in events if e["event"] == "text") == answer["text"]
assert answer["text"] + "\n" == open("text").read()
for e in tokens:
    assert len(e["top_logprobs"]) == 2
    assert e["logprob"] <= e["top_logprobs"][0]["logprob"] + 1e-12 and e["top_logprobs"][0]["logprob"] < 0'

generate -n 6 --temp 1.5 --seed 7 --samples 3 >samples 2>log
for seed in 7 8 9; do generate -n 6 --temp 1.5 --seed $seed; done >alone 2>/dev/null
holds 'samples are the answers of their seeds' cmp samples alone
generate -n 4 --temp 1.5 -N 2 --json >events 2>/dev/null
holds 'events tell whose they are' python3 -c '
import json
answers = {e["answer"]: e for e in map(json.loads, open("events")) if e["event"] == "answer"}
assert sorted(answers) == [0, 1] and answers[1]["seed"] == answers[0]["seed"] + 1'

generate -n 8 --repetition-penalty 50 --json >events 2>/dev/null
holds 'a penalty forbids what was there' python3 -c '
import json
tokens = json.loads(open("events").readlines()[-1])["tokens"]
assert len(set(tokens)) == len(tokens) > 4'
# A tokenizer may leave nothing of a prompt.
mkdir drops && cp "$model"/* drops && python3 - <<'EOF'
import json
tokenizer = json.load(open("drops/tokenizer.json"))
tokenizer["normalizer"] = {"type": "Replace", "pattern": {"String": "x"}, "content": ""}
json.dump(tokenizer, open("drops/tokenizer.json", "w"))
EOF
for samples in 1 2; do
  "$topkv" generate -m drops --device cpu -p x --samples $samples >out 2>err
  holds "a prompt of no tokens is refused: $samples" test $? -eq 2 -a ! -s out -a "$(grep -c 'prompt is empty' err)" -eq 1
done
refuses '--logprobs: .*--json' --logprobs 2
refuses '--logprobs: expected' --json --logprobs 21
refuses '--stop: expected a text' --stop ''
refuses '--kv-gpu-rows: the model runs on the CPU' --device cpu --kv-gpu-rows 1GiB
refuses '--kv-gpu-rows does not go with --kv-host-search' --kv-gpu-rows 1GiB --kv-host-search
refuses '--draft: expected auto, none or lookup' --draft some
refuses '--draft-model does not go with --draft none' --draft none --draft-model "$model"
refuses '--draft-window: there is no draft model; add --draft-model' --draft-window 64
refuses '--draft-window: expected 32 to' --draft-model "$model" --draft-window 31
"$topkv" generate -m "$model" --device cpu -p a --draft-model nowhere >out 2>err
holds 'a draft model that is not there is refused' test $? -eq 1 -a ! -s out -a "$(grep -c '^topkv: error: nowhere: ' err)" -eq 1
mkdir other && cp "$model"/*.json "$model"/*.safetensors other/
python3 -c '
import json
tokenizer = json.load(open("other/tokenizer.json"))
first = tokenizer["added_tokens"][0]["content"]
text = open("other/tokenizer.json").read()
open("other/tokenizer.json", "w").write(text.replace(json.dumps(first), json.dumps("<|another|>")))'
"$topkv" generate -m "$model" --device cpu -p a --draft-model other >out 2>err
holds 'a draft model of another vocabulary is refused' test $? -eq 2 -a ! -s out -a "$(grep -c 'the draft model other cannot draft for .*: .*; expected the same vocabulary' err)" -eq 1
refuses '--min-p: expected a number from 0 to 1' --min-p 2
refuses '--repetition-penalty: expected a number above 0' --repetition-penalty 0
refuses '--frequency-penalty: expected a number from -2 to 2' --frequency-penalty 3
refuses '-N: expected 1 to 256' --samples 257
end
