#!/usr/bin/env python3
"""Makes tests/fixtures/draft_layers: draft layers (multi-token prediction) for checkpoints of
tests/fixtures/parity, and the logits that they are to give.

transformers has no such layers. The reference is this script, in float64: DeepSeek-V3 (arXiv
2412.19437, section 2.2, equations 21 to 23), with the layers of each family. Which states it reads,
and in which order, is said in src/model/draft_layer.h.

    tests/fixtures/draft_layers/<variant>/model.safetensors: the layer's tensors, bf16, random
                                          tokens.json: {"tokens": [...], "chain": [...]}
                                          reference/model.safetensors, float32:
        "states" [tokens, hidden]: random; number i stands before token i
        "logits" [tokens, vocab]: behind each token
        "chained" [chain, vocab]: behind tokens that are read after these, each with the layer's own
            state behind the token before

For every variant the script prints how far the logits move, relative to the largest logit, when one
thing is done wrong. A fixture whose mistakes would move them by less than MISTAKE is refused.

Needs numpy. Run from anywhere: python tools/make_draft_layer_fixtures.py
"""

import json
import math
import shutil
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
PARITY = ROOT / "tests/fixtures/parity"
OUT = ROOT / "tests/fixtures/draft_layers"
TOKENS, CHAIN = 20, 4
MISTAKE = 1e-2
VARIANTS = {"qwen3-5": 1, "qwen3-5-moe": 2, "qwen3-next": 3, "deepseek-v3": 4, "glm4-moe-lite": 5}


def bf16(values):
    """The bits of values rounded to bf16, to nearest even."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widen(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def write_tensors(path, tensors):
    """tensors: name to (dtype, array of the file's elements)."""
    header, blob = {}, b""
    for name, (dtype, values) in sorted(tensors.items()):
        data = np.ascontiguousarray(values).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape),
                        "data_offsets": [len(blob), len(blob) + len(data)]}
        blob += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + blob)


def read_bf16(path, name):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    one = json.loads(data[8:8 + size])[name]
    assert one["dtype"] == "BF16"
    begin, end = one["data_offsets"]
    bits = np.frombuffer(data[8 + size + begin:8 + size + end], np.uint16)
    return widen(bits).reshape(one["shape"])


