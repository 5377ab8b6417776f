#!/bin/sh
# Runs the tool on bad command lines and checks exit status and message: one line on stderr, nothing
# on stdout, no output directory left where nothing was run.
# usage: cli_errors.sh TOPKV MODEL_DIRECTORY WORK_DIRECTORY
set -u
topkv=$1 model=$2 work=$3
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1
failures=0

# refuses STATUS PATTERN ARGUMENTS...
refuses() {
  status=$1 pattern=$2
  shift 2
  "$topkv" "$@" >stdout 2>stderr </dev/null
  got=$?
  problem=
  [ "$got" -eq "$status" ] || problem="exit status $got, expected $status"
  [ ! -s stdout ] || problem="$problem; wrote to stdout"
  # Where there is a GPU, the plan of its memory may come first.
  [ "$(grep -c -v -e '^GPU memory' -e '^  ' stderr)" -eq 1 ] || problem="$problem; stderr is not one line"
  grep -q '^topkv: error: ' stderr || problem="$problem; no 'topkv: error: '"
  grep -q -e "$pattern" stderr || problem="$problem; stderr lacks '$pattern'"
  if [ -n "$problem" ]; then
    failures=$((failures + 1))
    echo "FAILED: topkv $*"
    echo "  $problem"
    sed 's/^/  /' stderr
  fi
}

refuses 2 'no command'
refuses 2 'did you mean needle' nedle -m "$model"
refuses 2 "unknown command 'xyzzy' (see" xyzzy
refuses 2 'unknown flag --verison.*did you mean --version' --verison
refuses 2 'did you mean --kv-topk?' needle -m "$model" --kv-topkk 64
refuses 2 'did you mean --kv-topk?' needle -m "$model" --kv-topkk=64
refuses 2 'did you mean --prompt?' generate -m "$model" --promt hello
refuses 2 "unexpected argument 'stray'" info -m "$model" stray
refuses 2 '--model is required' needle
refuses 2 '--prompt is required' generate -m "$model"
refuses 2 '--temp' generate -m "$model" -p a --temp hot
refuses 2 '--top-p' generate -m "$model" -p a --top-p 2
refuses 2 '--prefill' needle -m "$model" --prefill everything
refuses 2 '-c: .*0' needle -m "$model" -c 0
refuses 2 '-c: .*12Q' needle -m "$model" -c 12Q
refuses 2 '-c: .*too large' needle -m "$model" -c 99999999999T
refuses 1 'host memory' needle -m "$model" -c 1T
refuses 1 '--mem\|budget\|memory' needle -m "$model" -c 4K --mem 1MiB
refuses 1 'cannot hold 10 needles' needle -m "$model" -c 128
refuses 2 '--depths' needle -m "$model" --depths 5,101
refuses 2 '--needle' needle -m "$model" --needle nubmer
refuses 2 'belong together' needle -m "$model" --needle-text 'Ada likes tea.'
refuses 2 'did you mean generated' needle -m "$model" --haystack genrated
refuses 2 '--kv-topk' needle -m "$model" --kv-topk 0
refuses 2 '--kv-topk' generate -m "$model" -p a --kv-topk many
refuses 2 '--kv-dense-layers' needle -m "$model" -c 4K --kv-dense-layers 99
refuses 2 '--kv-window' needle -m "$model" --kv-window 0
refuses 2 'given twice' needle -m "$model" --kv-index exact --kv-index exact
refuses 1 '--kv-index: .*hsnw' needle -m "$model" --kv-index hsnw:M=16
refuses 1 '--kv-index' generate -m "$model" -p a --kv-index hnsw:M=cat
refuses 1 'no-such-model' needle -m no-such-model
refuses 1 'no-such-model' generate -m no-such-model -p a
refuses 1 'no-such-model' info -m no-such-model
refuses 1 'prompt is empty' generate -m "$model" -p ''
refuses 1 'no-such-file' generate -m "$model" -p a -f no-such-file
refuses 1 'is a directory' generate -m "$model" -p a -f .
refuses 1 'no text' generate -m "$model" -p a -f -
refuses 1 'no \*.txt or \*.md' needle -m "$model" --haystack .
refuses 2 'what' bench
refuses 2 'what' bench encode --shape needle-14m -c 4K
refuses 2 '--shape is required' bench decode -c 4K
refuses 2 'did you mean llama3-8b?' bench decode --shape llama-8b -c 4K
refuses 2 'nor the path of a config.json' bench decode --shape gpt5 -c 4K
refuses 1 'no-such-model/config.json' bench decode --shape no-such-model/config.json -c 4K
refuses 2 '-c: give' bench decode --shape needle-14m
refuses 2 '-c: give' bench prefill --shape needle-14m
refuses 2 '-c: give' bench prefill --shape needle-14m -c 4K --at 4K
refuses 2 '--at: is of topkv bench prefill' bench decode --shape needle-14m -c 4K --at 4K
refuses 2 '--kv-topk: is of topkv bench decode' bench prefill --shape needle-14m -c 4K --kv-topk 8
refuses 2 '--tokens: is of topkv bench decode' bench prefill --shape needle-14m -c 4K --tokens 20
refuses 1 "device 'gpu' is not understood" bench prefill --shape needle-14m -c 4K --device gpu
refuses 1 "device 'cuda:x' is not understood" needle -m models/needle-14m --device cuda:x
refuses 2 '--gpu-mem' needle -m models/needle-14m --gpu-mem lots
refuses 2 '--layers: the shape has 8' bench decode --shape needle-14m -c 4K --layers 9
refuses 2 '--tokens: .*10' bench decode --shape needle-14m -c 4K --tokens 9
refuses 2 '--kv-topk: 64 is given twice' bench decode --shape needle-14m -c 4K --kv-topk 64 --kv-topk 64
refuses 2 '--kv-topk' bench decode --shape needle-14m -c 4K --kv-topk 0
refuses 1 '--kv-index: .*hsnw' bench decode --shape needle-14m -c 4K --kv-index hsnw:M=16
refuses 1 'host memory' bench decode --shape llama3-8b -c 1G
touch taken
refuses 1 'taken' needle -m "$model" -c 4K -o taken

for command in needle generate info bench; do
  "$topkv" "$command" --help | grep -q "^usage: topkv $command" || {
    failures=$((failures + 1))
    echo "FAILED: topkv $command --help"
  }
done
"$topkv" --version | grep -qE '^topkv [0-9]+\.[0-9]+\.[0-9]+$' || {
  failures=$((failures + 1))
  echo "FAILED: topkv --version"
}

[ "$failures" -eq 0 ] && echo "all refused as they should be"
exit "$failures"
