"""The attention function that transformers calls for attention "topkv".

topkv attends the topkv layers of a TopkCache. Sliding-window layers of a TopkCache, other caches and
calls without a cache go to the model's earlier implementation, and nothing changes for them. The
earlier name is part of topkv's name: "topkv:sdpa".
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from topkv import Unsupported
from topkv.hf import indexers, plain
from topkv.hf.handle import Handle
from topkv.hf.indexers import Choice
from topkv.hf.latent import Absorbed
from topkv.hf.mask import mask_function, require_causal, require_described
from topkv.hf.positions import require_continuation

#: Query rows of a block of a sliding-window layer. Eager attention keeps the block's scores.
_BLOCK = {"sdpa": 2048, "eager": 512}

#: compressed-tensors' attention for checkpoints that round more than weights and the KV cache.
_ROUNDS_QUERIES = "ct_hooked_attention"


def _implementation(module: torch.nn.Module, base: str) -> Any:
    """transformers' attention function; "eager" is the function of the model's file."""
    return ALL_ATTENTION_FUNCTIONS.get_interface(base, plain.own_attention(module))


def _attend_sliding(
    base: str,
    module: torch.nn.Module,
    query: torch.Tensor,
    kv: Handle,
    mask: Any,
    window: int | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Attention of a sliding-window layer of a TopkCache, in blocks of queries with the keys that they
    may see. Memory for masks and scores is block x (block + window), whatever the text's length."""
    plain.require_known(module, kwargs)
    if base == "sdpa" and (kwargs.get("softcap") or kwargs.get("s_aux") is not None):
        base = "eager"  # transformers' sdpa leaves out soft-capping and sinks
    require_described(mask)
    attend = _implementation(module, base)
    kwargs["sliding_window"] = window
    tokens, block = query.shape[2], _BLOCK.get(base)
    if mask is None or block is None or tokens <= block or not mask.hides_beyond(window):
        whole = None if mask is None else mask.whole(base)
        return attend(module, query, kv.keys, kv.values, whole, **kwargs)[0]
    shift = mask.query_offset - mask.key_offset  # key number of the first query's own token
    parts = []
    for first in range(0, tokens, block):
        queries = range(first, min(first + block, tokens))
        keys = range(max(0, shift + first - window + 1), shift + queries.stop)
        out, _ = attend(
            module,
            query[:, :, queries.start : queries.stop],
            kv.keys[:, :, keys.start : keys.stop],
            kv.values[:, :, keys.start : keys.stop],
            mask.block(base, queries, keys),
            **kwargs,
        )
        parts.append(out)
    return torch.cat(parts, dim=1)


def _choice_of(mask: Any, arguments: dict[str, Any]) -> tuple[Choice | None, Any]:
    """The choice of an indexer that a layer gives its attention, taken out of the arguments, and the mask."""
    for name in ("indices", "block_indices"):
        if isinstance(arguments.get(name), Choice):
            return arguments.pop(name), mask
    return (mask, None) if isinstance(mask, Choice) else (getattr(mask, "choice", None), mask)


def _attend_topkv(
    module: torch.nn.Module,
    query: torch.Tensor,
    kv: Handle,
    mask: Any,
    scaling: float | None,
    dropout: float,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> torch.Tensor:
    sharing = Unsupported(
        f"{type(module).__name__} attends with the K and V of another layer; use another cache"
    )
    if kv.keys is None:
        raise sharing
    if dropout > 0 or module.training:
        raise Unsupported("topkv's layers are for inference: call model.eval() first")
    if query.requires_grad and torch.is_grad_enabled():
        raise Unsupported("topkv's layers have no backward pass: run under torch.no_grad()")
    choice, mask = _choice_of(mask, others)
    require_causal(mask)
    kv.layer.warn_of_bias(module, kv.keys.shape[-1])
    if kv.layer.is_first:  # one wait for the device in a forward pass
        kv.layer.require_mask(None if mask is None else mask.padding)
        require_continuation(kv.layer, others.get("position_ids"))
    plain.require_known(module, others)
    how = {
        "scale": query.shape[-1] ** -0.5 if scaling is None else scaling,
        "softcap": softcap or 0.0,
        "sink_scores": s_aux,
    }
    given = {"scaling": scaling, "dropout": dropout, **others}
    given |= {x: y for x, y in (("softcap", softcap), ("s_aux", s_aux)) if y is not None}
    if kv.are_latents:
        absorbed = Absorbed(module, query, kv.keys, kv.values)
        absorbed.require_formula(how, given)
        kv.keys = kv.values = None
        how["index"] = kv.layer.index_of(choice)
        return absorbed.output(kv.layer.attend(absorbed.query(), absorbed.rows, None, **how))
    plain.require_equal_heads(query, kv.keys, kv.values)
    plain.require_formula(module, query, kv.keys, kv.values, how, given)
    if kv.taken:
        out = kv.layer.attend_for(getattr(module, "layer_idx", None), query, **how)
        if out is None:
            raise sharing
        return out
    how["index"] = kv.layer.index_of(choice)
    out = kv.layer.attend(query, kv.keys, kv.values, **how)
    kv.taken = True
    if not kv.layer.is_shared:
        kv.keys = kv.values = None  # rows of the context now, and of no other layer
    return out


def attention_function(base: str):
    """The function to register for attention "topkv" over implementation `base`."""

    def topkv_attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: Any,
        value: Any,
        attention_mask: Any,
        scaling: float | None = None,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, Any]:
        kwargs |= {"scaling": scaling, "dropout": dropout}
        if isinstance(key, Handle):
            if key.layer is not None:
                return _attend_topkv(module, query, key, attention_mask, **kwargs), None
            window = kwargs.pop("sliding_window", None)
            out = _attend_sliding(base, module, query, key, attention_mask, window, **kwargs)
            key.attended()
            return out, None
        attention_mask = indexers.of_other_cache(base, module, query, key, attention_mask, kwargs)
        return _implementation(module, base)(
            module, query, key, value, attention_mask, **kwargs
        )

    return topkv_attention


def implementation_over(base: str) -> str:
    """The name of topkv's attention over implementation `base`; registers it if it is new."""
    if base == _ROUNDS_QUERIES:
        raise Unsupported(
            "compressed-tensors rounds queries, keys and values within this model's attention, by a "
            "scheme for attention layers in its quantization_config. topkv's attention would use them "
            "unrounded; use another cache. Schemes for Linear layers and for the KV cache are supported"
        )
    name = f"topkv:{base}"
    if name not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(name, attention_function(base))
        AttentionMaskInterface.register(name, mask_function(base))
    return name


def base_of(implementation: str | None) -> str | None:
    """The implementation that topkv's attention was put over; None: it is not topkv's."""
    prefix, _, base = (implementation or "").partition(":")
    return base if prefix == "topkv" else None
