#!/bin/sh
# What topkv info and plan say of models whose weights are here, are not here yet, or are not whole.
# usage: info.sh TOPKV MODEL_DIRECTORY WORK_DIRECTORY
set -u
topkv=$1 model=$(cd "$2" && pwd) work=$3
fixtures=$(cd "$(dirname "$0")/.." && pwd)/fixtures/parity
. "$(dirname "$0")/holds.sh"
rm -rf "$work" && mkdir -p "$work" && cd "$work" || exit 1

info() { "$topkv" info "$@" >out 2>log; }
# What config.json says is printed whatever the weights are.
knows() { grep -q '^network     8 layers' out && grep -q '^ *1M ' out; }
errors() { [ "$(wc -l <log)" -eq 1 ] && grep -q "^topkv: error: .*$1" log; }

info "$model"
holds 'info of a whole model ends with 0' test $? -eq 0
holds 'and warns of nothing' test ! -s log
holds 'it does not warn of lengths that the model was made for' sh -c '! grep -q "may be worthless" out'
holds 'it tells what weights take' grep -q '^model .*, weights 27.0 MiB$' out
size=$(sed -n 's/.*weights \(.*\)$/\1/p' out)

info no-such-context.tkv
holds 'a context that is not there is an error' test $? -eq 1
holds 'that speaks of a context' errors 'no-such-context.tkv: there is no such file; expected a file that topkv prefill wrote'

# Before anything is fetched: config.json alone, or with the index.
mkdir bare && cp "$model/config.json" bare
printf '{"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}' >index
for files in bare indexed; do
  [ $files = bare ] || { mkdir indexed && cp bare/config.json indexed && cp index indexed/model.safetensors.index.json; }
  info $files
  holds "no weights yet is no error ($files)" test $? -eq 0
  holds 'nor a warning' test ! -s log
  holds 'it is told, with what they will take' grep -q "^model .*, no weights yet; they will take $size" out
  holds 'contexts are' knows
done
info bare --json
holds 'in JSON, too' grep -q '"weights_here":false' out
"$topkv" plan bare -c 64K --device cpu --mem 4GiB >plan 2>log
holds 'a plan needs no weights' test $? -eq 0
holds 'and says so' grep -q '^weights   none yet' plan
"$topkv" plan "$model" -c 64K --device cpu --mem 4GiB >whole 2>log
sed -n 's/^  weights *//p' plan >a && sed -n 's/^  weights *//p' whole >b
holds 'it counts what they will take' cmp a b
"$topkv" generate -m bare -p a >out 2>log
holds 'but nothing can be loaded' errors 'has neither model.safetensors'

# Some are missing, or damaged.
mkdir cut && cp "$model/config.json" cut && head -c 1000000 "$model/model.safetensors" >cut/model.safetensors
info cut
holds 'weights cut short are an error' test $? -eq 1
holds 'that names the file' errors 'cut/model.safetensors: '
holds 'beside what is known' knows
holds 'and that there are no weights to use' grep -q '^model .*, no usable weights$' out
info cut --json
holds 'in JSON, too' grep -q '"weights_here":false' out
cp "$model/model.safetensors" indexed/model-00002-of-00002.safetensors
info indexed
holds 'a missing shard is an error' test $? -eq 1
holds 'that names it' errors 'model-00001-of-00002.safetensors", which is missing; expected the shard'
holds 'beside what is known' knows
mkdir lone && cp "$model/config.json" lone && cp "$model/model.safetensors" lone/model-00001-of-00002.safetensors
info lone
holds 'shards without their index are an error' test $? -eq 1
holds 'that says what to fetch' errors 'expected the index beside model-00001-of-00002.safetensors: fetch the index'
mkdir torch && cp "$model/config.json" torch && touch torch/pytorch_model.bin
info torch
holds 'weights that are not safetensors are an error' errors 'pytorch_model.bin is not read'
mkdir more && ln -s "$model"/* more/ && rm more/config.json
sed 's/"num_hidden_layers": *8/"num_hidden_layers": 9/' "$model/config.json" >more/config.json
info more
holds 'a tensor that is missing is an error' errors 'has no tensor .*model.layers.8.*fetch the weights again'

# What is neither a model nor a context.
printf 'The grass is green.\n' >notes.txt
info notes.txt
holds 'a file of text is an error' test $? -eq 1
holds 'that says what is expected' errors 'notes.txt: is neither a model nor a context; expected the directory of a model, a GGUF file, or a file that topkv prefill wrote'
info "$model/model.safetensors"
holds 'so is one of weights' errors 'is neither a model nor a context'

# What loading warns of.
sed 's/"num_hidden_layers": *8/"num_hidden_layers": 7/' "$model/config.json" >more/config.json
info more
holds 'tensors that nothing reads are no error' test $? -eq 0
holds 'they are told' grep -q '^topkv: warning: .* tensors are not used: model.layers.7' log
cp log told
"$topkv" generate -m more --device cpu -n 1 -p a >out 2>log
holds 'as loading tells them' grep -q -F "$(cat told)" log

# Llama 3.1's RoPE in a GGUF file.
info "$fixtures/gguf-llama/model.gguf"
holds 'factors of RoPE are told by their tensor' grep -q '^positions .* scaled by the factors of rope_freqs.weight$' out

# Hybrids: weights of all kinds of layers count, and states are told.
elements_of() { # the elements of a checkpoint's tensors
  python3 - "$1/model.safetensors" <<'END'
import json, math, struct, sys
with open(sys.argv[1], "rb") as file:
    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
print(sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"))
END
}
for name in qwen3-5 qwen3-5-moe qwen3-next; do
  info --json "$fixtures/$name"
  holds "the parameters of $name are those of its tensors" grep -q "\"parameters\":$(elements_of "$fixtures/$name")[,}]" out
done
info "$fixtures/qwen3-5"
holds 'the first length beyond the positions is told' grep -q '^[0-9]* tokens are more than the [0-9]* positions that the model was made for' out
holds 'states of a hybrid are told' grep -q '^states      20.1 KiB in 3 of 4 layers, however long the text is$' out

end