def silu(x):
    return x / (1 + np.exp(-x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


class Layer:
    """A draft layer: its tensors by name, and how it reads one token after the other."""

    def __init__(self, config, embedding, head, rng):
        self.config, self.embedding, self.head, self.rng = config, embedding, head, rng
        self.hidden, self.eps = config["hidden_size"], config["rms_norm_eps"]
        self.heads = config["num_attention_heads"]
        self.weights = {}
        self.wrong = None
        self.latent = "kv_lora_rank" in config
        self.at = f"model.layers.{config['num_hidden_layers']}." if self.latent else "mtp."
        self.layer = self.at if self.latent else "mtp.layers.0."
        self.offset = 0 if self.latent else 1  # weights of norms are stored less this
        self.names = (("eh_proj", "enorm", "hnorm", "shared_head.norm") if self.latent else
                      ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"))
        self.draw()

    # Weights.

    def matrix(self, name, out, inputs, gain=1.0):
        self.weights[name] = bf16(gain * self.rng.standard_normal((out, inputs)) / inputs ** 0.5)

    def vector(self, name, size, mean=0.0, spread=0.3):
        noise = np.clip(self.rng.standard_normal(size), -2, 2)
        self.weights[name] = bf16(mean + spread * noise)

    def norm_weights(self, name, size, gain=1.0):
        self.vector(name, size, gain - self.offset)

    def mlp_weights(self, at, width):
        for name in ("gate_proj", "up_proj"):
            self.matrix(f"{at}{name}.weight", width, self.hidden)
        self.matrix(f"{at}down_proj.weight", self.hidden, width)

    def draw(self):
        c, at, layer = self.config, self.at, self.layer
        projection, embedding_norm, state_norm, final_norm = self.names
        self.matrix(f"{at}{projection}.weight", self.hidden, 2 * self.hidden)
        for name in (f"{at}{embedding_norm}", f"{at}{state_norm}", f"{at}{final_norm}",
                     f"{layer}input_layernorm", f"{layer}post_attention_layernorm"):
            self.norm_weights(f"{name}.weight", self.hidden)
        attention = f"{layer}self_attn."
        (self.draw_latent if self.latent else self.draw_gated)(attention)
        experts = c.get("num_experts", c.get("n_routed_experts", 0))
        if experts == 0:
            return self.mlp_weights(f"{layer}mlp.", c["intermediate_size"])
        self.matrix(f"{layer}mlp.gate.weight", experts, self.hidden, 3.0)
        for e in range(experts):
            self.mlp_weights(f"{layer}mlp.experts.{e}.", c["moe_intermediate_size"])
        if self.latent:
            self.vector(f"{layer}mlp.gate.e_score_correction_bias", experts)
            self.mlp_weights(f"{layer}mlp.shared_experts.",
                             c["n_shared_experts"] * c["moe_intermediate_size"])
        else:
            self.mlp_weights(f"{layer}mlp.shared_expert.", c["shared_expert_intermediate_size"])
            self.matrix(f"{layer}mlp.shared_expert_gate.weight", 1, self.hidden)

    def draw_gated(self, at):
        c, dim = self.config, self.config["head_dim"]
        kv = c["num_key_value_heads"] * dim
        self.matrix(f"{at}q_proj.weight", self.heads * 2 * dim, self.hidden)
        self.matrix(f"{at}k_proj.weight", kv, self.hidden)
        self.matrix(f"{at}v_proj.weight", kv, self.hidden)
        self.matrix(f"{at}o_proj.weight", self.hidden, self.heads * dim)
        self.norm_weights(f"{at}q_norm.weight", dim, 1.4)
        self.norm_weights(f"{at}k_norm.weight", dim, 1.4)

    def draw_latent(self, at):
        c = self.config
        row = c["kv_lora_rank"] + c["qk_rope_head_dim"]
        query = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
        self.matrix(f"{at}q_a_proj.weight", c["q_lora_rank"], self.hidden)
        self.norm_weights(f"{at}q_a_layernorm.weight", c["q_lora_rank"])
        self.matrix(f"{at}q_b_proj.weight", self.heads * query, c["q_lora_rank"], 1.4)
        self.matrix(f"{at}kv_a_proj_with_mqa.weight", row, self.hidden, 1.4)
        self.norm_weights(f"{at}kv_a_layernorm.weight", c["kv_lora_rank"])
        self.matrix(f"{at}kv_b_proj.weight",
                    self.heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"])
        self.matrix(f"{at}o_proj.weight", self.hidden, self.heads * c["v_head_dim"])
        if c["attention_bias"]:
            self.vector(f"{at}q_a_proj.bias", c["q_lora_rank"])
            self.vector(f"{at}kv_a_proj_with_mqa.bias", row)
            self.vector(f"{at}o_proj.bias", self.hidden)

    # The network, a token at a time.

    def w(self, name):
        return widen(self.weights[name])

    def linear(self, name, x):
        bias = f"{name}.bias"
        return self.w(f"{name}.weight") @ x + (self.w(bias) if bias in self.weights else 0)

    def norm(self, name, x):
        weight = self.w(f"{name}.weight") + (0 if self.wrong == "offset" else self.offset)
        return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps)

    def frequencies(self, dim):
        """Angles of a position, and the factor on cos and sin."""
        rope = self.config.get("rope_parameters") or self.config["rope_scaling"]
        theta = rope.get("rope_theta", self.config.get("rope_theta"))
        plain = theta ** (-np.arange(0, dim, 2) / dim)
        if rope["rope_type"] == "default":
            return plain, 1.0
        assert rope["rope_type"] == "yarn"  # Peng et al. 2023, section 3.2 and 3.4
        original = rope["original_max_position_embeddings"]
        turned = [dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
                  for turns in (rope["beta_fast"], rope["beta_slow"])]
        low, high = max(math.floor(turned[0]), 0), min(math.ceil(turned[1]), dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0, 1)
        return (plain / rope["factor"] * ramp + plain * (1 - ramp),
                self.mscale("mscale") / self.mscale("mscale_all_dim"))

    def mscale(self, key):
        rope = self.config.get("rope_scaling") or {}
        return 0.1 * rope[key] * math.log(rope["factor"]) + 1 if key in rope else 1.0

    def rotate(self, x, position, interleaved):
        if self.wrong == "rope":
            return x
        dim = x.shape[-1]
        angles, factor = self.frequencies(dim)
        cos, sin = factor * np.cos(position * angles), factor * np.sin(position * angles)
        pairs = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :dim // 2], x[..., dim // 2:])
        a, b = pairs[0] * cos - pairs[1] * sin, pairs[1] * cos + pairs[0] * sin
        return np.stack([a, b], -1).reshape(x.shape) if interleaved else np.concatenate([a, b], -1)

    def attend(self, queries, scale):
        """queries: [heads, dim]; over self.keys and self.values, [tokens][kv heads, dim]."""
        keys, values = np.stack(self.keys), np.stack(self.values)
        group = self.heads // keys.shape[1]
        return np.stack([
            softmax(scale * (keys[:, h // group] @ queries[h])) @ values[:, h // group]
            for h in range(self.heads)])

    def gated_attention(self, at, x):
        c, dim, position = self.config, self.config["head_dim"], len(self.keys)
        rotary = int(dim * c["rope_parameters"]["partial_rotary_factor"])

        def turned(name, x):
            x = self.norm(name, x)
            return np.concatenate([self.rotate(x[:, :rotary], position, False), x[:, rotary:]], -1)

        both = self.linear(f"{at}q_proj", x).reshape(self.heads, 2 * dim)
        self.keys.append(turned(f"{at}k_norm", self.linear(f"{at}k_proj", x).reshape(-1, dim)))
        self.values.append(self.linear(f"{at}v_proj", x).reshape(-1, dim))
        attended = self.attend(turned(f"{at}q_norm", both[:, :dim]), dim ** -0.5)
        return self.linear(f"{at}o_proj", (attended * sigmoid(both[:, dim:])).reshape(-1))

    def latent_attention(self, at, x):
        c, position = self.config, len(self.keys)
        nope, rope, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
        q = self.linear(f"{at}q_b_proj", self.norm(f"{at}q_a_layernorm",
                                                   self.linear(f"{at}q_a_proj", x)))
        q = q.reshape(self.heads, nope + rope)
        row = self.linear(f"{at}kv_a_proj_with_mqa", x)
        latent = self.norm(f"{at}kv_a_layernorm", row[:rank])
        kv = self.linear(f"{at}kv_b_proj", latent).reshape(self.heads, nope + c["v_head_dim"])
        key = np.tile(self.rotate(row[rank:], position, True), (self.heads, 1))
        self.keys.append(np.concatenate([kv[:, :nope], key], -1))
        self.values.append(kv[:, nope:])
        queries = np.concatenate([q[:, :nope], self.rotate(q[:, nope:], position, True)], -1)
        scale = (nope + rope) ** -0.5 * self.mscale("mscale_all_dim") ** 2
        return self.linear(f"{at}o_proj", self.attend(queries, scale).reshape(-1))

    def mlp(self, at, x):
        return self.linear(f"{at}down_proj", silu(self.linear(f"{at}gate_proj", x)) *
                           self.linear(f"{at}up_proj", x))

    def choose(self, at, x):
        """Numbers of experts, and their weights."""
        c, scores = self.config, self.linear(f"{at}gate", x)
        count = c["num_experts_per_tok"]
        if not self.latent:  # the weights add up to 1, as norm_topk_prob of Qwen3-Next says
            shares = softmax(scores)
            chosen = np.argsort(-shares)[:count]
            return chosen, shares[chosen] / shares[chosen].sum()
        scores = sigmoid(scores)
        choice = (scores + self.w(f"{at}gate.e_score_correction_bias")).reshape(c["n_group"], -1)
        groups = np.argsort(-np.sort(choice, -1)[:, -2:].sum(-1))[:c["topk_group"]]
        mask = np.zeros_like(choice)
        mask[groups] = 1
        chosen = np.argsort(-(choice * mask).reshape(-1))[:count]
        return chosen, scores[chosen] / scores[chosen].sum() * c["routed_scaling_factor"]

    def experts(self, at, x):
        chosen, shares = self.choose(at, x)
        y = sum(share * self.mlp(f"{at}experts.{e}.", x) for e, share in zip(chosen, shares))
        if self.latent:
            return y + self.mlp(f"{at}shared_experts.", x)
        return y + (sigmoid(self.linear(f"{at}shared_expert_gate", x)) *
                    self.mlp(f"{at}shared_expert.", x))

    def read(self, token, state):
        """Returns the state behind the token, and logits."""
        projection, embedding_norm, state_norm, final_norm = self.names
        parts = [self.norm(self.at + embedding_norm, self.embedding[token]),
                 state if self.wrong == "state" else self.norm(self.at + state_norm, state)]
        if self.wrong == "order":
            parts.reverse()
        x = self.linear(self.at + projection, np.concatenate(parts))
        attention = self.latent_attention if self.latent else self.gated_attention
        x = x + attention(f"{self.layer}self_attn.", self.norm(f"{self.layer}input_layernorm", x))
        y = self.norm(f"{self.layer}post_attention_layernorm", x)
        mlp = self.mlp if f"{self.layer}mlp.gate.weight" not in self.weights else self.experts
        x = x + mlp(f"{self.layer}mlp.", y)
        last = self.norm(self.at + final_norm, x)
        return x if self.wrong == "chain" else last, self.head @ last

    def run(self, tokens, states, chain, wrong=None):
        """Returns logits of all tokens of both."""
        self.wrong, self.keys, self.values, logits = wrong, [], [], []
        for i, token in enumerate(tokens + chain):
            state, of_token = self.read(token, states[i] if i < len(tokens) else state)
            logits.append(of_token)
        return np.stack(logits)


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    for variant, seed in VARIANTS.items():
        folder = PARITY / variant
        config = json.loads((folder / "config.json").read_text())
        rng = np.random.default_rng(seed)
        head, embedding = (read_bf16(folder / "model.safetensors", name)
                           for name in ("lm_head.weight", "model.embed_tokens.weight"))
        layer = Layer(config, embedding, head, rng)
        tokens, chain = (rng.integers(3, config["vocab_size"], n).tolist() for n in (TOKENS, CHAIN))
        scale = 0.5 + 2 * rng.random(config["hidden_size"])  # as behind a norm with weights
        states = np.float32(scale * rng.standard_normal((TOKENS, config["hidden_size"])))
        logits = layer.run(tokens, states.astype(np.float64), chain)
        for wrong in ("order", "state", "chain", "rope") + (() if layer.latent else ("offset",)):
            moved = np.abs(layer.run(tokens, states.astype(np.float64), chain, wrong) - logits).max()
            print(f"{variant:14} {wrong:7} {moved / np.abs(logits).max():.2g}")
            assert moved > MISTAKE * np.abs(logits).max(), (variant, wrong)
        write_tensors(OUT / variant / "model.safetensors",
                      {name: ("BF16", bits) for name, bits in layer.weights.items()})
        (OUT / variant / "tokens.json").write_text(
            json.dumps({"tokens": tokens, "chain": chain}) + "\n")
        write_tensors(OUT / variant / "reference/model.safetensors", {
            "states": ("F32", states),
            "logits": ("F32", np.float32(logits[:TOKENS])),
            "chained": ("F32", np.float32(logits[TOKENS:]))})


if __name__ == "__main__":
    main()
