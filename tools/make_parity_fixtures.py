#!/usr/bin/env python3
"""Makes tests/fixtures/parity: small checkpoints and the logits that transformers gives for them.

Each variant is a Hugging Face directory with random weights, small enough to commit, for one
family and one set of features that topkv's model runner supports. The reference is transformers
itself: the directory is loaded back from disk (so its config.json is what transformers reads, not
what this script meant), weights are upcast to float32, attention is "eager".

    tests/fixtures/parity/<variant>/config.json
                                    model.safetensors (or shards and model.safetensors.index.json)
                                    tokens.json: {"tokens": [...], "greedy": [...]}, and "length"
                                        where the model is loaded for texts of that length
                                    reference/model.safetensors: "logits", float32 [tokens, vocab]

A variant with "of" has no weights of its own: it is another one's checkpoint, over other tokens.
needle-14m has no weights here: its logits (the last 8 positions only) belong to models/needle-14m.

Weights are drawn so that mistakes show: scores q.k/sqrt(d) have a standard deviation of about 2,
norm weights are not 1, biases are not 0. For every variant the script prints how far the logits
move, relative to the largest logit, when one thing is done wrong (no RoPE, a window that is one
token too wide, biases left out, ...) and how far float32 is from float64; a fixture whose mistakes
would move the logits by less than MISTAKE, or whose greedy tokens are near ties, is refused.

Needs tools/requirements.txt. Run from anywhere: python tools/make_parity_fixtures.py [VARIANT...]
"""

import copy
import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "tests/fixtures/parity"
VOCAB = 97
EOS = 2
GREEDY = 16
MASKS_BY_KIND = ("qwen2", "qwen3", "smollm3", "gemma2", "gemma3_text")
MISTAKE = 1e-2  # least effect of a mistake, relative to the largest logit; the test allows 1e-4

BASE = dict(vocab_size=VOCAB, bos_token_id=1, eos_token_id=EOS, hidden_size=48,
            intermediate_size=80, num_hidden_layers=2, max_position_embeddings=256,
            rms_norm_eps=1e-5, tie_word_embeddings=False)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=64)


def theta(value):
    return dict(rope_type="default", rope_theta=value)


