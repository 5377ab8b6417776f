"""Small random models of every family, and how they are compared."""

from __future__ import annotations

import pytest
import torch
from topkv import hf
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    DynamicCache,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Mistral4ForCausalLM,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

VOCABULARY = 97
HYBRID = ["sliding_attention", "full_attention"] * 2

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 32768,
    "initializer_range": 0.15,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_HYBRID = {"num_hidden_layers": 4, "layer_types": HYBRID, "sliding_window": 24}
_SHARED_ROWS = {
    "num_hidden_layers": 8,
    "layer_types": HYBRID * 2,
    "sliding_window": 24,
    "num_kv_shared_layers": 4,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
}

FAMILIES = {
    "llama": lambda: LlamaConfig(**_COMMON),
    "mistral": lambda: MistralConfig(**_COMMON, sliding_window=None),
    "qwen2": lambda: Qwen2Config(**_COMMON),
    "qwen2-window": lambda: Qwen2Config(
        **_COMMON | {"num_hidden_layers": 4},
        use_sliding_window=True,
        sliding_window=24,
        max_window_layers=2,
    ),
    "qwen3": lambda: Qwen3Config(**_COMMON),
    # Scores are large beside the cap, and the scale is not head_dim ** -0.5.
    "gemma2": lambda: Gemma2Config(
        **_COMMON | _HYBRID, attn_logit_softcapping=2.0, query_pre_attn_scalar=40
    ),
    "gemma3": lambda: Gemma3TextConfig(**_COMMON | _HYBRID, query_pre_attn_scalar=40),
    "gpt_oss": lambda: GptOssConfig(
        **_COMMON | _HYBRID, num_local_experts=4, num_experts_per_tok=2
    ),
    # The last four layers attend the K and V of earlier ones.
    "gemma3n": lambda: AutoConfig.for_model(
        "gemma3n_text",
        **_COMMON | _SHARED_ROWS,
        laurel_rank=8,
        activation_sparsity_pattern=[0.0] * 8,
    ),
    "gemma4-shared": lambda: AutoConfig.for_model(
        "gemma4_text",
        **_COMMON | _SHARED_ROWS,
        attention_k_eq_v=True,
        global_head_dim=512,
        num_global_key_value_heads=1,
    ),
}

# For those whose head_dim is what hidden_size leaves: 64, which a CUDA device takes too.
_WIDE = {"hidden_size": 256}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}

# Model types that nothing in topkv.hf knows by name, and what they need beyond _COMMON: other
# projections, norms, rotations, scales of q and k, experts, blocks in parallel, layers without RoPE.
OTHERS = {
    "arcee": {},
    "cohere": {"logit_scale": 1.0},
    "cohere2": _HYBRID | {"logit_scale": 1.0},
    "ernie4_5": {},
    "exaone4": _HYBRID,
    "gemma": {},
    "gemma4_text": _HYBRID
    | {
        "attention_k_eq_v": True,
        "global_head_dim": 80,  # of the full layers alone
        "hidden_size_per_layer_input": 0,
        "num_global_key_value_heads": 1,
        "num_kv_shared_layers": 0,
    },
    "glm": {},
    "glm4": {},
    "gpt2": _WIDE | {"n_inner": 96, "max_position_embeddings": 512},
    "gpt_neox": _WIDE,
    "granite": {"attention_multiplier": 0.2},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "nemotron": {},
    "olmo": {},
    "olmo2": {},
    "olmoe": _EXPERTS | _WIDE,
    "opt": _WIDE
    | {"ffn_dim": 96, "word_embed_proj_dim": 256, "max_position_embeddings": 512},
    "phi": {},
    "phi3": {"sliding_window": None},
    "qwen2_moe": _EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3_moe": _EXPERTS | {"initializer_range": 0.3},
    "smollm3": {},
    "stablelm": _WIDE,
    "starcoder2": {"sliding_window": None},
}

