#!/bin/sh
# Runs the tool on bad command lines and checks exit status and message: one line of valid UTF-8 on
# stderr, nothing on stdout, nothing read from standard input, nothing left on disk.
# usage: errors.sh TOPKV MODEL_DIRECTORY WORK_DIRECTORY
set -u
topkv=$1 model=$2 work=$3
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1
failures=0
checked=0

# refuses STATUS PATTERN ARGUMENTS...
refuses() {
  status=$1 pattern=$2
  shift 2
  "$topkv" "$@" >stdout 2>stderr </dev/null
  got=$?
  checked=$((checked + 1))
  problem=
  [ "$got" -eq "$status" ] || problem="exit status $got, expected $status"
  [ ! -s stdout ] || problem="$problem; wrote to stdout"
  # Where there is a GPU, the plan of its memory may come first.
  [ "$(grep -c -v -e '^GPU memory' -e '^  ' stderr)" -eq 1 ] || problem="$problem; stderr is not one line"
  grep -q '^topkv: error: ' stderr || problem="$problem; no 'topkv: error: '"
  iconv -f utf-8 -t utf-8 stderr >stdout 2>&1 || problem="$problem; stderr is not UTF-8"
  [ ! -e out ] || problem="$problem; left out/ behind"
  grep -q -e "$pattern" stderr || problem="$problem; stderr lacks '$pattern'"
  if [ -n "$problem" ]; then
    failures=$((failures + 1))
    echo "FAILED: topkv $*"
    echo "  $problem"
    sed 's/^/  /' stderr
    rm -rf out
  fi
}

# refuses_early STATUS PATTERN ARGUMENTS...: before standard input is read. What is written into the
# pipe stays there.
refuses_early() {
  refuses "$@"
  shift 2
  left=$(printf 'not read\n' | { "$topkv" "$@" >/dev/null 2>&1; cat; })
  [ "$left" = 'not read' ] && return
  failures=$((failures + 1))
  echo "FAILED: topkv $*: read standard input before it refused"
}

refuses 2 'no command'
refuses 2 'did you mean needle' nedle -m "$model"
refuses 2 "unknown command 'xyzzy' (see" xyzzy
refuses 2 'unknown flag --verison.*did you mean --version' --verison
refuses 2 'did you mean --kv-topk?' needle -m "$model" --kv-topkk 64
refuses 2 'did you mean --kv-topk?' needle -m "$model" --kv-topkk=64
refuses 2 'did you mean --prompt?' generate -m "$model" --promt hello
refuses 2 'unknown flag -C; did you mean -c?' needle -m "$model" -C 4K
refuses 2 'unknown flag -c (see' generate -m "$model" -c 4K
refuses 2 "unexpected argument 'stray'" info -m "$model" stray
refuses 2 "unexpected argument 'b.txt'; -f takes one value: write -f before each (see" prefill -m "$model" -f a.txt b.txt -o c.tkv
refuses 2 "unexpected argument 'upon'; -p takes one value: write a text with spaces in quotes" generate -m "$model" -p Once upon a time
refuses 2 'no model given: topkv info DIR' info
refuses 2 'no model given: topkv plan DIR' plan
refuses 2 '--gpu-mem does not go with --device cpu; give one of them' plan "$model" --device cpu --gpu-mem 4GiB
for command in 'generate -p a' 'needle' 'chat'; do
  refuses 2 '--gpu-mem does not go with --device cpu; give one of them' $command -m "$model" --device cpu --gpu-mem 4GiB
done
if ! "$topkv" generate -m "$model" -p a -n 1 --device cuda >/dev/null 2>&1; then
  for command in 'generate -p a' 'needle' 'chat' 'bench decode --shape needle-14m -c 4K'; do
    case $command in bench*) of= ;; *) of="-m $model" ;; esac
    refuses 1 '--gpu-mem: .*; without the flag topkv computes on the CPU' $command $of --gpu-mem 4GiB
  done
