#!/bin/sh
# Trained indexers in files with the tool: a choice of all tokens is dense attention, contexts in
# files keep index keys, and flags and files that do not fit are refused.
# usage: indexer.sh TOPKV MODEL_DIRECTORY WORK_DIRECTORY
set -u
topkv=$1 model=$(cd "$2" && pwd) work=$3
here=$(cd "$(dirname "$0")" && pwd)
. "$here/holds.sh"
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1
make="python3 $here/make_indexer.py"
$make all.safetensors 8
$make some.safetensors 3
$make wide.safetensors 8 dim=32

{
  for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
    echo 'The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.'
  done
  echo 'One of the special magic numbers for quiet-river is: 7281934.'
} >notes.txt
prompt=' What is the special magic number for quiet-river mentioned in the provided text? The special magic number for quiet-river mentioned in the provided text is'
cpu='--device cpu -t 2'
indexed='--indexer all.safetensors --kv-window 8'

"$topkv" generate -m "$model" -f notes.txt -p "$prompt" $cpu -n 9 --kv-dense-layers all >dense 2>/dev/null
"$topkv" generate -m "$model" -f notes.txt -p "$prompt" $cpu $indexed --kv-topk 100000 -n 9 >all 2>log
holds 'a choice of all tokens is dense attention' cmp -s dense all
"$topkv" generate -m "$model" -f notes.txt -p "$prompt" $cpu $indexed --kv-topk 2 -n 9 >few 2>log
holds 'a choice of few tokens is not' sh -c '! cmp -s dense few'

holds 'a context keeps index keys' "$topkv" prefill -m "$model" -f notes.txt -o notes.tkv $cpu --indexer all.safetensors
holds 'and is verified' "$topkv" verify notes.tkv
for top in 2 100000; do
  "$topkv" generate -m "$model" -f notes.txt -p "$prompt" $cpu $indexed --kv-topk $top -n 9 >whole 2>/dev/null
  for how in '' --mmap; do
    "$topkv" ask notes.tkv -m "$model" $cpu $indexed --kv-topk $top -n 9 -p "$prompt" $how >kept 2>log
    holds "is asked as the text is, with --kv-topk $top $how" cmp -s whole kept
  done
done

"$topkv" perplexity -m "$model" -f notes.txt -c 256 --score 16 $cpu $indexed --kv-dtype f32 --kv-topk 100000 --kv-topk 4 --json >lines 2>log
holds 'perplexity compares with dense attention' python3 -c '
import json
dense, every, four = (json.loads(line) for line in open("lines"))
assert dense["setting"] == "dense" and every["index"] == four["index"] == "indexer", every
assert every["kl_max"] < 1e-6 and every["same_top"] == 1, every
assert four["kl_mean"] > 1e-4 and four["rows"] == 12, four
keys, rows = 8 * 239 * 16 * 2, 8 * 2 * 12 * 512
assert four["bytes_read"] == keys + rows, (four["bytes_read"], keys + rows)'
"$topkv" fidelity -m "$model" -c 512 --questions 1 $cpu $indexed --kv-dtype f32 --kv-topk 100000 --kv-topk 4 --json >lines 2>log
holds 'fidelity compares with dense attention' python3 -c '
import json
every, four = (json.loads(line) for line in open("lines"))
assert every["error_mean"] < 1e-5 and abs(every["mass"] - 1) < 1e-5, every
assert four["error_mean"] > 1e-3 and 0 < four["mass"] < 1 and four["recall"] is None, four'
holds 'layers without an indexer have an index' "$topkv" generate -m "$model" -f notes.txt -p "$prompt" $cpu --indexer some.safetensors --kv-index codes -n 2

fails() {
  pattern=$1
  shift
  "$topkv" "$@" -m "$model" $cpu >stdout 2>stderr
  status=$?
  holds "is refused: $pattern" sh -c "test $status -ne 0 && grep -q -- '$pattern' stderr"
}
fails 'does not match this model and its flags' ask notes.tkv -p x
fails 'does not match this model and its flags' ask notes.tkv -p x --indexer some.safetensors
fails 'wq.weight has shape' generate -p x --indexer wide.safetensors
fails 'cannot be opened\|No such file' generate -p x --indexer none.safetensors
fails 'kv-mass does not go with --indexer' generate -p x $indexed --kv-mass 0.9
fails 'kv-tail does not go with --indexer' generate -p x $indexed --kv-tail mean
fails 'kv-dense-layers does not go with --indexer' generate -p x $indexed --kv-dense-layers 2
fails 'expected one number with --indexer' generate -p x $indexed --kv-topk uniform:512
end
