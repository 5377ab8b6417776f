"""Which models topkv can serve: decoders whose attention is softmax over grouped-query K and V.

A model is accepted by its config's ``model_type``. The list holds what the tests run; a model that
is not on it is refused with the reason, for attention that differs in a detail gives answers that
are wrong without a sign.
"""

from __future__ import annotations

from typing import Any

from transformers.cache_utils import get_layer_types_and_kwargs

from topkv import Unsupported

#: Text configs whose models the tests compare with transformers' own cache.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt_oss")

FULL = "full_attention"
SLIDING = "sliding_attention"


def text_config(config: Any) -> Any:
    """The config of the language model, which its attention modules share."""
    return config.get_text_config(decoder=True)


def layer_types(config: Any) -> tuple[list[str], dict[str, Any]]:
    """Type of each layer and what transformers' own cache layers are made with."""
    return get_layer_types_and_kwargs(text_config(config))


def _reason(config: Any, text: Any) -> str:
    """Why the attention of this model is not one that topkv computes; empty: it is."""
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder: cross attention has no growing cache"
    if getattr(text, "kv_lora_rank", None):
        return "it caches a latent (MLA): head dimensions of K and V differ"
    if getattr(text, "attention_chunk_size", None):
        return "it attends in chunks, not to all earlier tokens"
    if getattr(text, "num_kv_shared_layers", 0):
        return "some of its layers read the K and V of others"
    if getattr(text, "use_bidirectional_attention", False) or not getattr(text, "is_causal", True):
        return "its attention is not causal"
    other = sorted(set(layer_types(config)[0]) - {FULL, SLIDING})
    if other:
        return f"it has layers of type {', '.join(other)}"
    if text.model_type not in FAMILIES:
        return f"its family is not among those tested: {', '.join(FAMILIES)}"
    if FULL not in layer_types(config)[0]:
        return (
            f"every layer has a sliding window of {text.sliding_window} tokens, which bounds its "
            "cache already; use DynamicCache"
        )
    return ""


def check(config: Any) -> None:
    """Raises topkv.Unsupported, with the reason, unless topkv can serve the model."""
    reason = _reason(config, text_config(config))
    if reason:
        raise Unsupported(f"topkv cannot hold the cache of a {config.model_type} model: {reason}")