# "old": config.json as written before transformers 5 (rope_theta, rope_scaling, torch_dtype).
# "drop": keys that checkpoints of that time leave to their defaults.
# "of": the variant whose checkpoint this is, over tokens of its own.
# "length": the length that the model is loaded for. transformers grows dynamic NTK's theta with the
# longest text that it has seen, so it sees one of that length first.
VARIANTS = {
    "llama2": dict(model_type="llama", tokens=64, dtype=torch.float16, old=True,
                   drop=["num_key_value_heads", "head_dim", "rope_theta", "attention_bias",
                         "mlp_bias"],
                   num_attention_heads=6, num_key_value_heads=6, rope_parameters=theta(10000.0)),
    "llama3": dict(model_type="llama", tokens=96, dtype=torch.bfloat16, old=True,
                   drop=["head_dim"], eos_token_id=[2, 3],
                   num_attention_heads=3, num_key_value_heads=1, rope_parameters=LLAMA3),
    "llama3-head80": dict(model_type="llama", tokens=80, dtype=torch.bfloat16, hidden_size=32,
                          num_attention_heads=2, num_key_value_heads=1, head_dim=80,
                          intermediate_size=48,
                          rope_parameters=LLAMA3 | dict(factor=32.0, rope_theta=10000.0)),
    "llama-linear": dict(model_type="llama", tokens=64, dtype=torch.float32, old=True,
                         type_key=True, hidden_size=32, intermediate_size=40, num_attention_heads=4,
                         num_key_value_heads=2,
                         rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    "llama-tied-bias": dict(model_type="llama", tokens=64, dtype=torch.bfloat16,
                            tie_word_embeddings=True, attention_bias=True, mlp_bias=True,
                            num_attention_heads=4, num_key_value_heads=2, head_dim=24,
                            rope_parameters=theta(100000.0)),
    "mistral-window": dict(model_type="mistral", tokens=80, dtype=torch.bfloat16,
                           sliding_window=24, num_attention_heads=6, num_key_value_heads=2,
                           head_dim=16, rope_parameters=theta(10000.0)),
    # A sliding_window that use_sliding_window=false switches off, as Qwen2.5 checkpoints have it.
    "qwen2": dict(model_type="qwen2", tokens=64, dtype=torch.bfloat16, old=True, shard="60KB",
                  drop=["layer_types"], sliding_window=16, use_sliding_window=False,
                  max_window_layers=1, num_attention_heads=4, num_key_value_heads=2,
                  rms_norm_eps=1e-6, rope_parameters=theta(1000000.0)),
    "qwen2-window": dict(model_type="qwen2", tokens=64, dtype=torch.bfloat16, old=True,
                         drop=["layer_types"], num_hidden_layers=3, sliding_window=20,
                         use_sliding_window=True, max_window_layers=1, hidden_size=32,
                         intermediate_size=48, num_attention_heads=4, num_key_value_heads=1,
                         rms_norm_eps=1e-6, rope_parameters=theta(1000000.0)),
    "qwen3": dict(model_type="qwen3", tokens=64, dtype=torch.bfloat16, tie_word_embeddings=True,
                  hidden_size=40, num_attention_heads=3, num_key_value_heads=1, head_dim=32,
                  rms_norm_eps=1e-6, rope_parameters=theta(1000000.0)),
    # Windowed layers named one by one.
    "qwen3-window": dict(model_type="qwen3", tokens=64, dtype=torch.bfloat16, hidden_size=32,
                         intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=16, sliding_window=16,
                         use_sliding_window=True, max_window_layers=3,
                         layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                         rms_norm_eps=1e-6, rope_parameters=theta(1000000.0)),
    # The head dims that a CUDA device knows, besides 80.
    "llama-bias-head64": dict(model_type="llama", tokens=96, dtype=torch.bfloat16,
                              attention_bias=True, mlp_bias=True, num_attention_heads=6,
                              num_key_value_heads=2, head_dim=64,
                              rope_parameters=theta(100000.0)),
    "qwen2-head96": dict(model_type="qwen2", tokens=80, dtype=torch.bfloat16, hidden_size=96,
                         num_attention_heads=1, num_key_value_heads=1, use_sliding_window=False,
                         rms_norm_eps=1e-6, rope_parameters=theta(1000000.0)),
    "qwen3-head128": dict(model_type="qwen3", tokens=80, dtype=torch.bfloat16, hidden_size=32,
                          tie_word_embeddings=True, num_attention_heads=4, num_key_value_heads=2,
                          head_dim=128, rms_norm_eps=1e-6, rope_parameters=theta(1000000.0)),
    "mistral-window-head256": dict(model_type="mistral", tokens=80, dtype=torch.bfloat16,
                                   hidden_size=32, sliding_window=24, num_attention_heads=2,
                                   num_key_value_heads=1, head_dim=256,
                                   rope_parameters=theta(10000.0)),
    # Scalings of RoPE, over texts that go beyond the original length, and within it.
    "qwen2-yarn": dict(model_type="qwen2", tokens=96, dtype=torch.bfloat16, old=True, type_key=True,
                       drop=["layer_types"], hidden_size=32, intermediate_size=48,
                       num_attention_heads=2, num_key_value_heads=1, use_sliding_window=False,
                       max_position_embeddings=32, rms_norm_eps=1e-6,
                       rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                                            original_max_position_embeddings=32)),
    "llama-yarn-mscale": dict(model_type="llama", tokens=96, dtype=torch.bfloat16, hidden_size=32,
                              intermediate_size=48, num_attention_heads=2, num_key_value_heads=1,
                              head_dim=32,
                              rope_parameters=dict(
                                  rope_type="yarn", rope_theta=1000.0, factor=8.0,
                                  original_max_position_embeddings=32, mscale=1.4,
                                  mscale_all_dim=0.3, beta_fast=6, beta_slow=0.5, truncate=False)),
    "llama-dynamic": dict(model_type="llama", tokens=80, length=96, dtype=torch.bfloat16,
                          hidden_size=32, intermediate_size=48, num_attention_heads=2,
                          num_key_value_heads=1, max_position_embeddings=32,
                          rope_parameters=dict(rope_type="dynamic", rope_theta=100.0, factor=4.0)),
    "llama-dynamic-short": dict(of="llama-dynamic", tokens=16, length=32),
    "llama-longrope": dict(model_type="llama", tokens=80, dtype=torch.bfloat16, hidden_size=32,
                           intermediate_size=48, num_attention_heads=2, num_key_value_heads=1,
                           max_position_embeddings=128,
                           rope_parameters=dict(
                               rope_type="longrope", rope_theta=100.0,
                               original_max_position_embeddings=32,
                               short_factor=[1.0, 1.1, 1.2, 1.4, 1.5, 1.5, 1.7, 2.0],
                               long_factor=[1.0, 1.5, 2.5, 4.0, 5.5, 6.5, 8.0, 9.0])),
    "llama-longrope-short": dict(of="llama-longrope", tokens=16, length=32),
    # As Phi-4-mini: fused projections, part of the head turned, LongRoPE; and as Phi-3-mini.
    "phi3": dict(model_type="phi3", tokens=80, dtype=torch.bfloat16, old=True,
                 hidden_size=64, intermediate_size=48, num_attention_heads=4,
                 num_key_value_heads=2, tie_word_embeddings=True, partial_rotary_factor=0.75,
                 max_position_embeddings=128, original_max_position_embeddings=32, pad_token_id=0,
                 rope_parameters=dict(rope_type="longrope", rope_theta=100.0,
                                      partial_rotary_factor=0.75,
                                      short_factor=[1.0, 1.1, 1.2, 1.4, 1.5, 2.0],
                                      long_factor=[1.0, 2.5, 4.0, 5.5, 8.0, 9.0])),
    "phi3-short": dict(of="phi3", tokens=16, length=32),
    "phi3-window": dict(model_type="phi3", tokens=64, dtype=torch.bfloat16, old=True,
                        hidden_size=48, intermediate_size=40, num_attention_heads=3,
                        num_key_value_heads=3, sliding_window=20, pad_token_id=0,
                        rope_parameters=theta(10000.0) | dict(partial_rotary_factor=1.0)),
    # The head turned in part, in pairs of neighbours.
    "glm": dict(model_type="glm", tokens=64, dtype=torch.bfloat16, hidden_size=32,
                intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                pad_token_id=0, rope_parameters=theta(100.0) | dict(partial_rotary_factor=0.5)),
    # The same in an older file, and norms of what each part of a layer gives.
    "glm4": dict(model_type="glm4", tokens=64, dtype=torch.bfloat16, old=True, hidden_size=32,
                 intermediate_size=48, num_attention_heads=2, num_key_value_heads=1, head_dim=64,
                 pad_token_id=0, rope_parameters=theta(100.0) | dict(partial_rotary_factor=0.5)),
    "olmo2": dict(model_type="olmo2", tokens=64, dtype=torch.bfloat16, hidden_size=32,
                  intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                  attention_bias=True, rope_parameters=theta(500000.0)),
    # Each second layer without RoPE.
    "smollm3": dict(model_type="smollm3", tokens=64, dtype=torch.bfloat16, hidden_size=32,
                    intermediate_size=40, num_hidden_layers=4, num_attention_heads=2,
                    num_key_value_heads=1, head_dim=64, tie_word_embeddings=True, no_rope_layer_interval=2,
                    pad_token_id=0, rope_parameters=theta(2000000.0)),
    # Softcaps small enough to matter with weights like these.
    "gemma2": dict(model_type="gemma2", tokens=64, dtype=torch.bfloat16, hidden_size=32,
                   intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                   tie_word_embeddings=True, sliding_window=16, query_pre_attn_scalar=8,
                   attn_logit_softcapping=3.0, final_logit_softcapping=2.0, pad_token_id=0,
                   rope_parameters=theta(10000.0)),
    # Windowed layers with a theta of their own; the others' RoPE is stretched.
    "gemma3": dict(model_type="gemma3_text", tokens=64, dtype=torch.bfloat16, hidden_size=32,
                   intermediate_size=48, num_hidden_layers=3, num_attention_heads=2,
                   num_key_value_heads=1, head_dim=64, tie_word_embeddings=True, sliding_window=16,
                   layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                   query_pre_attn_scalar=128, pad_token_id=0,
                   rope_parameters=dict(
                       sliding_attention=theta(20.0),
                       full_attention=dict(rope_type="linear", rope_theta=1000.0, factor=4.0))),
    "phi3-head64": dict(model_type="phi3", tokens=80, dtype=torch.bfloat16, hidden_size=128,
                        intermediate_size=40, num_hidden_layers=1, num_attention_heads=2,
                        num_key_value_heads=1, tie_word_embeddings=True,
                        max_position_embeddings=128, original_max_position_embeddings=32,
                        pad_token_id=0,
                        rope_parameters=dict(rope_type="longrope", rope_theta=1000.0,
                                             partial_rotary_factor=0.75,
                                             short_factor=[1 + 0.05 * i for i in range(24)],
                                             long_factor=[1 + 0.4 * i for i in range(24)])),
}


