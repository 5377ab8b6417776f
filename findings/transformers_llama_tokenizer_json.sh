#!/usr/bin/env bash
# transformers 5.23.0 with tokenizers 0.23.3: AutoTokenizer gives other ids than the tokenizer.json that it reads.
#
# A directory whose tokenizer_config.json names the class LlamaTokenizer (Llama 2, Mistral 7B, TinyLlama and others do)
# is not tokenized as its tokenizer.json says. transformers takes the vocabulary and the merges from that file and
# builds the rest anew. The file's normalizer, which puts a space in front of each text between special tokens, is left
# out. Text behind a special token becomes other tokens, without a warning. The same files under the class
# PreTrainedTokenizerFast, and the tokenizers library itself, give the ids that the file says. Chat templates of these
# models put text behind <s> and </s> in every turn.
#
# Ids of "<s>ab</s> ab", seen on 2026-11-27:
#   tokenizers, from tokenizer.json:                  [1, 264, 2, 259, 264]
#   AutoTokenizer, PreTrainedTokenizerFast:           [1, 264, 2, 259, 264]
#   AutoTokenizer, LlamaTokenizer, "legacy": true:    [1, 264, 2, 264]
#   AutoTokenizer, LlamaTokenizer, "legacy": false:   [1, 263, 2, 264]
#   AutoTokenizer, LlamaTokenizer:                    [1, 263, 2, 264]
# Here 259 is a space, 263 "ab", 264 " ab". Fails when that changes. Needs PyPI and nothing of topkv.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 tokenizers==0.23.3
cat >"$work/try.py" <<'PYTHON'
import json
import pathlib
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import AutoTokenizer

TEXT = "<s>ab</s> ab"
directory = pathlib.Path(sys.argv[1])
directory.mkdir()
# A vocabulary of SentencePiece's BPE, and around it what Llama 2's tokenizer.json has.
tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + ["▁", "a", "b", "▁a", "ab", "▁ab"]
merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
bpe = models.BPE({token: i for i, token in enumerate(tokens)}, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
tokenizer = Tokenizer(bpe)
tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tokens[:3]])
tokenizer.save(str(directory / "tokenizer.json"))
(directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
print("tokenizers:", Tokenizer.from_file(str(directory / "tokenizer.json")).encode(TEXT, add_special_tokens=False).ids)
for kind in (
    {"tokenizer_class": "PreTrainedTokenizerFast"},
    {"tokenizer_class": "LlamaTokenizer", "legacy": True},
    {"tokenizer_class": "LlamaTokenizer", "legacy": False},
    {"tokenizer_class": "LlamaTokenizer"},
):
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **kind}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    print(json.dumps(kind), AutoTokenizer.from_pretrained(directory)(TEXT, add_special_tokens=False).input_ids)
PYTHON
HF_HUB_OFFLINE=1 HF_HOME=$work/hub "$work/venv/bin/python" "$work/try.py" "$work/model" 2>"$work/log" | tee "$work/seen"
cmp "$work/seen" - <<'SEEN'
tokenizers: [1, 264, 2, 259, 264]
{"tokenizer_class": "PreTrainedTokenizerFast"} [1, 264, 2, 259, 264]
{"tokenizer_class": "LlamaTokenizer", "legacy": true} [1, 264, 2, 264]
{"tokenizer_class": "LlamaTokenizer", "legacy": false} [1, 263, 2, 264]
{"tokenizer_class": "LlamaTokenizer"} [1, 263, 2, 264]
SEEN
