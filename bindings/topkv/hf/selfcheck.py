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
from topkv.hf.attention import base_of
from topkv.hf.cache import TopkCache
from topkv.hf.perturb import perturbed

# Of the size of the logits. float32 leaves some hundred roundings of 6e-8; in 16 bits the model
# itself is off by one to two hundredths, and attention that is another one by a third or more.
_ALLOWED = {torch.float32: 1e-4, torch.float64: 1e-4}
_ALLOWED_16_BITS = 0.06

# Where a model jumps (a router takes another expert, activations round to other integers), so much
# more than it makes of attention that is off by a rounding; and never as much as another attention.
_ALLOWED_OF_JUMPS, _NEVER = 3, 0.25
_PERTURBED_RUNS = 2


@dataclass(frozen=True)
class SelfCheck:
    """The result of self_check.

    difference: the root mean square of the difference of the logits, as a part of the logits' own.
    allowed: the largest difference that passes. It depends on the model's dtype. If the model turns
    roundings into jumps (see ``self_check``), it is measured with attention off by a rounding."""

    difference: float
    allowed: float


def _logits(model: Any, cache: Any, parts: list[torch.Tensor]) -> torch.Tensor:
    outputs = [model(part, past_key_values=cache, use_cache=True).logits for part in parts]
    return torch.cat([logits.double().cpu() for logits in outputs], dim=1)


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).square().mean().sqrt() / expected.std())


def _rounding(model: Any, kv_dtype: Any) -> float:
    """How much rounding alone may change attention's output, as a part of its size. In 16 bits it is
    four times one rounding, because some implementations also round the scores."""
    if model.device.type == "cuda" or torch.bfloat16 in (model.dtype, kv_dtype) or kv_dtype == "bf16":
        return 2**-6
    if torch.float16 in (model.dtype, kv_dtype) or kv_dtype == "f16":
        return 2**-9
    return 1e-6


def _of_jumps(
    model: Any, attention: str | None, parts: list[torch.Tensor], expected: torch.Tensor, by: float
) -> float:
    """The difference allowed for a model that jumps: measured with attention off by `by`."""
    text = families.text_config(model.config)
    base = base_of(attention) or attention or "eager"
    largest = 0.0
    for run in range(_PERTURBED_RUNS):
        text._attn_implementation = perturbed(base, by, seed=run)
        with torch.no_grad():
            found = _logits(model, DynamicCache(config=model.config), parts)
        largest = max(largest, _difference(found, expected))
    return min(_NEVER, _ALLOWED_OF_JUMPS * largest)


def self_check(model: Any, *, tokens: int = 256, trust: bool = True, **options: Any) -> SelfCheck:
    """Compares the logits of a random text under a TopkCache that retrieves every token with the
    logits under a DynamicCache.

    The text is read in parts, token by token, and in a session. Use it for models that TopkCache()
    refuses because it cannot decide by looking, and for versions of transformers that are newer than
    topkv. trust=False: refuse what TopkCache() would refuse.

    The result says nothing of texts longer than `tokens`. Take more tokens than the model's sliding
    window, and than any other length at which its attention changes. options: options of the
    TopkCache, except k and measure_recall.

    Routers and activations in 8 bits turn a rounding into a jump. If the logits differ by more than a
    model of this dtype should, the model runs again under DynamicCache with attention off by a
    rounding. Three times that change is allowed, up to a quarter of the logits' size.

    Raises topkv.Unsupported, with the numbers, if the logits differ by more. Restores the model's
    attention implementation."""
    if tokens < 16:
        raise InvalidArgument(f"tokens is {tokens}; it must be at least 16")
    text = families.text_config(model.config)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(text.vocab_size, (1, tokens), generator=generator).to(model.device)
    parts = list(torch.split(ids, [tokens // 2, tokens - tokens // 2 - 8] + [1] * 8, dim=1))
    implementation, training = text._attn_implementation, model.training
    options |= {"trust": trust}
    if not families.indexers_choose_all(model.config):  # else these have no effect
        options = {"window": 8, "sinks": 2} | options | {"k": tokens}
    if str(options.get("kv_dtype")).startswith("q"):  # rounds rows, and says nothing of the model
        del options["kv_dtype"]
    try:
        model.eval()
        with torch.no_grad():
            expected = _logits(model, DynamicCache(config=model.config), parts)
            if not expected.isfinite().all():
                raise Unsupported("the model gives logits that are not finite, so there is nothing to compare")
            cache = TopkCache(model.config, **options)
            found = [_logits(model, cache, parts)]
            if cache.get_seq_length() != tokens:
                raise Unsupported("the model did not put its tokens into the cache it was given")
            cache = TopkCache(model.config, **options)
            found += [_logits(model, cache, parts[:2]), _logits(model, cache.session(), parts[2:])]
        error = _difference(torch.cat(found, dim=1), torch.cat((expected, expected), dim=1))
        rows = options.get("kv_dtype") in (None, "f32", torch.float32)
        in_float = rows and model.device.type == "cpu"
        allowed = _ALLOWED.get(model.dtype, _ALLOWED_16_BITS) if in_float else _ALLOWED_16_BITS
        if error > allowed:
            rounding = _rounding(model, options.get("kv_dtype"))
            allowed = max(allowed, _of_jumps(model, implementation, parts, expected, rounding))
    finally:
        text._attn_implementation = implementation
        model.train(training)
    if not error <= allowed:
        raise Unsupported(
            f"the logits of this {model.config.model_type} model under TopkCache differ by "
            f"{error:.2g} of their size from its logits under DynamicCache, and {allowed:.2g} is "
            "allowed: topkv does not compute its attention; use another cache"
        )
    return SelfCheck(error, allowed)


def try_unknown_version() -> None:
    """Tries a version of transformers that is newer than the tested ones, and warns.

    Raises topkv.Unsupported unless two small models, one with sliding windows, give the logits that
    they give without topkv."""
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
