#!/usr/bin/env python3
"""Tries every causal language model of the installed transformers with topkv.hf, tiny and random.

For each model type of transformers' causal LM mapping: makes a config of tiny sizes, a model of
random weights in float32, and compares the logits of TopkCache (k above the text) with those of
DynamicCache, the text given in parts, and again in a session. Prints one line per model type:

    equal      taken, and the logits agree
    differs    taken, and they do not: a defect of topkv.hf
    refused    topkv.Unsupported, with its reason; "at the first call" if TopkCache() took it
    error      another exception with TopkCache only: a refusal that nobody wrote
    untried    transformers itself does not run this tiny config

Returns 1 if any model differs. A few minutes; `--only llama,gemma2` tries some, `--trust` gives
TopkCache(trust=True), `--unchecked` leaves the look at the model out, to see what it is needed for.
`--table` prints, after that, the table of docs/reference/transformers.md: the model types that are
refused, by reason.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import inspect
import re
import resource
import signal
import sys
import warnings

import torch
import transformers
from transformers.models.auto import modeling_auto

import topkv
import topkv.hf

# Sizes by the names that configs use for them.
SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "n_embd": 64,
    "d_model": 64,
    "intermediate_size": 96,
    "intermediate_dim": 96,
    "ffn_dim": 96,
    "n_inner": 96,
    "num_hidden_layers": 4,
    "n_layer": 4,
    "n_layers": 4,
    "num_layers": 4,
    "decoder_layers": 4,
    "encoder_layers": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "encoder_ffn_dim": 96,
    "num_key_value_heads": 2,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "global_head_dim": 16,
    "num_global_key_value_heads": 2,
    "head_dim": 16,
    "swa_head_dim": 16,
    "v_head_dim": 16,
    "swa_v_head_dim": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "qk_head_dim": 16,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "index_head_dim": 16,
    "index_n_heads": 16,  # with few, ReLU gives many tokens the score 0, and topk takes any of them
    "index_topk": 8,
    "rotary_dim": 8,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "n_ctx": 512,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "top_k_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "expert_ffn_hidden_size": 32,
    "ffn_hidden_size": 96,
    "shared_expert_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "moe_layer_start_index": 1,
    "mamba_d_state": 16,
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "n_mamba_heads": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "ssm_state_size": 16,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 97,
    "audio_vocab_size": 97,
    "sliding_window": 24,
    "attention_chunk_size": 24,
    "lru_width": 64,
    "attention_window_size": 24,
    "embedding_size": 64,
    "codebook_size": 97,
    "num_codebooks": 2,
}
RANDOMNESS = ("initializer_range", "init_std", "initializer_factor")
HYBRID = ["sliding_attention", "full_attention"] * 2
MAMBA = ["linear_attention", "full_attention"] * 2
GEMMA4 = {
    "layer_types": HYBRID,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 0,
    "global_head_dim": 32,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
}
# What a model needs beyond sizes.
SPECIAL = {
    "bamba": {"attn_layer_indices": [1, 3], "layer_types": None},
    "camembert": {"pad_token_id": 0},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
        "max_seq_len": 512,
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": GEMMA4,
    "gemma3n_text": {"num_kv_shared_layers": 0, "layer_types": HYBRID, "num_hidden_layers": 4},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": MAMBA},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "longcat_flash": {"head_dim": 8},  # of RoPE
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "nemotron_h": {
        "layer_types": ["linear_attention", "moe", "full_attention", "mlp"],
        "n_groups": 2,
        "n_group": 1,
    },
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
        "index_n_heads": 2,
        "index_block_size": 4,
        "index_topk_blocks": 4,
    },
    "qwen4_exp_text": {
        "layer_types": None,
        "full_attention_interval": 2,
        "hc_count": 2,
        "hc_lowrank": 8,
        "indexer_n_heads": 16,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "zamba2": {
        "layer_types": None,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "num_mem_blocks": 2,
        "num_key_value_heads": 4,
        "head_dim": None,
        "mamba_ngroups": 1,
        "n_mamba_heads": 4,
        "adapter_rank": 8,
    },
    "lfm2_moe": {"layer_types": ["full_attention", "conv"] * 2},
    "cohere_compass_text": {
        "layer_types": HYBRID,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in HYBRID[:2]
        },
    },
    "reformer": {"axial_pos_embds_dim": (16, 48), "axial_pos_shape": (8, 64)},
    "zaya": {"num_experts_per_tok": 1},
}
#: Reasons of refusals in the table, by a part of the message. The first that fits counts.
REASONS = {
    r"\(MLA,": "keys and values are one latent (MLA)",
    "indexer|layers of type .*(indexed|sparse)": "an indexer of another family chooses the keys",
    "layers of type hybrid_sliding|keeps more than K and V": "layers keep more than K, V and known states",
    "attends in its own way|do more with K and V|no layer that gives K and V": (
        "attention in code of the model's own, not through transformers' interface"
    ),
    "every layer has|head dimensions of K and V differ: 0": "no layer attends to all earlier tokens",
    "attends in chunks": "attention within chunks",
    "encoder-decoder|cross attention": "cross attention",
    "another mask": "a mask of the model's own in each call",
    "is_decoder=False|not causal": "attends both ways, as its default config says",
}
LARGEST = 20e6  # parameters
TOKENS = [25, 25, 10] + [1] * 8
AT_ONCE = [60] + [1] * 8  # for recurrences that begin anew in a call of several tokens
ALL = {"k": 10_000, "window": 8, "sinks": 2}


def has(config, name):
    """The value of an attribute; None where it has none, or one for each layer."""
    try:
        return getattr(config, name, None)
    except RuntimeError:
        return None


def tiny(config_class):
    """A config of small sizes: those of SIZES that the class has and whose default is a number."""
    default = config_class()
    parts = {
        name: tiny(type(getattr(default, name)))
        for name in getattr(config_class, "sub_configs", {})
        if getattr(default, name, None) is not None
    }
    if "text_config" in parts and not hasattr(default, "hidden_size"):
        return config_class(**parts)
    sizes = dict(parts)
    for name, value in SIZES.items():
        had = has(default, name)
        if isinstance(had, (int, float)) and not isinstance(had, bool):
            sizes[name] = value
    for name in RANDOMNESS:
        if has(default, name) is not None:
            sizes[name] = 0.15
    if hasattr(type(default), "head_dim") and has(default, "head_dim") is None:
        sizes["head_dim"] = 16
    names = ("num_hidden_layers", "n_layer", "num_layers")
    layers = next((sizes[x] for x in names if x in sizes), 4)
    types = getattr(default, "layer_types", None)
    if types:
        kinds = list(dict.fromkeys(types))
        sizes["layer_types"] = (kinds * layers)[:layers]
    for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
        sizes[name] = 1
    if hasattr(default, "is_decoder") and not default.is_encoder_decoder:
        sizes["is_decoder"] = True
    if "qk_rope_head_dim" in sizes:
        sizes.pop("head_dim", None)
        sizes["num_key_value_heads"] = 4
    sizes |= SPECIAL.get(default.model_type, {})
    for left_out in ((), ("layer_types",), ("head_dim",), ("head_dim", "layer_types")):
        try:
            given = {k: v for k, v in sizes.items() if k not in left_out and v is not None}
            config = config_class(**given)
        except Exception as error:
            failure = error
            continue
        with contextlib.suppress(Exception):  # windows in every layer: it may do without
            if not topkv.hf.families.served(config):
                config = config_class(**given | {"sliding_window": None})
        return config
    raise failure


def logits(model, cache, ids, parts, positions=None):
    """Logits of all tokens, given in parts. positions: [1, tokens], or None: the model's own."""
    found = []
    for part in torch.split(ids, parts, dim=1):
        held = cache.get_seq_length()
        given = {} if positions is None else {"position_ids": positions[:, held : held + part.shape[1]]}
        found.append(model(part, past_key_values=cache, use_cache=True, **given).logits.float())
    return torch.cat(found, dim=1)


