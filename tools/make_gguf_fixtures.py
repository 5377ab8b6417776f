#!/usr/bin/env python3
"""Makes those of tests/fixtures/parity whose checkpoints are GGUF files.

The files are written by the `gguf` package, and what their blocks stand for is what it reads of
them: transformers computes the logits over those weights, in float32. Blocks of types that the
package cannot make (q2_K to q6_K, iq4) are random bytes with scales that give weights of the usual
size. As llama.cpp's converter does, rows of q and k are put into another order for the architecture
"llama", the scaling of Llama 3.1's RoPE is told by the tensor rope_freqs.weight, and norms of Gemma
have 1 added. Gemma 3's file does not say which layers slide, nor with which RoPE.

    tests/fixtures/parity/<variant>/model.gguf
                                    tokens.json, reference/: as make_parity_fixtures.py has them

Needs tools/requirements.txt. Run from anywhere: python tools/make_gguf_fixtures.py [VARIANT...]
"""

import copy
import shutil
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from make_parity_fixtures import (MISTAKE, OUT, greedy, load, logits_of, write_checkpoint,
                                  write_reference)
from parity_mistakes import mistakes, plain_frequencies
from parity_variants import LLAMA3, theta

COMMON = dict(tokens=48, dtype=torch.float32, num_attention_heads=2, num_key_value_heads=1,
              head_dim=64)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32)

# Types by the last part of a weight's name, "" for all others.
VARIANTS = {
    "gguf-llama": (COMMON | dict(model_type="llama", hidden_size=256, intermediate_size=256,
                                 num_hidden_layers=1, rope_parameters=LLAMA3),
                   {"": Type.Q4_K, "v_proj": Type.Q6_K, "down_proj": Type.Q6_K, "o_proj": Type.Q5_0,
                    "embed_tokens": Type.Q6_K, "lm_head": Type.Q6_K, "k_proj": Type.Q5_K}),
    "gguf-llama-small": (COMMON | dict(model_type="llama", hidden_size=256, intermediate_size=256,
                                       num_hidden_layers=1, tie_word_embeddings=True,
                                       rope_parameters=theta(10000.0)),
                         {"": Type.Q3_K, "v_proj": Type.IQ4_XS, "down_proj": Type.Q2_K,
                          "o_proj": Type.IQ4_NL, "embed_tokens": Type.Q4_0}),
    "gguf-qwen2": (COMMON | dict(model_type="qwen2", hidden_size=128, intermediate_size=96,
                                 num_hidden_layers=1, use_sliding_window=False, max_position_embeddings=32,
                                 rope_parameters=YARN),
                   {"": Type.Q4_0, "v_proj": Type.Q5_1, "down_proj": Type.Q4_1,
                    "embed_tokens": Type.BF16, "lm_head": Type.F16, "k_proj": Type.Q5_0}),
    "gguf-qwen3": (COMMON | dict(model_type="qwen3", hidden_size=64, intermediate_size=96,
                                 num_hidden_layers=1, tie_word_embeddings=True, rope_parameters=theta(1000000.0)),
                   {"": Type.Q8_0, "k_proj": Type.F32, "embed_tokens": Type.Q8_0,
                    "down_proj": Type.F16}),
    # Six layers, of which the last does not slide. Its RoPE is stretched.
    "gguf-gemma3": (COMMON | dict(model_type="gemma3_text", hidden_size=32, intermediate_size=32, head_dim=32,
                                  num_hidden_layers=6, tie_word_embeddings=True, sliding_window=16,
                                  query_pre_attn_scalar=32, pad_token_id=0, rope_parameters=dict(
                                      sliding_attention=theta(10000.0),
                                      full_attention=dict(rope_type="linear", rope_theta=1000000.0,
                                                          factor=8.0))),
                    {"": Type.Q5_0, "v_proj": Type.Q8_0, "down_proj": Type.Q5_1, "o_proj": Type.Q4_1,
                     "embed_tokens": Type.Q8_0}),
}
VARIANTS["gguf-qwen2"][0].pop("head_dim")

NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down"}
GEMMA_NAMES = NAMES | {"post_attention_layernorm": "post_attention_norm",
                       "pre_feedforward_layernorm": "ffn_norm",
                       "post_feedforward_layernorm": "post_ffw_norm"}

# Where a block has its scale and what is taken from values, and how large that is to be beside it,
# so that weights are about 0 on average.
RANDOM = {Type.Q2_K: (80, 82, 1.5), Type.Q3_K: (108, None, 0), Type.Q4_K: (0, 2, 7.5),
          Type.Q5_K: (0, 2, 15.5), Type.Q6_K: (208, None, 0), Type.IQ4_NL: (0, None, 0),
          Type.IQ4_XS: (0, None, 0)}