fi
refuses 2 '-c: .*expected a count' plan "$model" -c many
refuses 2 'no plan for the index hnsw.*expected exact or codes' plan "$model" --kv-index hnsw:M=16
refuses 1 'no-such-model: there is no such directory; .*; a directory with config.json alone is enough here' plan no-such-model
refuses 2 '--model is missing; expected the directory' needle
refuses 2 '--prompt is missing; expected a text to continue, or -f with a file' generate -m "$model"
refuses 2 '--temp' generate -m "$model" -p a --temp hot
refuses 2 '--top-p' generate -m "$model" -p a --top-p 2
refuses 2 '--prefill' needle -m "$model" --prefill everything
refuses 2 '-c: .*0' needle -m "$model" -c 0
refuses 2 '-c: .*12Q' needle -m "$model" -c 12Q
refuses 2 '-c: .*below 2^62' needle -m "$model" -c 99999999999T
refuses 1 'host memory' needle -m "$model" -c 1T
refuses 1 '16.*MiB ([0-9]* bytes) wanted, 1.0 MiB (1048576 bytes) available' needle -m "$model" -c 4K --mem 1MiB
refuses 2 'cannot hold 10 needles' needle -m "$model" -c 128
refuses 2 '--depths' needle -m "$model" --depths 5,101
refuses 2 '--needle' needle -m "$model" --needle nubmer
refuses 2 'belong together' needle -m "$model" --needle-text 'Ada likes tea.'
refuses 2 'did you mean generated' needle -m "$model" --haystack genrated
refuses 2 '--kv-topk' needle -m "$model" --kv-topk 0
refuses 2 '--kv-topk' generate -m "$model" -p a --kv-topk many
refuses 2 '--kv-dense-layers' needle -m "$model" -c 4K --kv-dense-layers 99
refuses 2 '--kv-window' needle -m "$model" --kv-window 0
refuses 2 'given twice' needle -m "$model" --kv-index exact --kv-index exact
refuses 2 '--kv-index: .*hsnw' needle -m "$model" --kv-index hsnw:M=16
refuses 2 '--kv-index: .*dim 64 cannot be cut into 7' needle -m "$model" -c 1M --kv-index faiss:PQ7
refuses_early 2 '--kv-index: .*dim 64 cannot be cut' generate -m "$model" -p a -f - --kv-index faiss:PQ7
refuses 2 '--kv-index: .*5000 lists.*at least as many keys, there are 40' needle -m "$model" -c 4K --kv-index faiss:IVF5000
refuses 2 '--kv-index' generate -m "$model" -p a --kv-index hnsw:M=cat
refuses 1 'no-such-model: there is no such directory; expected .* config.json' needle -m no-such-model
refuses 1 'model.safetensors: begins with .*, not with the letters GGUF.*or the directory of a model' needle -m "$model"/model.safetensors
refuses 1 '\.: has no config.json; expected the directory of a model' needle -m .
refuses 1 'no-such-model' generate -m no-such-model -p a
refuses 1 'no-such-model: .* config.json alone is enough' info -m no-such-model
refuses 1 'config.json alone is enough' info .
refuses 2 "-p: expected a text to continue, found ''; leave the flag out for the default: the files alone" generate -m "$model" -p ''
refuses 1 'is empty; expected text' generate -m "$model" -f -
refuses 1 'no-such-file' generate -m "$model" -p a -f no-such-file
refuses 1 'is a directory' generate -m "$model" -p a -f .
refuses 1 'is empty; expected text' generate -m "$model" -p a -f -
refuses 1 'no \*.txt or \*.md' needle -m "$model" --haystack .
refuses 2 '--model is missing; expected the directory' fidelity
refuses 2 '--prefill-keys: has no effect with --prefill window; leave it out, or give --prefill sparse or auto' \
  fidelity -m "$model" -c 4K --prefill-keys 64 --prefill-keys 128