_MAMBA = {"mamba_d_state": 16, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_chunk_size": 16}
_DELTA = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_SHARED = {"shared_expert_intermediate_size": 32}

# Model types with recurrences or convolutions beside full attention, or within its layers.
RECURRENT = {
    "falcon_h1": _MAMBA | {"mamba_d_ssm": 128, "mamba_n_groups": 1},
    "granitemoehybrid": _MAMBA
    | {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 32,
        "attention_multiplier": 0.2,
    },
    # Its layers with full attention cache a latent.
    "kimi_linear": {
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "num_key_value_heads": 4,
        "head_dim": None,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"], "block_ff_dim": 96},
    "lfm2_moe": _EXPERTS | {"layer_types": ["full_attention", "conv", "full_attention"]},
    "nemotron_h": {
        "num_hidden_layers": 5,
        "layer_types": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "ssm_state_size": 16,
        "n_groups": 2,
        "chunk_size": 16,
        "n_routed_experts": 4,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 32,
        "num_experts_per_tok": 2,
    },
    "olmo_hybrid": _DELTA,
    "qwen3_5_moe_text": _DELTA | _EXPERTS | _SHARED,
    "qwen3_5_text": _DELTA,
    "qwen3_next": _DELTA | _EXPERTS | _SHARED,
    "zamba2": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "num_mem_blocks": 2,
        "num_key_value_heads": 4,
        "head_dim": None,
        "mamba_ngroups": 1,
        "n_mamba_heads": 4,
        "mamba_d_state": 16,
        "adapter_rank": 8,
        "chunk_size": 16,
    },
    "zaya": {"num_experts": 4, "num_experts_per_tok": 1, "moe_intermediate_size": 32},
}

# Model types whose layers cache a latent (MLA), in sizes that all differ.
_LATENT = {
    "num_key_value_heads": 4,
    "head_dim": None,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
_ROUTED = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
}
LATENT = {
    "axk1": _LATENT | _ROUTED,
    "deepseek_v2": _LATENT | _ROUTED | {"q_lora_rank": None, "first_k_dense_replace": 1},
    "deepseek_v3": _LATENT | _ROUTED | {"first_k_dense_replace": 1, "rope_parameters": _YARN},
    "glm4_moe_lite": _LATENT | _ROUTED,
    "longcat_flash": _LATENT
    | {
        "num_hidden_layers": None,
        "num_layers": 2,
        "head_dim": 8,  # of RoPE
        "n_routed_experts": 4,
        "zero_expert_num": 2,
        "moe_topk": 2,
        "ffn_hidden_size": 96,
        "expert_ffn_hidden_size": 32,
    },
    "minicpm3": _LATENT | {"initializer_range": 0.3},
    # Queries grow with their position.
    "mistral4": _LATENT
    | _ROUTED
    | {
        "first_k_dense_replace": 1,
        "rope_parameters": _YARN | {"llama_4_scaling_beta": 0.3, "partial_rotary_factor": 8 / 24},
    },
    "youtu": _LATENT,
}

# Model types that the lowest version of transformers does not have.
NEWER = {
    "bailing_hybrid": _LATENT
    | _ROUTED
    | {
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "head_dim": 16,
        "num_local_experts": 4,
        "first_k_dense_replace": 1,
    },
}

# Model types with an indexer, which chooses the tokens that layers attend; see indexed_config.
_LIGHTNING = _LATENT | _ROUTED | {"first_k_dense_replace": 1, "index_n_heads": 8, "index_head_dim": 16}
INDEXED = {
    "axk2": _LIGHTNING,
    "deepseek_v32": _LIGHTNING,
    # A key is of four tokens. The text model is within a model that reads pictures.
    "glm5_next_text": _LIGHTNING
    | {
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "mlp_layer_types": ["dense", "sparse"] * 2,
        "first_k_dense_replace": None,
        "qk_rope_head_dim": None,
        "index_kpool": 4,
        "hc_mult": 2,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
    },
    # Layers of type "shared" attend the choice of an earlier layer.
    "glm_moe_dsa": _LIGHTNING
    | {"num_hidden_layers": 4, "indexer_types": ["full", "shared", "full", "shared"]},
    "hy_v4": _LIGHTNING
    | {
        "num_hidden_layers": 4,
        "indexer_types": ["full", "full", "shared", "shared"],
        "hc_mult": 2,
        "rope_parameters": _YARN,
    },
    # Its first layer has no indexer.
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "index_n_heads": 2,
        "index_head_dim": 32,
        "index_block_size": 4,
        "index_local_blocks": 1,
        "rotary_dim": 16,
        "head_dim": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 32,
        "shared_intermediate_size": 32,
        "dense_intermediate_size": 64,
    },
    "qwen4_exp_text": _DELTA
    | _EXPERTS
    | _SHARED
    | {
        "layer_types": None,
        "full_attention_interval": 2,
        "hc_count": 2,
        "hc_lowrank": 8,
        "indexer_n_heads": 8,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 64,
        "indexer_compress_ratio": 4,
        "ple_layer_ids": [1],
        "ple_embed_dim": 32,
        "ngram_vocab_size_base": 101,
        "ngram_size": 3,
        "heads_per_ngram": 2,
        "split_ngram_parts": 1,
        "eos_token_id": 96,
    },
}