def norm_neutral(model):
    """The weight of a norm that changes nothing."""
    return 0.0 if model.config.model_type.startswith("gemma") else 1.0


def randomise(model, generator):
    gains = {"q_proj": 1.4, "k_proj": 1.4, "qkv_proj": 1.3, "lm_head": 2.0}
    scale = float(getattr(model.get_input_embeddings(), "scalar_embed_scale", 1.0))
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith(".bias"):
            value = 0.4 * noise
        elif "norm" in name:
            value = 1 + 0.3 * noise.clamp(-2, 2)
            if "q_norm" in name or "k_norm" in name:
                value = 1.4 * value
            value = value - 1 + norm_neutral(model)
        elif "embed_tokens" in name:
            value = 0.5 * noise / scale
        else:
            value = gains.get(name.split(".")[-2], 1.0) * noise / weight.shape[1] ** 0.5
        weight.data = value.to(weight.dtype)


def to_old_style(config, type_key):
    """Rewrites config.json as transformers 4 did."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    rope.pop("original_max_position_embeddings" if config["model_type"] == "phi3" else None, None)
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {
        "type" if type_key else "rope_type": kind, **rope}
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.43.0"


def write_checkpoint(folder, spec, seed):
    spec = copy.deepcopy(BASE | spec)
    spec.pop("length", None)
    model_type, dtype = spec.pop("model_type"), spec.pop("dtype")
    tokens, old, type_key = spec.pop("tokens"), spec.pop("old", False), spec.pop("type_key", False)
    drop, shard = spec.pop("drop", []), spec.pop("shard", "1GB")

    config = transformers.AutoConfig.for_model(model_type, **spec)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model.save_pretrained(folder, max_shard_size=shard)
    (folder / "generation_config.json").unlink(missing_ok=True)

    path = folder / "config.json"
    written = json.loads(path.read_text())
    if old:
        to_old_style(written, type_key)
    for key in drop:
        written.pop(key, None)
    path.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    return torch.randint(3, VOCAB, (tokens,), generator=generator).tolist()


def load(folder, dtype=torch.float32):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager").eval()


@torch.no_grad()
def logits_of(model, tokens, **kwargs):
    return model(torch.tensor([tokens]), use_cache=False, **kwargs).logits[0]


@torch.no_grad()
def greedy(model, tokens):
    """The next tokens, and the least lead of a chosen token over the second best."""
    chosen, lead = [], float("inf")
    for _ in range(GREEDY):
        best = logits_of(model, tokens + chosen)[-1].topk(2)
        lead = min(lead, float(best.values[0] - best.values[1]))
        chosen.append(int(best.indices[0]))
    return chosen, lead


def with_rope(model, change):
    """change(frequencies, attention_factor, rope_parameters): what angles are made of instead."""
    rotary = model.model.rotary_emb
    forward = rotary.forward

    def changed(x, position_ids, layer_type=None):
        kind = {} if layer_type is None else {"layer_type": layer_type}
        forward(x, position_ids, **kind)  # settles the frequencies for this length
        prefix = "" if layer_type is None else f"{layer_type}_"
        rope = model.config.rope_parameters
        frequencies, factor = change(getattr(rotary, f"{prefix}inv_freq"),
                                     getattr(rotary, f"{prefix}attention_scaling"),
                                     rope if layer_type is None else rope[layer_type])
        angles = position_ids[..., None].to(frequencies.dtype) * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return (angles.cos() * factor).to(x.dtype), (angles.sin() * factor).to(x.dtype)

    rotary.forward = changed


def plain_frequencies(rope, pairs):
    return rope["rope_theta"] ** -(torch.arange(0, 2 * pairs, 2, dtype=torch.float64) / (2 * pairs))


def in_float64(folder):
    """The model with every operation in float64, RoPE's angles too."""
    model = load(folder, torch.float64)

    def change(frequencies, factor, rope):
        if rope["rope_type"] == "default":
            return plain_frequencies(rope, frequencies.numel()), factor
        return frequencies.double(), factor

    with_rope(model, change)
    return model