refuses 2 '--prefill-window: has no effect with --prefill dense; leave it out, or give --prefill sparse or window or auto' \
  prefill -m "$model" -f in.txt -o x.tkv --prefill dense --prefill-window 64
refuses 2 '--kv-tail: index "hnsw" has no codes of values; expected none' fidelity -m "$model" --kv-tail hnsw
refuses 2 '--kv-tail: .*no index is named "cods"' needle -m "$model" -c 4K --kv-tail cods
refuses 2 '--kv-tail: .*has no codes of values' needle -m "$model" -c 4K --kv-tail codes:v=0
refuses 2 '--kv-tail: index "mean:k=8": mean takes no options; write "mean"' fidelity -m "$model" --kv-tail mean:k=8
refuses 2 '--kv-index: index "mean": is a tail' needle -m "$model" -c 4K --kv-index mean
refuses 2 '--kv-mass: expected a tail.*index .exact. has none; give --kv-tail codes' needle -m "$model" -c 4K --kv-index exact --kv-mass 0.9
refuses 2 '--kv-error: expected a tail.*found --kv-tail none' fidelity -m "$model" --kv-index codes --kv-tail none --kv-error 0.1
refuses 2 "--kv-error: expected a tail.*index 'exact' has none" bench decode --shape needle-14m -c 4K --kv-index exact --kv-error 0.1
refuses 2 '--prefill-keys: has no effect with --prefill dense and window, which .* give --prefill sparse' \
  bench prefill --shape needle-14m -c 4K --prefill-keys 512
refuses 2 '--kv-mass: belongs to topkv bench decode' bench prefill --shape needle-14m -c 4K --kv-mass 0.9
for share in 0 1 -0.5 95 nan inf some; do
  refuses 2 "--kv-mass: expected a number above 0 and up to 0.999999, found '$share'" needle -m "$model" -c 4K --kv-index codes --kv-mass "$share"
done
for error in 0 -0.5 nan inf some; do
  refuses_early 2 "--kv-error: expected a number above 0 and up to 100, found '$error'" generate -m "$model" -p a -f - --kv-index codes --kv-error "$error"
done
for bound in 0.1 0,0.1 0.1,0 1,0.1 0.1,1 nan,0.1 0.1,0.1,0.1 , some; do
  refuses_early 2 "--kv-guarantee: expected two numbers above 0 and below 1, .*found '$bound'" generate -m "$model" -p a -f - --kv-guarantee "$bound"
done
refuses 2 '--kv-guarantee does not go with --kv-mass' needle -m "$model" -c 4K --kv-mass 0.9 --kv-guarantee 0.1,0.05
refuses 2 '--kv-guarantee does not go with --kv-tail codes' fidelity -m "$model" --kv-tail codes --kv-guarantee 0.1,0.05
mkdir folder && ln -s missing link
refuses 1 '^topkv: error: folder: is a directory; expected a file' fidelity -m "$model" --csv folder
refuses 1 'none/a.svg: cannot be written: its folder: No such file' fidelity -m "$model" --svg none/a.svg
refuses 1 'link: cannot be written: is a device, pipe or link' fidelity -m "$model" --csv link
refuses 1 '/dev/null: cannot be written: is a device' fidelity -m "$model" --svg /dev/null
refuses 2 "--svg: './a' is the file of --csv, too; expected another file" fidelity -m "$model" --csv a --svg ./a
refuses 2 "--csv: expected a file to write, found ''" fidelity -m "$model" --csv ''
[ ! -e a ] && rm -r folder link
# What is read is not written over, whatever its name.
echo 'The grass is green.' >in.txt && cp in.txt kept && ln -s in.txt soft && ln in.txt hard
mkdir own texts && cp "$model"/config.json "$model"/tokenizer.json own && ln -s "$model"/model.safetensors own
cp in.txt texts/a.txt && cp own/config.json config
for name in in.txt ./in.txt soft hard; do
  refuses_early 2 "error: -o: expected a path that the command does not read, found '$name', which is 'in.txt' of -f" \
    prefill -m own -f - -f in.txt -o "$name"
