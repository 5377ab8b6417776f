#!/usr/bin/env python3
"""Makes a checkpoint with random weights, in bf16, in the shape of a published model: for timing
networks whose weights are not at hand. There is no tokenizer in it.

    python make_random_checkpoint.py qwen2.5-3b DIR
"""

import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file

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
}


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

    yield "model.embed_tokens.weight", random(config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", ones(hidden)
        yield at + "post_attention_layernorm.weight", ones(hidden)
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            yield at + f"self_attn.{name}_proj.weight", random(count * head, hidden)
            if config["model_type"] == "qwen2":
                yield at + f"self_attn.{name}_proj.bias", random(count * head)
        yield at + "self_attn.o_proj.weight", random(hidden, heads * head)
        yield at + "mlp.gate_proj.weight", random(mlp, hidden)
        yield at + "mlp.up_proj.weight", random(mlp, hidden)
        yield at + "mlp.down_proj.weight", random(hidden, mlp)
    yield "model.norm.weight", ones(hidden)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", random(config["vocab_size"], hidden)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("directory", type=pathlib.Path)
    arguments = parser.parse_args()
    config = SHAPES[arguments.shape]
    arguments.directory.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    save_file(dict(tensors(config, device)), arguments.directory / "model.safetensors",
              metadata={"format": "pt"})
    text = dict(config, hidden_act="silu", torch_dtype="bfloat16", bos_token_id=0, eos_token_id=1)
    (arguments.directory / "config.json").write_text(json.dumps(text, indent=2) + "\n")


if __name__ == "__main__":
    main()
