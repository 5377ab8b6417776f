"""Compares a whole model under topkv with the same model under transformers' own cache."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import DynamicCache

from topkv import InvalidArgument, Unsupported
from topkv.hf import compat, families
from topkv.hf.cache import TopkCache

# Of the size of the logits. float32 leaves some hundred roundings of 6e-8; in 16 bits the model
# itself is off by one to two hundredths, and attention that is another one by a third or more.
_ALLOWED = {torch.float32: 1e-4, torch.float64: 1e-4}
_ALLOWED_16_BITS = 0.06


@dataclass(frozen=True)
class SelfCheck:
    """What self_check found. difference: root mean square of the difference of the logits, as a
    part of that of the logits; allowed: how large it may be in the model's dtype."""

    difference: float
    allowed: float


def _logits(model: Any, cache: Any, parts: list[torch.Tensor]) -> torch.Tensor:
    outputs = [model(part, past_key_values=cache, use_cache=True).logits for part in parts]
    return torch.cat([logits.double().cpu() for logits in outputs], dim=1)


def self_check(model: Any, *, tokens: int = 256, trust: bool = True, **options: Any) -> SelfCheck:
    """Runs a random text through `model` with a TopkCache that retrieves every token and with a
    DynamicCache, and compares the logits: read in parts, token by token, and in a session.

    For models that TopkCache() refuses because it cannot decide by looking (trust=False: as
    TopkCache() would), and for versions of transformers that are newer than topkv. It says nothing
    of texts longer than `tokens`; take more than the model's sliding window, and than any other
    length at which its attention changes. options: of the TopkCache, but k and measure_recall.

    Raises topkv.Unsupported, with the numbers, if they differ. Leaves the model's attention
    implementation as it was."""
    if tokens < 16:
        raise InvalidArgument(f"tokens is {tokens}; it must be at least 16")
    text = families.text_config(model.config)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(text.vocab_size, (1, tokens), generator=generator).to(model.device)
    parts = list(torch.split(ids, [tokens // 2, tokens - tokens // 2 - 8] + [1] * 8, dim=1))
    implementation, training = text._attn_implementation, model.training
    options = {"window": 8, "sinks": 2} | options | {"k": tokens, "trust": trust}
    if str(options.get("kv_dtype")).startswith("q"):  # rounds rows, and says nothing of the model
        del options["kv_dtype"]
    try:
        model.eval()
        with torch.no_grad():
            expected = _logits(model, DynamicCache(config=model.config), parts)
            if not expected.isfinite().all():
                raise Unsupported("the model gives logits that are not finite: nothing to compare")
            cache = TopkCache(model.config, **options)
            found = [_logits(model, cache, parts)]
            if cache.get_seq_length() != tokens:
                raise Unsupported("the model did not put its tokens into the cache it was given")
            cache = TopkCache(model.config, **options)
            found += [_logits(model, cache, parts[:2]), _logits(model, cache.session(), parts[2:])]
    finally:
        text._attn_implementation = implementation
        model.train(training)
    both = torch.cat((expected, expected), dim=1)
    error = (torch.cat(found, dim=1) - both).square().mean().sqrt() / both.std()
    rows = options.get("kv_dtype") in (None, "f32", torch.float32) and model.device.type == "cpu"
    allowed = _ALLOWED.get(model.dtype, _ALLOWED_16_BITS) if rows else _ALLOWED_16_BITS
    if not error <= allowed:
        raise Unsupported(
            f"the logits of this {model.config.model_type} model under TopkCache differ from those "
            f"under DynamicCache by {float(error):.2g} of their size, {allowed:.2g} is allowed: "
            "topkv does not compute its attention; use another cache"
        )
    return SelfCheck(float(error), allowed)


def try_unknown_version() -> None:
    """For a version of transformers newer than those tested: raises topkv.Unsupported unless two
    small models, one with sliding windows, give the logits they give without topkv; warns."""
    version = compat.installed()
    sizes = {
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "initializer_range": 0.2,
    }
    types = {"layer_types": [families.SLIDING, families.FULL], "sliding_window": 12}
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            for config in (
                transformers.LlamaConfig(**sizes),
                transformers.Gemma2Config(**sizes, **types),
            ):
                model = transformers.AutoModelForCausalLM.from_config(
                    config, dtype=torch.float32, attn_implementation="eager"
                )
                self_check(model, tokens=40, trust=False)
    except Exception as error:
        raise Unsupported(
            f"topkv.hf does not work with transformers {version}, which is newer than it "
            f"({type(error).__name__}: {error}): {compat.INSTALL}"
        ) from error
    warnings.warn(
        f"topkv.hf was tested with transformers {compat.LOWEST[0]}.{compat.LOWEST[1]} to "
        f"{compat.UNKNOWN[0]}.{compat.UNKNOWN[1] - 1}; {version} is newer. Small models give the "
        "right logits with it; topkv.hf.self_check(model) compares yours",
        stacklevel=3,
    )
