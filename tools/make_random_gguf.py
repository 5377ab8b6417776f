#!/usr/bin/env python3
"""Makes a GGUF file with random weights in the shape of a published Qwen2.5 or Qwen3.5, for timing topkv and
llama.cpp on the same file. Its tokens are bytes and numbered words: it has no language.

    python make_random_gguf.py qwen2.5-0.5b q4_0 FILE
"""

import argparse

import gguf
import numpy
from make_random_checkpoint import SHAPES

ARCHITECTURES = {"qwen2": "qwen2", "qwen3_5_text": "qwen35"}
TYPES = {"q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_0": gguf.GGMLQuantizationType.Q4_0}


def is_recurrent(shape, layer):
    interval = shape.get("full_attention_interval")
    return interval is not None and (layer + 1) % interval != 0


def recurrent_sizes(shape):
    """Widths of q and k together, and of v; heads of v."""
    keys = shape["linear_num_key_heads"] * shape["linear_key_head_dim"]
    heads = shape["linear_num_value_heads"]
    return 2 * keys, heads * shape["linear_value_head_dim"], heads


def matrices(shape):
    """Names, and [out, in] of what is quantised."""
    hidden, mlp = shape["hidden_size"], shape["intermediate_size"]
    head = shape.get("head_dim", hidden // shape["num_attention_heads"])
    q, kv = (shape[f"num_{name}_heads"] * head for name in ("attention", "key_value"))
    hybrid = "full_attention_interval" in shape
    yield "token_embd", (shape["vocab_size"], hidden)
    for layer in range(shape["num_hidden_layers"]):
        at = f"blk.{layer}."
        if is_recurrent(shape, layer):
            keys, values, heads = recurrent_sizes(shape)
            yield at + "attn_qkv", (keys + values, hidden)
            yield at + "attn_gate", (values, hidden)
            yield at + "ssm_beta", (heads, hidden)
            yield at + "ssm_alpha", (heads, hidden)
            yield at + "ssm_out", (hidden, values)
        else:
            yield at + "attn_q", (q * (2 if hybrid else 1), hidden)
            yield at + "attn_k", (kv, hidden)
            yield at + "attn_v", (kv, hidden)
            yield at + "attn_output", (hidden, q)
        yield at + "ffn_gate", (mlp, hidden)
        yield at + "ffn_up", (mlp, hidden)
        yield at + "ffn_down", (hidden, mlp)
    if not shape["tie_word_embeddings"]:
        yield "output", (shape["vocab_size"], hidden)


def vectors(shape, random):
    """Names and values of what stays float32."""
    hidden = numpy.ones(shape["hidden_size"], numpy.float32)
    hybrid = "full_attention_interval" in shape
    yield "output_norm.weight", hidden
    for layer in range(shape["num_hidden_layers"]):
        at = f"blk.{layer}."
        yield at + "attn_norm.weight", hidden
        yield at + ("post_attention_norm" if hybrid else "ffn_norm") + ".weight", hidden
        if is_recurrent(shape, layer):
            keys, values, heads = recurrent_sizes(shape)
            kernel = (keys + values, shape["linear_conv_kernel_dim"])
            yield at + "ssm_conv1d.weight", random.standard_normal(kernel, dtype=numpy.float32) / 2
            yield at + "ssm_a", -random.uniform(0.01, 1, heads).astype(numpy.float32)
            yield at + "ssm_dt.bias", numpy.zeros(heads, numpy.float32)
            yield at + "ssm_norm.weight", numpy.ones(shape["linear_value_head_dim"], numpy.float32)
        elif hybrid:
            for name in ("attn_q_norm", "attn_k_norm"):
                yield f"{at}{name}.weight", numpy.ones(shape["head_dim"], numpy.float32)
        else:
            for name in ("attn_q", "attn_k", "attn_v"):
                heads = shape["num_attention_heads" if name == "attn_q" else "num_key_value_heads"]
                size = heads * shape["hidden_size"] // shape["num_attention_heads"]
                yield f"{at}{name}.bias", numpy.zeros(size, numpy.float32)


def write_hybrid_metadata(writer, shape):
    _, values, heads = recurrent_sizes(shape)
    turned = int(shape["head_dim"] * shape["rope_parameters"]["partial_rotary_factor"])
    pairs = turned // 2
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    writer.add_rope_dimension_count(turned)
    writer.add_rope_dimension_sections([(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0])
    writer.add_rope_freq_base(shape["rope_parameters"]["rope_theta"])
    writer.add_ssm_conv_kernel(shape["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(shape["linear_key_head_dim"])
    writer.add_ssm_group_count(shape["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(values)
    writer.add_full_attention_interval(shape["full_attention_interval"])


def byte_tokens():
    """GPT-2's characters for bytes: those that can be printed stand for themselves."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return [chr(byte) for byte in printed] + [chr(256 + place) for place in range(len(others))]


def main():
    qwen = sorted(name for name, shape in SHAPES.items() if shape["model_type"] in ARCHITECTURES)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=qwen)
    parser.add_argument("type", choices=sorted(TYPES))
    parser.add_argument("file")
    arguments = parser.parse_args()
    shape, kind = SHAPES[arguments.shape], TYPES[arguments.type]
    random = numpy.random.default_rng(0)

    writer = gguf.GGUFWriter(arguments.file, ARCHITECTURES[shape["model_type"]])
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    if "full_attention_interval" in shape:
        write_hybrid_metadata(writer, shape)
    else:
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
    for name, values in vectors(shape, random):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=False)
    writer.close()


if __name__ == "__main__":
    main()