def gguf_name(name, names):
    whole = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
             "model.norm.weight": "output_norm.weight"}
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{names[module]}.{kind}"


def paired(weight, heads):
    """Rows (or elements) i and i + d / 2 of each head behind each other, as llama.cpp turns them."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def unpaired(weight, heads):
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def random_blocks(shape, kind, size, generator):
    """Blocks whose values have about this standard deviation, in the order of the file."""
    inputs, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = shape[0] * shape[1] // inputs
    raw = generator.integers(0, 256, (blocks, block_bytes), dtype=np.uint8)
    at, at_min, ratio = RANDOM[kind]

    def scaled(by):
        varied = (by * generator.uniform(0.8, 1.2, blocks)).astype(np.float16)
        raw[:, at:at + 2] = varied[:, None].view(np.uint8)
        if at_min is not None:
            raw[:, at_min:at_min + 2] = (varied * ratio).astype(np.float16)[:, None].view(np.uint8)
        data = raw.reshape(shape[0], -1)
        return data, gguf.quants.dequantize(data, kind)

    _, values = scaled(np.full(blocks, 2.0 ** -8))
    return scaled(np.full(blocks, 2.0 ** -8 * size / float(values.std())))


def make_tensor(name, weight, kind, generator):
    """What the file has, and its values: both in the file's order."""
    if kind in RANDOM:
        return random_blocks(weight.shape, kind, float(weight.std()), generator)
    data = gguf.quants.quantize(weight, kind)
    return data, gguf.quants.dequantize(data, kind)


def write_metadata(writer, config):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    rope = config.rope_parameters
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def make_variant(name, spec, types, seed):
    folder = OUT / name
    generator = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as temporary:
        plain = Path(temporary) / "plain"
        tokens = write_checkpoint(plain, copy.deepcopy(spec), seed)
        model, shuffled = load(plain), load(plain)
    config = model.config
    path = folder / "model.gguf"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    gemma = config.model_type == "gemma3_text"
    names = GEMMA_NAMES if gemma else NAMES
    writer = gguf.GGUFWriter(path, "gemma3" if gemma else config.model_type)
    write_metadata(writer, config)
    if config.rope_parameters.get("rope_type") == "llama3":
        frequencies = model.model.rotary_emb.inv_freq
        plain_ones = plain_frequencies(config.rope_parameters, frequencies.numel()).float()
        writer.add_tensor("rope_freqs.weight", (plain_ones / frequencies).numpy())
    for key, parameter in model.named_parameters():
        weight = parameter.detach().numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(
            key.split(".")[-2]) if config.model_type == "llama" else None
        if heads:
            weight = paired(weight, heads)
        if weight.ndim == 2:
            kind = types.get(key.split(".")[-2], types[""])
            data, value = make_tensor(key, weight, kind, generator)
            writer.add_tensor(gguf_name(key, names), data, raw_dtype=kind)
        else:
            stored = weight + 1 if gemma else weight
            value = stored - 1 if gemma else weight
            writer.add_tensor(gguf_name(key, names), stored)
        shuffled.get_parameter(key).data = torch.from_numpy(value.copy())
        if heads:
            value = unpaired(value, heads)
        model.get_parameter(key).data = torch.from_numpy(value.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    logits = logits_of(model, tokens)
    largest = float(logits.abs().max())
    chosen, lead = greedy(model, tokens)
    order = float((logits_of(shuffled, tokens) - logits).abs().max()) / largest
    print(f"{name}: largest logit {largest:.3g}, least lead {lead:.3g}, seed {seed}, {path.stat().st_size}"
          f" bytes; rows of q and k in the file's order {order:.2g}")
    if config.model_type == "llama" and order < MISTAKE:
        return "a mistake moves the logits by too little"
    if gemma:
        for what, deed in mistakes(model):
            if what == "scale of heads":  # it is the right one here
                continue
            wrong = copy.deepcopy(model)
            deed(wrong)
            effect = float((logits_of(wrong, tokens) - logits).abs().max()) / largest
            print(f"   {what} {effect:.2g}")
            if effect < MISTAKE:
                return f"'{what}' moves the logits by {effect:.2g} only"
    if lead < MISTAKE * largest:
        return f"two tokens are within {lead:.2g} of each other"
    if set(chosen) & {2, 3}:
        return "an end token was generated"
    write_reference(folder, tokens, logits, greedy=chosen)
    return None


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for number, (name, (spec, types)) in enumerate(VARIANTS.items()):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        for attempt in range(50):
            refusal = make_variant(name, spec, types, seed=70000 + 1000 * number + attempt)
            if refusal is None:
                break
            print(f"   refused: {refusal}; next seed")
        else:
            raise SystemExit(f"{name}: no seed gave a usable fixture")


if __name__ == "__main__":
    main()
