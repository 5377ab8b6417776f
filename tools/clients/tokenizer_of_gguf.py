"""Writes the tokenizer of SmolLM2's GGUF file as a tokenizer.json, for lm-eval, which counts tokens by itself.

usage: tokenizer_of_gguf.py FILE.gguf DIRECTORY
"""

import json
import pathlib
import sys

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL = 3  # a token's type in GGUF files

fields = GGUFReader(sys.argv[1]).fields
value = lambda name: fields["tokenizer.ggml." + name].contents()
assert value("model") == "gpt2" and value("pre") == "smollm", "the file has another tokenizer than SmolLM2's"
tokens = value("tokens")
merges = [tuple(merge.split(" ")) for merge in value("merges")]
tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
)
tokenizer.decoder = decoders.ByteLevel()
special = [token for token, kind in zip(tokens, value("token_type")) if kind == CONTROL]
tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
directory = pathlib.Path(sys.argv[2])
directory.mkdir(exist_ok=True)
tokenizer.save(str(directory / "tokenizer.json"))
end = tokens[value("eos_token_id")]
(directory / "tokenizer_config.json").write_text(
    json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "bos_token": tokens[value("bos_token_id")]})
)
