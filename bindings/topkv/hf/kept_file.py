"""The states of the layers that transformers keeps, as bytes beside the rows of a context file.

The bytes are a file of safetensors with one batch row. A tensor is called by the number of the layer, the
member of the layer, and for recurrences the number of the state: "3.keys", "4.conv_states.0". Parts of unfinished index
keys have their names: "3.pending.keys".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import safetensors
import safetensors.torch
import torch

from topkv import FileError
from topkv.hf import kept
from topkv.hf.kept import LayerState

_STATES = ("conv_states", "recurrent_states")
_FLAGS = ("has_previous_state", *(f"is_{name}_initialized" for name in _STATES))


def pack(states: Sequence[tuple[int, LayerState]], tokens: int) -> bytes:
    """The bytes of layer states with one batch row, after a text of `tokens` tokens."""
    tensors = {}
    for number, state in states:
        if "keys" in state:
            for name in ("keys", "values"):
                # Without the padding of a batch, which a file leaves out.
                first = max(0, state[name].shape[-2] - tokens)
                tensors[f"{number}.{name}"] = state[name][:, :, first:]
            continue
        if "pending" in state:
            tensors |= {f"{number}.pending.{name}": x for name, x in state["pending"].items()}
            continue
        for name in _FLAGS:
            tensors[f"{number}.{name}"] = torch.tensor([int(x) for x in state[name].values()])
        for name in _STATES:
            for i, x in state[name].items():
                if x is not None:
                    tensors[f"{number}.{name}.{i}"] = x
    if not tensors:
        return b""
    return safetensors.torch.save({name: x.cpu().contiguous() for name, x in tensors.items()})


class _Unpacking:
    """The tensors of a file, each of which is taken once."""

    def __init__(self, data: bytes, path: str, device: torch.device):
        self._path, self._device = path, device
        try:
            self._tensors = safetensors.torch.load(data)
        except (safetensors.SafetensorError, ValueError, KeyError) as error:
            self.fail(f"they are no safetensors ({error})")

    def fail(self, what: str) -> Any:
        raise FileError(f"{self._path}: the states of its layers: {what}")

    def take(self, name: str, dims: int | None = None, ids: bool = False) -> torch.Tensor:
        """A tensor [1, ...] of finite floats, on the device. dims: its dimensions, if they are known. ids: or
        of ids of tokens, which some models keep behind the state of a layer's convolution."""
        x = self._tensors.pop(name, None)
        if x is None:
            self.fail(f"{name} is missing; save the text again with the model that reads it")
        if x.ndim < 2 or x.shape[0] != 1 or (dims or x.ndim) != x.ndim or not x.numel():
            self.fail(f"{name} has the shape {list(x.shape)}; expected [1, …]")
        is_ids = ids and x.dtype == torch.int64
        if not is_ids and not (x.is_floating_point() and bool(x.isfinite().all())):
            self.fail(f"{name} has values that are not finite numbers")
        return x.to(self._device)

    def flags(self, name: str, count: int) -> dict[int, bool]:
        x = self._tensors.pop(name, None)
        flags = [] if x is None or x.ndim != 1 else x.tolist()
        if len(flags) != count or not set(flags) <= {0, 1}:
            self.fail(f"{name} is missing or does not have {count} values of 0 or 1")
        return {i: bool(flag) for i, flag in enumerate(flags)}

    def names(self) -> set[str]:
        """The names of the tensors that were not taken."""
        return set(self._tensors)


def unpack(
    data: bytes, layers: Sequence[tuple[int, Any]], tokens: int, path: str, device: torch.device
) -> tuple[tuple[int, LayerState], ...]:
    """The states of these numbered layers, whose text has `tokens` tokens. Raises FileError for bytes
    that are not such states; the message begins with path."""
    tensors = _Unpacking(data, path, device)
    states = []
    for number, layer in layers:
        of = _pending if kept.is_pooling(layer) else _recurrence if kept.is_recurrent(layer) else _window
        states.append((number, of(tensors, number, layer, tokens)))
    if unknown := tensors.names():
        tensors.fail(f"{min(unknown)!r:.60} is of no layer of this model")
    return tuple(states)


def _window(tensors: _Unpacking, number: int, layer: Any, tokens: int) -> LayerState:
    keys, values = (tensors.take(f"{number}.{name}", 4) for name in ("keys", "values"))
    expected = min(tokens, layer.sliding_window - 1)
    if keys.shape[-2] != expected or values.shape[:-1] != keys.shape[:-1]:
        tensors.fail(
            f"{number}.keys and {number}.values have the shapes {list(keys.shape)} and "
            f"{list(values.shape)}; expected {expected} tokens"
        )
    state = {"keys": keys, "values": values, "cumulative_length": tokens}
    return state | {"is_initialized": True, "record_past": False}


def _pending(tensors: _Unpacking, number: int, layer: Any, tokens: int) -> LayerState:
    pending = {name: tensors.take(f"{number}.pending.{name}", 3) for name in layer.part_names}
    for name, x in pending.items():
        if x.shape[1] != layer.most_pending:
            tensors.fail(
                f"{number}.pending.{name} has the shape {list(x.shape)}; expected {layer.most_pending} tokens"
            )
    return {"pending": pending}


def _recurrence(tensors: _Unpacking, number: int, layer: Any, tokens: int) -> LayerState:
    count = layer.number_of_states
    state = kept.fresh(layer) | {x: tensors.flags(f"{number}.{x}", count) for x in _FLAGS}
    for name in _STATES:
        state[name] = {
            i: tensors.take(f"{number}.{name}.{i}", ids=name == "conv_states" and i > 0) if there else None
            for i, there in state[f"is_{name}_initialized"].items()
        }
    convolutions = {i: x for i, x in state["conv_states"].items() if x is not None}
    state["conv_kernel_size"] |= {i: x.shape[-1] for i, x in convolutions.items()}
    for x in convolutions.values():
        state |= {"dtype": x.dtype, "device": x.device}
    return state