# Recurrences that begin anew in a call of several tokens: transformers' selective scan.
RESTARTING = {
    "jamba": {
        "num_hidden_layers": 4,
        "head_dim": None,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "use_mamba_kernels": False,
    },
    "zamba": {
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "hybrid"] * 2,
        "num_key_value_heads": 4,
        "head_dim": None,
        "mamba_d_state": 16,
        "n_mamba_heads": 2,
        "use_mamba_kernels": False,
    },
}


# transformers' sdpa has neither soft-capping nor sinks; grouped products of experts are bf16 only.
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}


def make_config(family: str):
    if family in FAMILIES:
        return FAMILIES[family]()
    if family in INDEXED:
        return indexed_config(family, 10_000)
    given = _COMMON | (OTHERS | RECURRENT | RESTARTING | LATENT | NEWER)[family]
    for name in ("head_dim", "num_hidden_layers"):  # what other sizes leave
        if given[name] is None:
            del given[name]
    return AutoConfig.for_model(family, **given)


def indexed_config(family: str, tokens: int):
    """A config of INDEXED whose indexers choose so many tokens, a multiple of 4."""
    top = {"minimax_m3_vl_text": ("index_topk_blocks", 4), "qwen4_exp_text": ("indexer_budget", 1)}
    name, tokens_of_one = top.get(family, ("index_topk", 1))
    given = _COMMON | INDEXED[family] | {name: tokens // tokens_of_one}
    given = {name: x for name, x in given.items() if x is not None or "token_id" in name}
    if family == "glm5_next_text":
        pictures = {"hidden_size": 32, "depth": 1, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64}
        return AutoConfig.for_model("glm5_next", text_config=given, vision_config=pictures)
    return AutoConfig.for_model(family, **given)


def caches_latents(family: str) -> bool:
    """Whether this version of transformers caches latents in the layers of the family that have some."""
    return "q_lora_rank" not in INDEXED[family] or hf.compat.version() >= (5, 18)


def skip_without_latents(family: str) -> None:
    if not caches_latents(family):
        pytest.skip("this version of transformers caches K and V of these layers, and no latents")


def indexed_model(family: str, tokens: int):
    """A model of INDEXED in float32 on the CPU, without the constants that layers begin with."""
    skip_without_latents(family)
    torch.manual_seed(1)
    auto = AutoModelForImageTextToText if family == "glm5_next_text" else AutoModelForCausalLM
    model = auto.from_config(indexed_config(family, tokens), **EAGER).eval()
    with torch.no_grad():
        for name, x in model.named_parameters():
            if x.dim() >= 2:
                x.normal_(0, 0.15)
            elif "sinks" in name:
                x.normal_()
    return model


def make_model(family: str, device, dtype=torch.float32):
    torch.manual_seed(1)
    # The auto class has no model of mistral4, which is the text model of another one.
    make = Mistral4ForCausalLM._from_config if family == "mistral4" else AutoModelForCausalLM.from_config
    model = make(make_config(family), **EAGER)
    return model.to(device=device, dtype=dtype).eval()


def dtype_of(device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def other_llamas(device):
    """What it is, and a model that differs in that alone from make_model("llama", ...)."""
    config = make_config("llama")
    state = make_model("llama", device, dtype_of(device)).state_dict()

    def with_config(kind=LlamaForCausalLM, dtype=dtype_of(device), **changed):
        model = kind(LlamaConfig(**config.to_dict() | changed)).to(device=device, dtype=dtype).eval()
        model.load_state_dict(state)
        return model

    class Other(LlamaForCausalLM):
        pass

    tuned = with_config()
    with torch.no_grad():
        tuned.model.layers[1].self_attn.v_proj.weight *= 1.01
    yield "weights", tuned
    yield "config", with_config(rope_parameters={"rope_type": "default", "rope_theta": 12345.0})
    yield "config", with_config(rms_norm_eps=1e-5)
    yield "class", with_config(Other)
    yield "dtype", with_config(dtype=torch.float16)


def make_ids(tokens: int, device, seed: int = 0, rows: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (rows, tokens), generator=generator).to(device)


def logits_by_pieces(model, cache, ids: torch.Tensor, pieces: list[int]) -> torch.Tensor:
    """Logits of all tokens, fed in pieces of these lengths: [batch, tokens, vocabulary], f32."""
    assert sum(pieces) == ids.shape[1]
    parts = torch.split(ids, pieces, dim=1)
    return torch.cat(
        [model(part, past_key_values=cache, use_cache=True).logits.float() for part in parts], dim=1
    )


def dynamic_logits(model, ids: torch.Tensor, pieces: list[int]) -> torch.Tensor:
    return logits_by_pieces(model, DynamicCache(config=model.config), ids, pieces)


def exact_logits(model, ids: torch.Tensor) -> torch.Tensor:
    """What float32 with a DynamicCache gives, whatever the model's dtype."""
    return dynamic_logits(as_float32(model), ids, [ids.shape[1]])


def tolerance(model, ids: torch.Tensor, exact: torch.Tensor | None = None) -> float:
    """How far logits may be from exact_logits. exact: these logits, if they are computed already.

    float32: 1e-4 of the largest, some hundred roundings of 6e-8 through the layers. bf16: what
    rounding to bf16 does to the model itself, the largest distance between DynamicCache's logits
    in bf16 and in float32 of the same weights; topkv (float32 scores, bf16 rows) gets twice that.
    """
    exact = exact_logits(model, ids) if exact is None else exact
    if next(model.parameters()).dtype == torch.float32:
        return 1e-4 * float(exact.abs().max())
    return 2 * float((dynamic_logits(model, ids, [ids.shape[1]]) - exact).abs().max())


def assert_logits_agree(found, model, ids, first: int = 0) -> None:
    """found: logits of the tokens of ids from number `first` on."""
    exact = exact_logits(model, ids)
    assert (found.float() - exact[:, first:]).abs().max() <= tolerance(model, ids, exact)


def assert_greedy(model, ids: torch.Tensor, prompt: int) -> None:
    """Every token after the prompt is the one that exact logits choose, or, within the tolerance,
    as good: with logits off by e, the chosen one is within 2 e of the largest. In float32 on the
    CPU this means the same token unless two logits nearly tie."""
    exact = exact_logits(model, ids)
    before = exact[:, prompt - 1 : -1]
    chosen = before.gather(-1, ids[:, prompt:, None])[..., 0]
    assert (before.amax(-1) - chosen).max() <= 2 * tolerance(model, ids, exact)


def as_float32(model):
    """The same weights in float32, attended eagerly."""
    config = type(model.config).from_dict(model.config.to_dict())
    copy = type(model)._from_config(config, **EAGER).eval()
    copy.load_state_dict(model.state_dict())
    return copy.to(device=model.device, dtype=torch.float32)


def agree(found, expected):
    """Logits in float32: rounding through the layers, of the largest logit."""
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def after(model, *pieces):
    """Logits of a DynamicCache of the last of these pieces, after the others."""
    ids = torch.cat(pieces, dim=1)
    return dynamic_logits(model, ids, [x.shape[1] for x in pieces])[:, -pieces[-1].shape[1] :]


def step(model, cache, ids, **how):
    return model(ids, past_key_values=cache, use_cache=True, **how).logits