def ways(model, ids):
    """Ways to give a text: its parts, and positions or None. The first that gives DynamicCache the logits
    of a call without a cache counts, else the last."""
    yield TOKENS, None
    yield AT_ONCE, None
    if "position_ids" in inspect.signature(model.forward).parameters:
        yield TOKENS, torch.arange(ids.shape[1])[None]


def describe(how):
    parts = "in parts" if how[0] is TOKENS else "in one call, then token by token"
    return f"the text given {parts}" + ("" if how[1] is None else ", with position_ids")


def first_line(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def attempt(model_type, config_class, options):
    torch.manual_seed(1)
    try:
        config = tiny(config_class)
        how = {"attn_implementation": "eager"}
        with torch.device("meta"):
            size = transformers.AutoModelForCausalLM.from_config(config, **how).num_parameters()
        if size > LARGEST:
            return "untried", f"{size / 1e6:.0f} million parameters: not so tiny"
        try:
            model = transformers.AutoModelForCausalLM.from_config(
                config, experts_implementation="eager", **how
            ).eval()
        except Exception:
            model = transformers.AutoModelForCausalLM.from_config(config, **how).eval()
        model = model.float()
        # Weights that a model initialises to constants would hide what attention does.
        for name, x in model.named_parameters():
            if x.dim() >= 2:
                x.normal_(0, 0.15)
            elif "sink" in name:
                x.normal_()
        vocabulary = min(97, model.get_input_embeddings().num_embeddings)
        ids = torch.randint(2, vocabulary, (1, sum(TOKENS)))
        whole = model(ids, use_cache=False).logits.float()
        if not whole.isfinite().all():
            return "untried", "logits are not finite"
        for how in ways(model, ids):
            expected = logits(model, transformers.DynamicCache(config=model.config), ids, *how)
            drift = float((expected - whole).abs().max() / expected.abs().max())
            if drift < 1e-3:
                break
        other = ids.clone()
        other[0, :8] = (other[0, :8] + 1) % vocabulary
        reach = float((model(other, use_cache=False).logits.float() - whole)[0, -1].abs().max())
    except Exception as error:
        return "untried", first_line(error)
    note = "" if how == (TOKENS, None) else f"; {describe(how)}"
    note += "" if drift < 1e-4 else f"; DynamicCache itself is off by {drift:.1e} from no cache"
    if reach < 1e-3:
        note += "; the last logits do not depend on the first tokens"
    try:
        cache = topkv.hf.TopkCache(model.config, **ALL, **options)
    except topkv.Unsupported as error:
        return "refused", str(error)
    except Exception as error:
        return "error", first_line(error)
    try:
        found = logits(model, cache, ids, *how)
        if cache.context is None:
            return "refused", f"NOT USED: the model did not use the cache{note}"
        error = float((found - expected).abs().max() / expected.abs().max())
        text, question = ids[:, :60], ids[:, :4]
        parts, positions = how
        then = [4] if parts is TOKENS else [1] * 4
        cache = topkv.hf.TopkCache(model.config, **ALL, **options)
        logits(model, cache, text, [60], positions)
        found = logits(model, cache.session(), question, then, positions)
        dynamic = transformers.DynamicCache(config=model.config)
        logits(model, dynamic, text, [60], positions)
        wanted = logits(model, dynamic, question, then, positions)
        error = max(error, float((found - wanted).abs().max() / wanted.abs().max()))
    except topkv.Error as error:
        return "refused", f"at the first call: {first_line(error)}"
    except Exception as error:
        return "error", first_line(error)
    return ("equal" if error <= 1e-4 else "differs"), f"{error:.1e}{note}"


def outcome_of(model_type, options):
    """What happens to a model type, and its detail. Of a type that does not run in a small size, what
    TopkCache says of its default config."""
    config_class = transformers.CONFIG_MAPPING[model_type]
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("90 s")))
    signal.alarm(90)
    try:
        outcome, detail = attempt(model_type, config_class, options)
    except Exception as error:
        outcome, detail = "untried", first_line(error)
    finally:
        signal.alarm(0)
    if outcome != "untried":
        return outcome, detail
    try:
        topkv.hf.check(config_class(), **options)
    except topkv.Unsupported as error:
        return "refused", f"{error} (not run: {detail[:60]})"
    except Exception as error:
        return "untried", f"{detail}; check fails: {first_line(error)}"
    return "untried", f"{detail}; TopkCache() would take it"