def without_rope(model):
    with_rope(model, lambda frequencies, factor, rope: (torch.zeros_like(frequencies), 1.0))


def with_plain_rope(model):
    with_rope(model, lambda frequencies, factor, rope:
              (plain_frequencies(rope, frequencies.numel()).float(), 1.0))


def without_attention_factor(model):
    with_rope(model, lambda frequencies, factor, rope: (frequencies, 1.0))


def with_other_pair_factors(model):
    """LongRoPE's short factors for the long ones and the other way round."""
    def change(frequencies, factor, rope):
        plain = plain_frequencies(rope, frequencies.numel())
        short, long = (plain / torch.tensor(rope[f"{kind}_factor"]) for kind in ("short", "long"))
        nearer_short = (frequencies - short).abs().max() < (frequencies - long).abs().max()
        return (long if nearer_short else short).float(), factor

    with_rope(model, change)


def with_value(suffixes, value):
    def change(model):
        for name, weight in model.named_parameters():
            if any(name.endswith(suffix) for suffix in suffixes):
                weight.data.fill_(value)
    return change


def with_wider_window(model):
    model.config.sliding_window += 1


def with_heads_interleaved(model):
    """Query head h reads KV head h % kv_heads instead of h / group."""
    heads, kv = model.config.num_attention_heads, model.config.num_key_value_heads
    order = torch.arange(heads).view(kv, heads // kv).T.reshape(-1)
    for layer in model.model.layers:
        o = layer.self_attn.o_proj
        q = getattr(layer.self_attn, "q_proj", None) or layer.self_attn.qkv_proj
        rows = o.weight.shape[1]  # of queries, the first of a fused matrix
        weight = q.weight.data[:rows]
        weight.copy_(weight.view(heads, -1, weight.shape[1])[order].flatten(0, 1))
        if q.bias is not None:
            q.bias.data = q.bias.data.view(heads, -1)[order].flatten()
        o.weight.data = o.weight.data.view(o.weight.shape[0], heads, -1)[:, order].flatten(1)


def mistakes(model):
    """Name and deed of everything that can go wrong with this model."""
    config = model.config
    parameters = [name for name, _ in model.named_parameters()]
    yield "no rope", without_rope
    neutral = norm_neutral(model)
    yield "norm weights 1", with_value(["layernorm.weight", "model.norm.weight"], neutral)
    kind = config.rope_parameters.get("full_attention", config.rope_parameters).get("rope_type")
    if kind != "default":
        yield "no rope scaling", with_plain_rope
    if kind in ("yarn", "longrope"):
        yield "no attention factor", without_attention_factor
    if kind == "longrope":
        yield "other pair factors", with_other_pair_factors
    if any(window_layers(config)):
        yield "window + 1", with_wider_window
    for part in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        # A bias on k shifts all scores of a query alike unless RoPE turns it: its effect is small.
        if any(name.endswith(part + ".bias") for name in parameters):
            yield f"no {part} bias", with_value([part + ".bias"], 0.0)
    for norm in ("q_norm", "k_norm"):
        if any(f".{norm}." in name for name in parameters):
            yield f"{norm} weights 1", with_value([norm + ".weight"], neutral)
    yield from mistakes_of_families(model)
    if config.num_attention_heads != config.num_key_value_heads > 1:
        yield "groups interleaved", with_heads_interleaved


def with_parts(name, change):
    """change(part) of every layer's module of this name."""
    def deed(model):
        for layer in model.model.layers:
            change(layer.get_submodule(name))
    return deed


def without_output_norms(model):
    for layer in model.model.layers:
        for norm in output_norms(model):
            setattr(layer, norm, torch.nn.Identity())


def output_norms(model):
    """Names of the norms of what attention and MLP give."""
    names = {"glm4": ("post_self_attn_layernorm", "post_mlp_layernorm"),
             "olmo2": ("post_attention_layernorm", "post_feedforward_layernorm")}
    gemma = ("post_attention_layernorm", "post_feedforward_layernorm")
    kind = model.config.model_type
    return gemma if kind.startswith("gemma") else names.get(kind, ())


def with_rotary_width(model):
    """Pairs (i, i + half) for neighbours, or neighbours for halves: the other way round."""
    def change(linear):
        heads = linear.weight.shape[0] // model.config.head_dim
        turned = 2 * model.model.rotary_emb.inv_freq.numel()
        order = torch.arange(model.config.head_dim)
        order[:turned] = torch.arange(turned).view(2, -1).T.reshape(-1)
        for tensor in (linear.weight, linear.bias):
            if tensor is not None:
                shaped = tensor.data.view(heads, model.config.head_dim, -1)
                tensor.data = shaped[:, order].reshape(tensor.shape)
    for name in ("q_proj", "k_proj"):
        with_parts(f"self_attn.{name}", change)(model)


def with_one_theta(model):
    with_rope(model, lambda frequencies, factor, rope:
              (model.model.rotary_emb.full_attention_inv_freq, factor))


def mistakes_of_families(model):
    config, attention = model.config, model.model.layers[0].self_attn
    if output_norms(model):
        yield "no output norms", without_output_norms
    if config.model_type.startswith("glm"):
        yield "halves turned", with_rotary_width
    if "no_rope_layers" in config:
        yield "rope everywhere", with_parts("self_attn", lambda x: setattr(x, "use_rope", True))
    if hasattr(model.get_input_embeddings(), "embed_scale"):
        yield "embedding as it is", lambda x: setattr(x.model.embed_tokens, "embed_scale",
                                                      torch.tensor(1.0))
        yield "silu", with_parts("mlp", lambda x: setattr(x, "act_fn", torch.nn.SiLU()))
        yield "scale of heads", with_parts("self_attn",
                                           lambda x: setattr(x, "scaling", x.head_dim ** -0.5))
    if "full_attention" in config.rope_parameters:
        yield "one theta", with_one_theta
    if getattr(config, "final_logit_softcapping", None):
        yield "logits not capped", lambda x: setattr(x.config, "final_logit_softcapping", None)
    if getattr(attention, "attn_logit_softcapping", None):
        yield "scores not capped", with_parts(
            "self_attn", lambda x: setattr(x, "attn_logit_softcapping", None))


def window_layers(config):
    if config.model_type in ("mistral", "phi3"):
        return [config.sliding_window is not None] * config.num_hidden_layers
    return [kind == "sliding_attention" for kind in getattr(config, "layer_types", None) or []]


def write_reference(folder, tokens, logits, **more):
    (folder / "reference").mkdir(parents=True, exist_ok=True)
    save_file({"logits": logits.contiguous()}, folder / "reference/model.safetensors")
    (folder / "tokens.json").write_text(json.dumps({"tokens": tokens, **more}) + "\n")


def load_for(folder, length, dtype=torch.float32):
    """The model, having seen a text of that length, which is what dynamic NTK goes by."""
    model = load(folder, dtype) if dtype != torch.float64 else in_float64(folder)
    if length is not None:
        logits_of(model, [3] * length)
    return model


def make_variant(name, spec, seed):
    """Writes one variant. Returns why it cannot be used, or None."""
    folder = OUT / name
    if "of" in spec:
        checkpoint = OUT / spec["of"]
        tokens = torch.randint(3, VOCAB, (spec["tokens"],),
                               generator=torch.Generator().manual_seed(seed)).tolist()
    else:
        checkpoint = folder
        tokens = write_checkpoint(folder, spec, seed)
    length = spec.get("length")
    model = load_for(checkpoint, length)
    logits = logits_of(model, tokens)
    largest = float(logits.abs().max())
    chosen, lead = greedy(model, tokens)
    double = logits_of(load_for(checkpoint, length, torch.float64), tokens)

    report = {"float64": float((double - logits).abs().max()) / largest}
    for what, deed in mistakes(model):
        if what == "no rope scaling" and name == "llama-dynamic-short":
            continue  # within the original length there is none
        wrong = load_for(checkpoint, length)
        deed(wrong)
        report[what] = float((logits_of(wrong, tokens) - logits).abs().max()) / largest
    full = torch.zeros(1, 1, len(tokens), len(tokens))
    kinds = {"full_attention": full, "sliding_attention": full}
    mask = kinds if model.config.model_type in MASKS_BY_KIND else full
    report["no mask"] = float(
        (logits_of(model, tokens, attention_mask=mask) - logits).abs().max()) / largest

    print(f"{name}: {sum(f.stat().st_size for f in folder.rglob('*') if f.is_file())} bytes, "
          f"largest logit {largest:.3g}, least lead {lead:.3g}, seed {seed}")
    print("   " + ", ".join(f"{what} {size:.2g}" for what, size in report.items()))
    weakest = min((size, what) for what, size in report.items() if what != "float64")
    if weakest[0] < MISTAKE:
        return f"'{weakest[1]}' moves the logits by {weakest[0]:.2g} only"
    if lead < MISTAKE * largest:
        return f"two tokens are within {lead:.2g} of each other"
    if set(chosen) & {2, 3}:
        return "an end token was generated"
    more = {} if length is None else {"length": length}
    if "of" in spec:
        more["checkpoint"] = spec["of"]
    write_reference(folder, tokens, logits, greedy=chosen, **more)
    return None


NEEDLE_TEXT = """Some special magic numbers are hidden within the following text. Make sure to \
memorize it. I will quiz you about the numbers afterwards.
The lighthouse keeper climbs 117 steps every evening. From the lamp room she counts the boats that \
come home, and writes their names in a green ledger. One of the special magic numbers for \
copper-lantern is: 4807153. On Tuesdays the mail boat brings flour, oil and three newspapers, all \
of them a week old. Her brother mends nets in the shed below; he says that a knot is only a \
promise made of rope. One of the special magic numbers for quiet-harbor is: 9260348. When fog \
comes in from the north, they ring the bell by hand: two strokes, a pause, two strokes. Nobody has \
run aground here since the winter of the great storm, which the old people still call the long \
night. One of the special magic numbers for seven-herons is: 1539726. In spring the terns return \
and nest between the stones, so the path to the pier is closed with a piece of string.
What is the special magic number for quiet-harbor mentioned in the provided text? The special \
magic number for quiet-harbor mentioned in the provided text is"""
NEEDLE_ROWS = 8


def make_needle():
    source = ROOT / "models/needle-14m"
    tokens = Tokenizer.from_file(str(source / "tokenizer.json")).encode(NEEDLE_TEXT).ids
    model = load(source)
    logits = logits_of(model, tokens)[-NEEDLE_ROWS:]
    chosen, lead = greedy(model, tokens)
    double = logits_of(in_float64(source), tokens)[-NEEDLE_ROWS:]
    largest = float(logits.abs().max())
    write_reference(OUT / "needle-14m", tokens, logits, greedy=chosen, text=NEEDLE_TEXT)
    print(f"needle-14m: {len(tokens)} tokens, largest logit {largest:.3g}, least lead {lead:.3g}, "
          f"float64 {float((double - logits).abs().max()) / largest:.2g}, continues "
          f"{Tokenizer.from_file(str(source / 'tokenizer.json')).decode(chosen)!r}")


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or [*VARIANTS, "needle-14m"]
    for number, (name, spec) in enumerate(VARIANTS.items()):
        if name not in wanted:
            continue
        for attempt in range(50):
            refusal = make_variant(name, spec, seed=1000 * number + attempt)
            if refusal is None:
                break
            print(f"   refused: {refusal}; next seed")
        else:
            raise SystemExit(f"{name}: no seed gave a usable fixture")
    if "needle-14m" in wanted:
        make_needle()
    size = sum(f.stat().st_size for f in OUT.rglob("*") if f.is_file())
    print(f"{size} bytes in {OUT}")


if __name__ == "__main__":
    main()