done
refuses 2 "-o: .*found 'own/config.json', which is 'own/config.json' of -m" prefill -m own -f in.txt -o own/config.json
refuses 2 "--csv: .*found 'own/config.json', which is .* of -m" fidelity -m own --csv own/config.json
refuses 2 "--svg: .*found 'texts/a.txt', which is .* of --haystack" fidelity -m own --haystack texts --svg texts/a.txt
refuses 2 "-o: .*found 'own', which is 'own' of -m" needle -m own -c 4K -o own
refuses 2 "-o: .*found 'texts/', which is 'texts' of --haystack" needle -m own -c 4K --haystack texts -o texts/
refuses 2 "-o: .*found 'texts', which is 'texts' of --essays" eval -m own --essays texts -o texts
mkdir results && ln in.txt results/scores.csv && echo '{}' >results/samples.jsonl
refuses 2 "-o: .*found 'results/scores.csv', which is 'in.txt' of -f" eval -m own --tasks qa -f in.txt --questions config -o results
refuses 2 "-o: .*found 'results/samples.jsonl', which is .* of --questions" eval -m own --tasks qa --questions results/samples.jsonl -o results --fresh
"$topkv" prefill -m own -f - -o in.txt <in.txt >stdout 2>stderr
[ $? -eq 2 ] && grep -q "found 'in.txt', which is the standard input of -f" stderr || {
  failures=$((failures + 1))
  echo "FAILED: prefill -f - <in.txt -o in.txt"
}
cmp in.txt kept && cmp own/config.json config && cmp texts/a.txt kept || failures=$((failures + 1))
refuses_early 2 "-o: expected a file to write, found '-'; .*./-" prefill -m own -f - -o -
refuses 2 "--csv: expected a file to write, found '-'" fidelity -m own --csv -
rm -r own texts results soft hard
refuses 2 '--questions' fidelity -m "$model" --questions -3
refuses 2 'error: bench: expected decode or prefill, found none (see' bench
refuses 2 "error: bench: expected decode or prefill, found 'encode'; did you mean decode?" bench encode --shape needle-14m -c 4K
refuses 2 '--shape is missing; expected llama3-8b' bench decode -c 4K
refuses 2 'did you mean llama3-8b?' bench decode --shape llama-8b -c 4K
refuses 2 'or the path of a config.json' bench decode --shape gpt5 -c 4K
refuses 1 'no-such-model: there is no such directory' bench decode --shape no-such-model/config.json -c 4K
refuses 2 '-c: give' bench decode --shape needle-14m
refuses 2 '-c: give' bench prefill --shape needle-14m
refuses 2 '-c: give' bench prefill --shape needle-14m -c 4K --at 4K
refuses 2 '--at: belongs to topkv bench prefill' bench decode --shape needle-14m -c 4K --at 4K
refuses 2 '--kv-topk: belongs to topkv bench decode' bench prefill --shape needle-14m -c 4K --kv-topk 8
refuses 2 '--tokens: belongs to topkv bench decode' bench prefill --shape needle-14m -c 4K --tokens 20
refuses 2 "--device: expected auto, cpu, cuda or cuda:N, found 'gpu'" bench prefill --shape needle-14m -c 4K --device gpu
refuses 2 "--device: .*found 'cuda:x'" needle -m "$model" --device cuda:x
refuses 2 '--gpu-mem' needle -m "$model" --gpu-mem lots
refuses 2 '--layers: expected 1 to 8.* found 9' bench decode --shape needle-14m -c 4K --layers 9
refuses 2 '--tokens: .*10' bench decode --shape needle-14m -c 4K --tokens 9
refuses 2 '--kv-topk: 64 is given twice' bench decode --shape needle-14m -c 4K --kv-topk 64 --kv-topk 64
refuses 2 '--kv-topk' bench decode --shape needle-14m -c 4K --kv-topk 0
refuses 2 '--kv-index: .*hsnw' bench decode --shape needle-14m -c 4K --kv-index hsnw:M=16
refuses 1 'host memory' bench decode --shape llama3-8b -c 1G
mkdir cut && cp "$model"/config.json "$model"/tokenizer.json cut && head -c 1000000 "$model"/model.safetensors >cut/model.safetensors
refuses 1 'cut/model.safetensors: ' generate -m cut -p a
mkdir loop && cp "$model"/config.json "$model"/model.safetensors loop && ln -s tokenizer.json loop/tokenizer.json
refuses 1 'loop/tokenizer.json: .*symbolic links' generate -m loop -p a
odd=$(printf 'a\377b')
refuses 1 'a\\xffb: there is no such directory' info "$odd"
refuses 1 'a\\xffb: there is no such directory' generate -m "$odd" -p a
sed 's/"hidden_act"/"dual_chunk_attention_config": {"chunk_size": 8192, "local_size": 8192}, "hidden_act"/' "$model"/config.json >loop/config.json
refuses 1 'dual_chunk_attention_config.local_size is 8192' info loop
touch taken
refuses 1 'taken' needle -m "$model" -c 4K -o taken

