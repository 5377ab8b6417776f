#!/usr/bin/env python3
"""Makes a GGUF file with random weights in the shape of a published Qwen2.5, for timing topkv and
llama.cpp on the same file. Its tokens are bytes and numbered words: it has no language.

    python make_random_gguf.py qwen2.5-0.5b q4_0 FILE
"""

import argparse

import gguf
import numpy
from make_random_checkpoint import SHAPES

TYPES = {"q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_0": gguf.GGMLQuantizationType.Q4_0}


def matrices(shape):
    """Names, and [out, in] of what is quantised."""
    hidden, mlp = shape["hidden_size"], shape["intermediate_size"]
    head = hidden // shape["num_attention_heads"]
    kv = shape["num_key_value_heads"] * head
    yield "token_embd", (shape["vocab_size"], hidden)
    for layer in range(shape["num_hidden_layers"]):
        at = f"blk.{layer}."
        yield at + "attn_q", (hidden, hidden)
        yield at + "attn_k", (kv, hidden)
        yield at + "attn_v", (kv, hidden)
        yield at + "attn_output", (hidden, hidden)
        yield at + "ffn_gate", (mlp, hidden)
        yield at + "ffn_up", (mlp, hidden)
        yield at + "ffn_down", (hidden, mlp)
    if not shape["tie_word_embeddings"]:
        yield "output", (shape["vocab_size"], hidden)


def byte_tokens():
    """GPT-2's characters for bytes: those that can be printed stand for themselves."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return [chr(byte) for byte in printed] + [chr(256 + place) for place in range(len(others))]


def main():
    qwen = sorted(name for name, shape in SHAPES.items() if shape["model_type"] == "qwen2")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=qwen)
    parser.add_argument("type", choices=sorted(TYPES))
    parser.add_argument("file")
    arguments = parser.parse_args()
    shape, kind = SHAPES[arguments.shape], TYPES[arguments.type]
    random = numpy.random.default_rng(0)

    writer = gguf.GGUFWriter(arguments.file, "qwen2")
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_rope_freq_base(shape["rope_theta"])
    writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    words = ["<2"] + [f"<{number}>" for number in range(257, shape["vocab_size"])]
    writer.add_token_list(byte_tokens() + words)
    writer.add_token_types([gguf.TokenType.NORMAL] * shape["vocab_size"])
    writer.add_token_merges(["< 2"])
    writer.add_eos_token_id(shape["vocab_size"] - 1)

    for name, size in matrices(shape):
        values = random.standard_normal(size, dtype=numpy.float32) * numpy.float32(0.02)
        writer.add_tensor(name + ".weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
        if name.split(".")[-1] in ("attn_q", "attn_k", "attn_v"):
            writer.add_tensor(name + ".bias", numpy.zeros(size[0], numpy.float32))
    norms = ["output_norm"]
    for layer in range(shape["num_hidden_layers"]):
        norms += [f"blk.{layer}.attn_norm", f"blk.{layer}.ffn_norm"]
    for name in norms:
        writer.add_tensor(name + ".weight", numpy.ones(shape["hidden_size"], numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=False)
    writer.close()


if __name__ == "__main__":
    main()
