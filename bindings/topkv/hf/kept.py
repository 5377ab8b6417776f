"""Layers of a TopkCache that transformers keeps itself: sliding windows and recurrences.

A *layer state* has all that such a layer holds, by the names of its members:

- a sliding window: K and V of the last tokens;
- a recurrence: the states of its recurrence and its convolution, after the last token;
- an indexer with a key for a group of tokens: the parts of tokens whose group is not complete yet.

Models write the tensors of a recurrence in place. A layer state owns its tensors, so it does not change
with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.cache_utils import LinearAttentionCacheLayerMixin, LinearAttentionLayer

LayerState = dict[str, Any]

#: The members that transformers' sliding-window layers change.
_SLIDING = ("keys", "values", "cumulative_length", "is_initialized", "record_past")

#: The members of transformers' recurrences.
_RECURRENT = tuple(vars(LinearAttentionLayer()))


def is_recurrent(layer: Any) -> bool:
    return isinstance(layer, LinearAttentionCacheLayerMixin)


def is_sliding(layer: Any) -> bool:
    return getattr(layer, "is_sliding", False)


def is_pooling(layer: Any) -> bool:
    """Whether a layer has index keys of groups of tokens (layer.PoolingTopkLayer)."""
    return getattr(layer, "is_pooling", False)


def has_states(layer: Any) -> bool:
    """Whether a layer holds states after the last token, and not the tokens themselves."""
    return is_recurrent(layer) or is_pooling(layer)


def has_recurrence(layer: Any) -> bool:
    """Whether a recurrence has more than the last tokens of a convolution."""
    return any(layer.is_recurrent_states_initialized.values())


def is_used(layer: Any) -> bool:
    """Whether a layer holds something. Some versions have a recurrence for layers that attend nothing."""
    if is_recurrent(layer):
        return any(layer.is_conv_states_initialized.values()) or has_recurrence(layer)
    if is_pooling(layer):
        return bool(layer.pending)
    return layer.is_initialized


def can_crop(layer: Any, tokens: int, removed: int) -> bool:
    """Whether a layer with states can take back `removed` of the cache's `tokens` tokens: it is a
    convolution that recorded enough of its past."""
    if is_pooling(layer) or has_recurrence(layer) or not layer.record_past:
        return False
    sizes = layer.conv_kernel_size
    return all(
        states is None or states.shape[-1] - removed >= min(sizes[i], tokens - removed)
        for i, states in layer.conv_states.items()
    )


def members(layer: Any) -> LayerState:
    """What a layer holds now; its own tensors."""
    if is_pooling(layer):
        return {"pending": layer.pending}
    names = _RECURRENT if is_recurrent(layer) else _SLIDING
    return {name: getattr(layer, name) for name in names}


def mapped(state: LayerState, change: Callable[[torch.Tensor], torch.Tensor]) -> LayerState:
    """The layer state with changed tensors."""

    def of(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: of(one) for key, one in value.items()}
        return change(value) if isinstance(value, torch.Tensor) else value

    return {name: of(value) for name, value in state.items()}


def owned(state: LayerState) -> LayerState:
    """A copy with tensors of its own, which may be written to within and outside of inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        return mapped(state, torch.clone)


def of_rows(state: LayerState, rows: Sequence[int]) -> LayerState:
    """The layer state with row rows[i] as batch row i."""
    with torch.inference_mode(False), torch.no_grad():
        return mapped(state, lambda x: x[torch.tensor(rows, device=x.device)])


def put(layer: Any, state: LayerState) -> None:
    """Gives a layer a state, whose tensors are the layer's afterwards."""
    if is_sliding(layer) and state["keys"] is not None and not layer.is_initialized:
        layer.lazy_initialization(state["keys"], state["values"])
    for name, value in state.items():
        setattr(layer, name, value)


def fresh(layer: Any) -> LayerState:
    """The state of a layer with states that has read nothing."""
    if is_pooling(layer):
        return {"pending": {}}
    return dict(vars(LinearAttentionLayer(number_of_states=layer.number_of_states)))


def forget(layer: Any) -> None:
    """reset() for a layer, which can then have another number of batch rows."""
    if has_states(layer):
        put(layer, fresh(layer))
    else:
        put(layer, dict.fromkeys(("keys", "values")) | {"cumulative_length": 0})
        layer.is_initialized = layer.record_past = False


def _last(states: torch.Tensor, size: int) -> torch.Tensor:
    """The last `size` columns of a convolution's state, after zeros if it has fewer."""
    missing = size - states.shape[-1]
    return torch.nn.functional.pad(states, (missing, 0)) if missing > 0 else states[..., -size:]


def at_end(layer: Any, held: LayerState) -> LayerState:
    """The state of a layer after the last token, without what it recorded of its past. held: its
    members; they are not changed."""
    if is_recurrent(layer):
        sizes = held["conv_kernel_size"]
        states = {i: None if x is None else _last(x, sizes[i]) for i, x in held["conv_states"].items()}
        return owned(held | {"conv_states": states, "record_past": False})
    if is_pooling(layer):
        return owned(held)
    kept = slice(max(0, held["keys"].shape[-2] - layer.sliding_window + 1), None)
    last = {name: held[name][:, :, kept] for name in ("keys", "values")}
    return owned(held | last | {"record_past": False})


class KeptBefore:
    """The state of layers before a call."""

    def __init__(self, layers: Sequence[tuple[int, Any]]):
        # The tensors of other layers are replaced, and not written to.
        self._before = {
            i: (x, owned(members(x)) if is_recurrent(x) else members(x)) for i, x in layers
        }

    def updated(self, number: int, keys: torch.Tensor, values: torch.Tensor, tokens: int) -> None:
        """Notes that sliding-window layer `number` took `tokens` tokens and gives attention these K and
        V.

        They begin with the earlier K and V, so views of them replace the earlier tensors, which can
        then be freed."""
        layer, before = self._before[number]
        if before["keys"] is None:
            return
        # A layer that records its past keeps more than it gives to attention.
        full = (layer.keys, layer.values) if layer.record_past else (keys, values)
        if full[0].shape[-2] == before["keys"].shape[-2] + tokens:
            before["keys"], before["values"] = (x[..., :-tokens, :] for x in full)

    def ends(self) -> tuple[tuple[int, LayerState], ...]:
        """The state of each layer at the end of a text that ended before the call."""
        return tuple((i, at_end(layer, held)) for i, (layer, held) in self._before.items())

    def states(self) -> dict[int, LayerState]:
        """The states of layers that have states, by the number of the layer."""
        return {i: held for i, (layer, held) in self._before.items() if has_states(layer)}

    def undo(self) -> None:
        for layer, before in self._before.values():
            for name, value in before.items():
                setattr(layer, name, value)


def tensor_bytes(state: LayerState) -> int:
    """The bytes of a layer state's tensors."""
    total = 0

    def count(x: torch.Tensor) -> torch.Tensor:
        nonlocal total
        total += x.numel() * x.element_size()
        return x

    mapped(state, count)
    return total