rm taken

# Before a text is read or a model loaded.
for flags in '--top-p 0' '--top-p nan' '--top-p 1.5' '--temp nan' '--temp -1' '--temp inf' \
  '--temp 1e-3' '--top-k -1' '--seed -1' '--seed 1.5' '--seed 18446744073709551616' '-n 0' '-n -1' \
  '-t 0' '-t -1' '-t 1000000' '-t two' '--mem 1K' '--mem 8' '--mem -1' '--mem 8QiB' '--gpu-mem 8' \
  '--gpu-mem nan' '--device gpu' '--device cuda:' '--device cuda:-1' '--device CPU' '--kv-topk 0' \
  '--kv-topk -1' '--kv-topk 1,2' '--kv-topk uniform:1' '--kv-topk nan' '--kv-window 0' \
  '--kv-sinks -1' '--kv-dense-layers 9' '--kv-dense-layers some' '--kv-index flat' \
  '--kv-select head' '--kv-dtype f64' '--prefill full' '--prefill-window 0' \
  '--prefill-keys 0' '--prefill-keys -1' '--prefill-least -1' '--prefill-least 9K' '--prefill-mass 0' \
  '--prefill-mass 1.1' '--prefill-mass nan' \
  '--chunk 0' '--chunk some' '--kv-topk ９' '--seed 42 --seed 43' '-t' '--temp --top-k 3' '--json=1'; do
  flag=${flags%%[ =]*}
  # shellcheck disable=SC2086
  refuses_early 2 "error: $flag\|error: --\(threads\|predict\)" \
    generate -m "$model" -p a -f - $flags
  # shellcheck disable=SC2086
  [ "$flags" = '--json=1' ] || refuses 2 "error: $flag" needle -m "$model" -c 4K $flags
done
refuses 2 '--prefill-least: expected at most the 64 of --prefill-keys, found 65; give less, or raise --prefill-keys' \
  prefill -m "$model" -f in.txt -o x.tkv --prefill-keys 64 --prefill-least 65
refuses 2 '--prefill-least: expected at most the 64' bench prefill --shape needle-14m -c 4K --prefill sparse --prefill-keys 64 --prefill-least 65
refuses 2 '--measure: a window prefill chooses no keys; leave it out, or give --prefill sparse' \
  prefill -m "$model" -f in.txt -o x.tkv --prefill window --measure
