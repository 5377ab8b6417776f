#!/usr/bin/env python3
"""Copies a Llama checkpoint as a Qwen2 checkpoint whose keys have biases.

Qwen2.5's K projections have biases many times as large as the rest of a key. This gives a model such
biases in the slowest pairs of RoPE, where they add nearly the same to all scores of a query, so that
the model answers as before. Needs nothing but the standard library.

    python3 tools/bias_keys.py models/needle-14m /tmp/biased --norm 900
    topkv needle -m /tmp/biased -c 16K --depths 5 --kv-dtype q4
"""

import argparse
import json
import pathlib
import random
import shutil
import struct


def bf16(values):
    """As bytes; values that bf16 holds stay as they are."""
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def biases(heads, dim, pairs, norm, rng):
    """Of one layer: in the last `pairs` pairs of each head's halves, of this norm each head."""
    values = [0.0] * (heads * dim)
    for head in range(heads):
        places = [half * dim // 2 + pair for pair in range(dim // 2 - pairs, dim // 2) for half in (0, 1)]
        drawn = [rng.choice((-1, 1)) * rng.uniform(0.5, 1.5) for _ in places]
        factor = norm / sum(x * x for x in drawn) ** 0.5
        for place, x in zip(places, drawn):
            values[head * dim + place] = x * factor
    return values


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path, help="directory with config.json and model.safetensors")
    parser.add_argument("out", type=pathlib.Path, help="directory to write")
    parser.add_argument("--norm", type=float, default=900, help="of each head's bias [900]")
    parser.add_argument("--pairs", type=int, default=4, help="slowest pairs of RoPE that have it [4]")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for path in args.model.iterdir():
        if path.is_file() and path.name not in ("config.json", "model.safetensors"):
            shutil.copy(path, args.out)
    config = json.loads((args.model / "config.json").read_text())
    if config["model_type"] != "llama":
        parser.error(f"{args.model} is a {config['model_type']}; expected a llama")
    config |= {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    for key in ("attention_bias", "mlp_bias", "head_dim", "pretraining_tp"):
        config.pop(key, None)
    (args.out / "config.json").write_text(json.dumps(config, indent=1))

    data = (args.model / "model.safetensors").read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    tensors = data[8 + size :]
    heads = config["num_key_value_heads"]
    dim = config["hidden_size"] // config["num_attention_heads"]
    rng = random.Random(42)
    for layer in range(config["num_hidden_layers"]):
        added = {
            "q": [0.0] * (config["num_attention_heads"] * dim),
            "k": biases(heads, dim, args.pairs, args.norm, rng),
            "v": [0.0] * (heads * dim),
        }
        for name, values in added.items():
            content = bf16(values)
            header[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = {
                "dtype": "BF16",
                "shape": [len(values)],
                "data_offsets": [len(tensors), len(tensors) + len(content)],
            }
            tensors += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (args.out / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + tensors)


if __name__ == "__main__":
    main()
