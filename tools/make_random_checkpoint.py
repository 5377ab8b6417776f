#!/usr/bin/env python3
"""Makes a checkpoint with random weights in the shape of a published model, in bf16 (gpt-oss's experts
in MXFP4, as they are published): for timing networks whose weights are not at hand. There is no
tokenizer in it.

    python make_random_checkpoint.py qwen2.5-3b DIR
"""

import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file

QWEN35 = dict(  # what the shapes of Qwen3.5 have in common; stretched to a million tokens
    model_type="qwen3_5_text", head_dim=256, vocab_size=248320, rms_norm_eps=1e-6,
    max_position_embeddings=1048576, full_attention_interval=4, linear_num_key_heads=16,
    linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
    rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25))
SHAPES = {
    "qwen2.5-3b": dict(
        model_type="qwen2", hidden_size=2048, intermediate_size=11008, num_hidden_layers=36,
        num_attention_heads=16, num_key_value_heads=2, vocab_size=151936, rms_norm_eps=1e-6,
        rope_theta=1000000.0, max_position_embeddings=1048576, tie_word_embeddings=True),
    "qwen2.5-0.5b": dict(
        model_type="qwen2", hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2, vocab_size=151936, rms_norm_eps=1e-6,
        rope_theta=1000000.0, max_position_embeddings=1048576, tie_word_embeddings=True),
    "qwen2.5-7b": dict(
        model_type="qwen2", hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
        num_attention_heads=28, num_key_value_heads=4, vocab_size=152064, rms_norm_eps=1e-5,
        rope_theta=10000000.0, max_position_embeddings=1048576, tie_word_embeddings=False),
    "qwen2.5-7b-1m": dict(
        model_type="qwen2", hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
        num_attention_heads=28, num_key_value_heads=4, vocab_size=152064, rms_norm_eps=1e-5,
        rope_theta=10000000.0, max_position_embeddings=1048576, tie_word_embeddings=False,
        dual_chunk_attention_config=dict(
            chunk_size=262144, local_size=8192, original_max_position_embeddings=262144)),
    "llama3-8b": dict(
        model_type="llama", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, vocab_size=128256, rms_norm_eps=1e-5,
        rope_theta=500000.0, max_position_embeddings=1048576, tie_word_embeddings=False),
    "llama3.2-1b": dict(
        model_type="llama", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
        num_attention_heads=32, num_key_value_heads=8, vocab_size=128256, rms_norm_eps=1e-5,
        rope_theta=500000.0, max_position_embeddings=1048576, tie_word_embeddings=True,
        head_dim=64),
    "qwen3-30b-a3b": dict(
        model_type="qwen3_moe", hidden_size=2048, intermediate_size=6144, num_hidden_layers=48,
        num_attention_heads=32, num_key_value_heads=4, head_dim=128, vocab_size=151936,
        rms_norm_eps=1e-6, rope_theta=10000000.0, max_position_embeddings=262144,
        tie_word_embeddings=False, num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=768, norm_topk_prob=True),
    "gpt-oss-20b": dict(
        model_type="gpt_oss", hidden_size=2880, intermediate_size=2880, num_hidden_layers=24,
        num_attention_heads=64, num_key_value_heads=8, head_dim=64, vocab_size=201088,
        rms_norm_eps=1e-5, rope_theta=150000.0, max_position_embeddings=131072,
        tie_word_embeddings=False, num_local_experts=32, num_experts_per_tok=4, sliding_window=128,
        rope_scaling=dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0,
                          original_max_position_embeddings=4096, truncate=False),
        quantization_config=dict(quant_method="mxfp4")),
    "qwen3.5-0.8b": dict(QWEN35, hidden_size=1024, intermediate_size=3584, num_hidden_layers=24,
                         num_attention_heads=8, num_key_value_heads=2, linear_num_value_heads=16,
                         tie_word_embeddings=True),
    "qwen3.5-9b": dict(QWEN35, hidden_size=4096, intermediate_size=12288, num_hidden_layers=32,
                       num_attention_heads=16, num_key_value_heads=4, linear_num_value_heads=32,
                       tie_word_embeddings=False),
    "qwen3.5-27b": dict(QWEN35, hidden_size=5120, intermediate_size=17408, num_hidden_layers=64,
                        num_attention_heads=24, num_key_value_heads=4, linear_num_value_heads=48,
                        tie_word_embeddings=False),
}
SHARD = 4 << 30  # bytes of a file, about