refuses_early 1 'no-such-model' generate -m no-such-model -p a -f -
refuses_early 1 'no-such-file' generate -m "$model" -p a -f - -f no-such-file
refuses_early 2 "'-' is given twice" generate -m "$model" -p a -f - -f -
refuses_early 2 '--kv-index: given twice' generate -m "$model" -p a -f - --kv-index exact --kv-index hnsw
# --mem is for context and session together: 1 MiB is 256 tokens of this model.
refuses 1 'KV rows of 301 tokens .* 1.0 MiB (1048576 bytes) available' \
  generate -m "$model" -p a -n 299 --mem 1MiB
refuses 1 '[0-9.]* PiB ([0-9]* bytes) wanted' generate -m "$model" -p a -n 1T

# A value that is missing is not made up from what is behind it.
refuses 2 "-c: a value is missing; expected tokens such as .*, found the flag --depths" \
  needle -m "$model" -c --depths 3
refuses 2 "--kv-topk: expected rows per layer.*, found ''" needle -m "$model" --kv-topk= --depths 1
refuses 2 "-c: expected tokens such as .*, found '=4K'; write -c 4K (see" needle -m "$model" -c=4K
refuses 2 "-p: expected a text to continue, found ''; leave the flag out for the default: lines of standard input" ask book.tkv -m "$model" -p ''
refuses 2 "FILE: expected a context's file, found none" ask -m "$model"
refuses 2 'no index is named "foo"; known are' generate -m "$model" -p a --kv-index foo
refuses 2 '--ctx: a value is missing' needle -m "$model" --ctx
refuses 2 "-c: given twice, '1K' and '2K'" needle -m "$model" -c 1K --depths 2 -c 2K
refuses 2 "--fresh: takes no value, found 'yes'" needle -m "$model" --fresh=yes
refuses 2 "did you mean group?" needle -m "$model" --kv-select gruop
refuses 2 "-o: expected a directory, found ''" needle -m "$model" -o ''
for flag in -m -t --device --gpu-mem --kv-index --kv-topk --kv-window --kv-sinks --kv-select \
  --kv-dense-layers --prefill --prefill-window --prefill-keys --prefill-least --prefill-mass \
  --chunk --kv-dtype --mem -n --temp --top-p \
  --top-k --seed -c --depths --haystack --needle --needle-text --question --answer -o; do
  refuses 2 "$flag: expected .*, found ''" needle "$flag" '' -m "$model"
done
for flag in --shape -c --layers --tokens --prefill --prefill-window --prefill-keys --prefill-mass --chunk --mem --at --seed; do
  refuses 2 "$flag: expected .*, found ''" bench decode "$flag" '' --shape needle-14m -c 4K
done
refuses 2 "is given twice, it is the same as 'hnsw'" \
  needle -m "$model" --kv-index hnsw --kv-index hnsw:M=16,efc=100,ef=0
refuses 2 '--seed' bench decode --shape needle-14m -c 4K --seed -1
refuses 2 '-t: expected 1 to' bench decode --shape needle-14m -c 4K -t 1000000
refuses 1 '[0-9.]* [TPE]iB ([0-9]* bytes) wanted' bench decode --shape needle-14m -c 4K --tokens 1T

# Bytes that are not UTF-8.
bad=$(printf 'caf\351')
refuses 2 '--needle-text: expected UTF-8 text, found byte 0xe9 at position 3' \
  needle -m "$model" --needle-text "$bad" --question a --answer b
refuses 2 '--question: expected UTF-8' needle -m "$model" --needle-text a --question "$bad" --answer b
refuses 2 '--answer: expected UTF-8' needle -m "$model" --needle-text a --question b --answer "$bad"
refuses_early 2 'error: -p: expected UTF-8' generate -m "$model" -f - -p "$bad"
refuses 1 'caf\\xe9' needle -m "$bad"
refuses 1 'caf\\xe9' generate -m "$model" -p a -f "$bad"
refuses 2 'caf\\xe9' "$bad"
for flag in -c --depths --haystack --needle --kv-index --kv-topk --kv-window --device --mem --seed --temp; do
  refuses 2 'caf\\xe9' needle -m "$model" "$flag" "$bad"
