#!/usr/bin/env python3
"""Compares the logits of topkv, llama.cpp and transformers for a GGUF file, over one text, on a CPU.

    python compare.py FILE.gguf [TOKENS]

transformers computes in float32 over the weights that the blocks of the file stand for. llama.cpp runs the file,
and a copy of it in float32: there its products do not round what they multiply to 8 bits. The text is the licence
of this repository. Prints a row of a Markdown table for each pair. Needs the Python package topkv, requirements.txt
and compare.txt.

The file may be a fixture's, tests/fixtures/parity/gguf-NAME/model.gguf. Tokens and transformers' logits are then those
of the fixture, and llama.cpp runs the copy alone.
"""

import json
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

from safetensors.numpy import load_file

import llama_cpp
import topkv

TEXT = (Path(__file__).resolve().parents[2] / "LICENSE").read_text()


def widened(file, to):
    """A copy whose weights are float32. llama.cpp loads no file without a vocabulary: fixtures get one."""
    source = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(to, source.fields["general.architecture"].contents())
    for key, field in source.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        of_array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if of_array else None)
    if "tokenizer.ggml.model" not in source.fields:
        count = next(field.contents() for key, field in source.fields.items() if key.endswith(".vocab_size"))
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list([chr(0x4E00 + token) for token in range(count)])
        writer.add_token_types([1] * count)
        writer.add_token_merges(["a b"])
    for tensor in source.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.reshape(tensor.shape[::-1]).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return to


@torch.no_grad()
def logits_of_transformers(file, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager").eval()
    return model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def compare(what, expected, got):
    """Divergence of the next token's distribution, in nats, from that of the first."""
    p, q = (torch.log_softmax(torch.from_numpy(logits.astype(np.float64)), -1).numpy() for logits in (expected, got))
    divergence = (np.exp(p) * (p - q)).sum(-1)
    same = (expected.argmax(-1) == got.argmax(-1)).mean()
    error = np.abs(expected - got).max() / np.abs(expected).max()
    print(f"| {what} | {divergence.mean():.2g} | {divergence.max():.2g} | {100 * same:.1f} % | {error:.2g} |", flush=True)


def main():
    file, count = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 300
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    fixture = file.parent / "tokens.json"
    if fixture.exists():
        tokens = json.loads(fixture.read_text())["tokens"]
        reference = load_file(file.parent / "reference/model.safetensors")["logits"]
    else:
        tokens = [int(token) for token in topkv.Tokenizer.load(file).encode(TEXT, True)[:count]]
        reference = logits_of_transformers(file, tokens)
        theirs = llama_cpp.logits_of(file, tokens)
    ours = topkv.Model.load(file, device="cpu").logits(tokens)
    with tempfile.TemporaryDirectory() as folder:
        wide = llama_cpp.logits_of(widened(file, Path(folder) / "float32.gguf"), tokens)
    print(f"{file}, {len(tokens)} tokens")
    print("| logits of | compared with | KL, mean | KL, largest | same likeliest token | largest error of a logit |")
    print("| --- | --- | --- | --- | --- | --- |")
    compare("topkv | transformers", reference, ours)
    if not fixture.exists():
        compare("llama.cpp | transformers", reference, theirs)
        compare("topkv | llama.cpp", theirs, ours)
    compare("topkv | llama.cpp, weights in float32", wide, ours)


if __name__ == "__main__":
    main()
