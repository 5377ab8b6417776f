"""Checks that the attention of a layer is the attention that topkv computes.

    softmax(softcap(scale * q k, per query head, over all tokens before and the own one)) v

A sink's score takes part in the softmax. Models express differences in arguments of the attention
call, or in an attention function of their own. An argument that is neither known nor without effect
is refused; otherwise topkv would silently leave it out.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import weakref
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from topkv import Unsupported

#: Arguments that topkv uses, or has refused already.
COMPUTED = frozenset(("scaling", "dropout", "softcap", "s_aux"))

_WITHOUT_EFFECT = frozenset(("position_ids", "cache_position", "use_cache"))

# Arguments that some attention functions read, if not the model's own.
_REASONS = {
    "block_indices": "it attends only some blocks of the tokens",
    "cu_seq_lens_k": "several texts are packed into one row",
    "cu_seq_lens_q": "several texts are packed into one row",
    "indices": "it attends only some of the tokens",
    "is_causal": "it attends both ways",
    "output_attentions": "topkv returns no attention weights",
    "position_bias": "its scores have a bias by position",
    "sliding_window": "its cache has all tokens, but it attends only the tokens of a window",
}

_EAGER = "eager_attention_forward"

_TOKENS = 32  # of the call in which a layer's attention is compared

_compared: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


@functools.lru_cache(maxsize=None)
def _globals_of(kind: type) -> dict[str, Any]:
    """The globals of the forward of a layer's class; a base class may be in another file."""
    found = getattr(inspect.unwrap(kind.forward), "__globals__", {})
    return found if _EAGER in found else vars(sys.modules[kind.__module__])


def own_attention(module: torch.nn.Module) -> Any:
    """The eager attention function in the file of a layer's class, or None."""
    return _globals_of(type(module)).get(_EAGER)


@functools.lru_cache(maxsize=None)
def _reads(function: Any) -> tuple[frozenset[str], bool]:
    """The arguments that a function names, and whether it reads others from its ** argument."""
    parameters = inspect.signature(function).parameters.values()
    names = frozenset(x.name for x in parameters if x.kind != x.VAR_KEYWORD)
    others = [x.name for x in parameters if x.kind == x.VAR_KEYWORD]
    loaded = {x.argval for x in dis.get_instructions(function) if x.opname.startswith("LOAD_")}
    return names, any(name in loaded for name in others)


def _is_read(function: Any, name: str) -> bool:
    if function is None:
        return True
    names, looks_into_others = _reads(function)
    return looks_into_others or name in names


def require_known(module: torch.nn.Module, arguments: dict[str, Any]) -> None:
    """Raises topkv.Unsupported for an argument of an attention call that topkv does not know and
    that the model's own attention function reads."""
    for name, value in arguments.items():
        if value is None or name in COMPUTED or name in _WITHOUT_EFFECT:
            continue
        if value is {"is_causal": True, "output_attentions": False}.get(name):
            continue
        if name in _REASONS or _is_read(own_attention(module), name):
            reason = _REASONS.get(name, "topkv does not know its effect on attention")
            raise Unsupported(
                f"{type(module).__name__} gives its attention {name}: {reason}; use another cache"
            )
    if getattr(module, "is_causal", True) is False:
        raise Unsupported(f"{type(module).__name__} attends both ways; use another cache")


def require_equal_heads(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Raises topkv.Unsupported unless heads of q, k and v have one dimension."""
    if values.shape != keys.shape or query.shape[-1] != keys.shape[-1]:
        raise Unsupported(
            f"head dimensions of q, k and v are {query.shape[-1]}, {keys.shape[-1]} and "
            f"{values.shape[-1]}; topkv needs them equal"
        )


def formula(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    softcap: float,
    sink_scores: torch.Tensor | None,
) -> torch.Tensor:
    """The attention that topkv computes, over tokens without a cache.

    query [batch, q_heads, tokens, head_dim], keys [batch, kv_heads, tokens, head_dim], values [batch,
    kv_heads, tokens, dim] -> [batch, tokens, q_heads, dim]."""
    group = query.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = scale * query @ keys.mT
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    tokens = query.shape[-2]
    later = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).triu(1)
    scores = scores.masked_fill(later, -torch.inf)
    if sink_scores is not None:
        column = sink_scores.to(scores).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), dim=-1)
    return (scores.softmax(dim=-1)[..., :tokens] @ values).transpose(1, 2)


def tokens_to_compare(module: torch.nn.Module, query: torch.Tensor) -> int:
    """The number of first tokens of a call that ``require_formula`` compares; 0: it compares none."""
    tokens = min(query.shape[-2], _TOKENS)
    return 0 if module in _compared or tokens < 2 else tokens


def require_formula(
    module: torch.nn.Module,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    how: dict[str, Any],
    given: dict[str, Any],
) -> None:
    """Raises topkv.Unsupported if the model's own attention function differs from ``formula``.

    It compares the first tokens of this call, once for each layer, because the function does not
    change. how: further arguments of ``formula``. given: the layer's named arguments of attention."""
    tokens = min(tokens_to_compare(module, query), keys.shape[-2])
    if tokens < 2:
        return
    # In float64, so that what is left is a difference of kind.
    q, k, v = (x[:1, :, :tokens].detach().double() for x in (query, keys, values))
    expected = formula(q, k, v, **how)
    if not expected.isfinite().all():
        return  # weights are broken, or on their way
    mask = q.new_full((1, 1, tokens, tokens), torch.finfo(torch.float32).min).triu(1)
    attend = own_attention(module) or ALL_ATTENTION_FUNCTIONS["sdpa"]
    try:
        found = attend(module, q, k, v, mask, **given)[0]
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise Unsupported(
            f"the attention of {type(module).__name__} cannot be compared with topkv's: "
            f"{type(error).__name__}: {error}; use another cache"
        ) from error
    error = (found - expected).abs().max() if found.shape == expected.shape else torch.inf
    # Softmax itself is in float32, of scores that can be some thousands.
    if not error <= 1e-3 * v.abs().max():
        raise Unsupported(
            f"the attention of {type(module).__name__} is not the softmax over K and V that topkv "
            f"computes: the first {tokens} tokens give other results; use another cache"
        )
    _compared.add(module)