def reason_of(detail):
    for pattern, reason in REASONS.items():
        if re.search(pattern, detail):
            return reason
    return detail


def table(refused):
    """A table in Markdown. refused: the details of refusals, by model type."""
    groups = collections.defaultdict(list)
    for model_type, detail in sorted(refused.items()):
        groups[reason_of(detail)].append(f"`{model_type}`")
    lines = ["| reason | types | model types |", "| --- | --: | --- |"]
    for reason, types in sorted(groups.items(), key=lambda x: -len(x[1])):
        lines.append(f"| {reason} | {len(types)} | {', '.join(types)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="model types, separated by commas")
    parser.add_argument("--trust", action="store_true")
    parser.add_argument("--unchecked", action="store_true")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_grad_enabled(False)
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    if arguments.unchecked:
        topkv.hf.families.check = lambda *_, **__: None
    options = {"trust": True} if arguments.trust else {}
    only = arguments.only and arguments.only.split(",")
    counts, refused = collections.Counter(), {}
    for model_type in sorted(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        if only and model_type not in only:
            continue
        outcome, detail = outcome_of(model_type, options)
        counts[outcome] += 1
        if outcome == "refused":
            refused[model_type] = detail
        print(f"{outcome:8} {model_type:28} {detail}", flush=True)
    print(f"transformers {transformers.__version__}:", dict(counts))
    if arguments.table:
        print(table(refused))
    return 1 if counts["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