done

refuses 2 "help: unknown command 'nedle'; did you mean needle?" help nedle
refuses 2 'help: expected one command' help needle bench
"$topkv" help >text && "$topkv" --help | cmp - text || failures=$((failures + 1))
"$topkv" help help | cmp - text || failures=$((failures + 1))

# tells PATTERN ARGUMENTS...: succeeds, with one line of warning that has the pattern
tells() {
  pattern=$1
  shift
  "$topkv" "$@" >stdout 2>stderr </dev/null && [ "$(grep -c '^topkv: warning: ' stderr)" -eq 1 ] &&
    grep -q "^topkv: warning: .*$pattern" stderr || {
    failures=$((failures + 1))
    echo "FAILED: topkv $*; expected one warning: $pattern"
    sed 's/^/  /' stderr
  }
}

mkdir short && cp "$model"/tokenizer.json "$model"/model.safetensors short
sed 's/"max_position_embeddings": [0-9]*/"max_position_embeddings": 300/' "$model"/config.json >short/config.json
seq 500 >numbers.txt
tells '[0-9]* tokens are more than the 300 positions' generate -m short -p a -n 2 -f numbers.txt
tells '3[01][0-9] tokens are more than the 300 positions' generate -m short -p a -n 310
tells '5[0-9][0-9] tokens are more than the 300 positions' needle -m short -c 256,512 --depths 1 -o short-run
"$topkv" info "$model" 2>&1 | grep -q warning && { failures=$((failures + 1)); echo "FAILED: info warns of the bundled model"; }
sed 's/"hidden_act"/"attention_magic": 3, "hidden_act"/' "$model"/config.json >short/config.json
tells 'attention_magic is 3' info short
tells 'attention_magic is 3' generate -m short -p a -n 1
printf 'caf\351 noir\n' >latin && printf 'ab\000cd\351' >binary
tells 'latin: is not UTF-8: byte 0xe9 at position 3; such bytes are read as U+FFFD' generate -m "$model" -p a -n 1 -f latin -f in.txt
refuses 1 'binary: is not text: byte 0x00 at position 2' generate -m "$model" -p a -n 1 -f in.txt -f binary
printf '%%PDF-1.7 text' >paper.pdf && printf '\212TKV\r\n\032\n' >some.tkv
refuses 1 'paper.pdf: is a PDF' generate -m "$model" -p a -n 1 -f paper.pdf
refuses 1 'some.tkv: is a context; expected a file of text: ask a context with topkv ask' generate -m "$model" -p a -n 1 -f some.tkv
"$topkv" generate -m "$model" -p a -n 1 2>&1 | grep -q 'index  *0\|0/0' && { failures=$((failures + 1)); echo "FAILED: generate tells of an index over nothing"; }

for command in needle generate info plan fidelity perplexity eval bench; do
  "$topkv" "$command" --help | grep -q "^usage: topkv $command" || {
    failures=$((failures + 1))
    echo "FAILED: topkv $command --help"
  }
  "$topkv" "$command" --help >text
  "$topkv" help "$command" | cmp -s - text || {
    failures=$((failures + 1))
    echo "FAILED: topkv help $command"
  }
done
for columns in 40 100; do
  COLUMNS=$columns "$topkv" generate --help >text
  [ "$(wc -L <text)" -gt $((columns - 10)) ] && [ "$(grep -v '["'"'"']' text | wc -L)" -le "$columns" ] || {
    failures=$((failures + 1))
    echo "FAILED: COLUMNS=$columns topkv generate --help"
  }
done
"$topkv" --version | grep -qE '^topkv [0-9]+\.[0-9]+\.[0-9]+$' || {
  failures=$((failures + 1))
  echo "FAILED: topkv --version"
}

[ "$failures" -eq 0 ] && echo "all $checked refused as they should be"
[ "$failures" -eq 0 ]
