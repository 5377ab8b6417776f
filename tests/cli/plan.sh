#!/bin/sh
# What topkv plan says where nothing fits: which length does, and whether another index would.
# usage: plan.sh TOPKV MODEL_DIRECTORY WORK_DIRECTORY
set -u
topkv=$1 model=$2 work=$3
. "$(dirname "$0")/holds.sh"
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1

plan() { "$topkv" plan "$model" --device cpu "$@" >out 2>log; }

plan -c 64K --mem 4GiB
holds 'a plan that fits ends with 0' test $? -eq 0
holds 'and needs no way out' test "$(grep -c '^fits' out)" -eq 0
plan -c 64K --mem 4GiB --draft-model "$model" --draft-window 64
holds 'a draft model is counted' test "$(grep -c 'draft model' out)" -eq 2
holds 'and is among the flags' grep -q "^run .* --draft-model $model --draft-window 64 --device cpu" out
plan -c 64K --mem 4GiB --kv-host-search
holds 'a search that is left to the host is among the flags' grep -q '^run .*--kv-host-search' out

# A long text is read with sparse attention: densely it would take the host hours.
plan -c 1M --mem 16GiB
holds 'without a GPU a long text is read sparsely, as the commands do' grep -q '^run  .* --kv-index [^ ]* --device cpu' out
holds 'with what it takes, and what dense attention would' grep -q '^prefill   sparse: a token attends up to 9,220 keys: [0-9]* TFLOP, [0-9]* min.* at 100 GFLOP/s; dense prefill takes 6,755 TFLOP, 18 h .* at 100 GFLOP/s$' out
plan -c 1M --mem 16GiB --json
holds 'which programs are told, too' python3 -c 'import json; p = json.load(open("out")); assert p["prefill"] == "sparse" and 6e15 < p["dense_prefill_flop"] < 7e15 and 1e14 < p["prefill_flop"] < 2e14'
plan -c 1M --mem 16GiB --prefill dense
holds 'what is asked for stays' grep -q '^run .* --prefill dense ' out
holds 'with the other way' grep -q '^prefill   dense: 6,755 TFLOP, .* h .*; --prefill sparse takes [0-9]* TFLOP, .* at most$' out
mkdir chunks
python3 - "$model" <<'END'
import json, sys
config = json.load(open(f"{sys.argv[1]}/config.json"))
config["model_type"] = "qwen2"
config["dual_chunk_attention_config"] = {"chunk_size": 1000, "local_size": 100, "original_max_position_embeddings": 1000}
json.dump(config, open("chunks/config.json", "w"))
END
whole=$model model=chunks
plan -c 1M --mem 64GiB
holds 'chunks that are not of whole blocks are read densely' grep -q '^prefill   dense: .*; this model has no sparse prefill$' out
plan -c 1M --mem 64GiB --prefill sparse
holds 'in sparse mode they are refused' test $? -eq 1
holds 'with what is expected' grep -q 'a sparse prefill of attention in chunks of 900 tokens; expected a multiple of 128' log
model=$whole
plan -c 1M --mem 16GiB --prefill window
holds 'so does the window' grep -q '^run  .* --prefill window' out
holds 'with what it takes' grep -q '^prefill   window: a token attends 1,028 keys: [0-9]* TFLOP, .*; dense prefill takes 6,755 TFLOP, ' out
plan -c 1M --mem 16GiB --prefill-keys 2048 --prefill-window 512
holds 'numbers of keys count' grep -q '^prefill   sparse: a token attends up to 2,564 keys: ' out
holds 'and are among the flags' grep -q '^run .* --prefill-window 512 --prefill-keys 2048 ' out
plan -c 1M --mem 16GiB --prefill-mass 0.9
holds 'so is the share of attention' grep -q '^run .* --prefill-mass 0.9 ' out
plan -c 1M --mem 16GiB --prefill-mass none
holds 'or none' grep -q '^run .* --prefill-mass none ' out
plan -c 8K --mem 4GiB
holds 'a short text is read densely' grep -q '^prefill   dense: 0[.]4 TFLOP, 4[.][0-9] s at 100 GFLOP/s$' out
holds 'of which no command needs to be told' test "$(grep -c -e '--prefill' out)" -eq 0
plan -c 39700 --mem 4GiB --prefill dense
holds 'almost ten of them are ten' grep -q '^prefill   dense: 10 TFLOP, ' out
if "$topkv" plan "$model" -c 32K --gpu-mem 16GiB --mem 16GiB >out 2>log; then # by a topkv with CUDA
  holds 'as a GPU reads longer ones' grep -q '^prefill   dense: [0-9]* TFLOP$' out
fi

plan -c 1M --mem 1GiB
holds 'where nothing fits the status is 1' test $? -eq 1
most=$(sed -n 's/^fits  *\([0-9,]*\) tokens$/\1/p' out | tr -d ,)
holds 'a length that fits is named' test -n "$most"
plan -c "$most" --mem 1GiB
holds 'it does fit' test $? -eq 0
plan -c "$((most + 1024))" --mem 1GiB
holds 'and no longer one' test $? -eq 1

plan -c 1M --mem 1600MiB
holds 'codes do not fit' test $? -eq 1
holds 'exact search would' grep -q '^fits .*--kv-index exact$' out
plan -c 1M --mem 1600MiB --kv-index exact
holds 'it does' test $? -eq 0
plan -c 1M --mem 1600MiB --kv-index codes
holds 'an index that is asked for stays' test "$(grep -c -- '--kv-index exact' out)" -eq 0

plan -c 1M --mem 10MiB
holds 'where no length fits none is named' test "$(grep -c '^fits' out)" -eq 0
holds 'which is said' grep -q '^too much  1,024 tokens do not fit either' out
holds 'and that exact search does not fit either' grep -q '^too much  --kv-index exact does not fit either$' out
plan -c 1M --mem 2000000KB
holds 'KB are thousands of bytes' grep -q '^host memory, 1.9 GiB$' out

end