def tensors(config, device):
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim", hidden // heads)
    generator = torch.Generator(device=device).manual_seed(0)

    def random(*shape):
        values = torch.randn(*shape, generator=generator, device=device) * 0.02
        return values.to(torch.bfloat16).cpu()

    def ones(size):
        return torch.ones(size, dtype=torch.bfloat16)

    def mxfp4(name, experts, out, inputs):
        # Any four bits are a number; 2^-7 makes their standard deviation about 0.02.
        blocks = torch.randint(256, (experts, out, inputs // 32, 16), generator=generator,
                               device=device, dtype=torch.uint8)
        yield name + "_blocks", blocks.cpu()
        yield name + "_scales", torch.full((experts, out, inputs // 32), 120, dtype=torch.uint8)
        yield name + "_bias", random(experts, out)

    def mlp_of(at):
        kind = config["model_type"]
        if kind == "gpt_oss":
            experts = config["num_local_experts"]
            yield at + "router.weight", random(experts, hidden)
            yield at + "router.bias", random(experts)
            yield from mxfp4(at + "experts.gate_up_proj", experts, 2 * mlp, hidden)
            yield from mxfp4(at + "experts.down_proj", experts, hidden, mlp)
            return
        modules, width = [at], mlp
        if kind == "qwen3_moe":
            yield at + "gate.weight", random(config["num_experts"], hidden)
            modules = [f"{at}experts.{expert}." for expert in range(config["num_experts"])]
            width = config["moe_intermediate_size"]
        for module in modules:
            yield module + "gate_proj.weight", random(width, hidden)
            yield module + "up_proj.weight", random(width, hidden)
            yield module + "down_proj.weight", random(hidden, width)

    def linear_attention(at):
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        value_heads = config["linear_num_value_heads"]
        values = value_heads * config["linear_value_head_dim"]
        kernel = config["linear_conv_kernel_dim"]
        yield at + "in_proj_qkv.weight", random(2 * keys + values, hidden)
        yield at + "in_proj_z.weight", random(values, hidden)
        yield at + "in_proj_b.weight", random(value_heads, hidden)
        yield at + "in_proj_a.weight", random(value_heads, hidden)
        yield at + "conv1d.weight", random(2 * keys + values, 1, kernel)
        yield at + "A_log", random(value_heads)
        yield at + "dt_bias", random(value_heads)
        yield at + "norm.weight", ones(config["linear_value_head_dim"])
        yield at + "out_proj.weight", random(hidden, values)

    hybrid = config["model_type"] == "qwen3_5_text"
    yield "model.embed_tokens.weight", random(config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", ones(hidden)
        yield at + "post_attention_layernorm.weight", ones(hidden)
        if hybrid and (layer + 1) % config["full_attention_interval"] != 0:
            yield from linear_attention(at + "linear_attn.")
            yield from mlp_of(at + "mlp.")
            continue
        for name, count in (("q", (1 + hybrid) * heads), ("k", kv_heads), ("v", kv_heads)):
            yield at + f"self_attn.{name}_proj.weight", random(count * head, hidden)
            if config["model_type"] in ("qwen2", "gpt_oss"):
                yield at + f"self_attn.{name}_proj.bias", random(count * head)
        yield at + "self_attn.o_proj.weight", random(hidden, heads * head)
        if config["model_type"] == "gpt_oss":
            yield at + "self_attn.o_proj.bias", random(hidden)
            yield at + "self_attn.sinks", random(heads)
        if config["model_type"] in ("qwen3_moe", "qwen3_5_text"):
            yield at + "self_attn.q_norm.weight", ones(head)
            yield at + "self_attn.k_norm.weight", ones(head)
        yield from mlp_of(at + "mlp.")
    yield "model.norm.weight", ones(hidden)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", random(config["vocab_size"], hidden)


def write(directory, named):
    """In one file, or in several and an index."""
    shards, weight_map, shard, size = 0, {}, {}, 0

    def save(name):
        save_file(shard, directory / name, metadata={"format": "pt"})

    for name, tensor in named:
        if size > SHARD:
            shards += 1
            save(f"model-{shards:05}.safetensors")
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
        weight_map[name] = f"model-{shards + 1:05}.safetensors"
    if shards == 0:
        return save("model.safetensors")
    save(f"model-{shards + 1:05}.safetensors")
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("directory", type=pathlib.Path)
    arguments = parser.parse_args()
    config = SHAPES[arguments.shape]
    arguments.directory.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    write(arguments.directory, tensors(config, device))
    text = dict(config, hidden_act="silu", torch_dtype="bfloat16", bos_token_id=0, eos_token_id=1)
    (arguments.directory / "config.json").write_text(json.dumps(text, indent=2) + "\n")


if __name__ == "__main__":
    main()
