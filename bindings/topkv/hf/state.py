"""What a TopkCache holds, in one object that is replaced as a whole.

Every call of a cache works out the state after it and puts it in place with a single assignment,
the last thing it does. Whatever ends a call before that (a refusal, memory that is missing,
Ctrl-C, an error of the model's own code) leaves the state before it. What cannot be worked out
aside is noted in a ``Pass`` and undone: the tensors of sliding-window layers, which transformers
replaces layer by layer, and rows that the core was given, which are cut off before the next use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import topkv
from topkv import InvalidArgument
from topkv.hf.ids import HeldIds
from topkv.hf.method_rows import MethodRows
from topkv.hf.options import Options
from topkv.hf.rows import PrefillRows, SessionRows


@dataclass(frozen=True)
class CacheMemory:
    """Bytes of a TopkCache. rows and index: host memory of the context, shared by its sessions
    (0 while the text is being read); sliding: tensors of layers with a sliding window."""

    rows: int
    index: int
    sliding: int


#: What transformers' sliding-window layers change.
_SLIDING = ("keys", "values", "cumulative_length", "is_initialized", "record_past")


class SlidingBefore:
    """What sliding-window layers were before a call."""

    def __init__(self, layers: Sequence[tuple[int, Any]]):
        self._before = {i: (x, {name: getattr(x, name) for name in _SLIDING}) for i, x in layers}

    def updated(self, number: int, keys: torch.Tensor, values: torch.Tensor, tokens: int) -> None:
        """Layer `number` took so many tokens and its attention is given these K and V, which begin
        with those of before: a view of them lets the earlier tensors go."""
        layer, before = self._before[number]
        if before["keys"] is None:
            return
        # A layer that records its past keeps more than it gives to attention.
        full = (layer.keys, layer.values) if layer.record_past else (keys, values)
        if full[0].shape[-2] == before["keys"].shape[-2] + tokens:
            before["keys"], before["values"] = (x[..., :-tokens, :] for x in full)

    def undo(self) -> None:
        for layer, before in self._before.values():
            for name, value in before.items():
                setattr(layer, name, value)


def forget(layer: Any) -> None:
    """What reset() is to a sliding-window layer."""
    layer.keys = layer.values = None
    layer.is_initialized, layer.cumulative_length, layer.record_past = False, 0, False


def check_can_crop(layer: Any, tokens: int, removed: int) -> None:
    """Raises unless a sliding-window layer can take back so many of the cache's tokens."""
    is_full = tokens >= layer.sliding_window
    # Else transformers' layer would go on with what it has of its window.
    left = min(layer.sliding_window - 1, tokens - removed)
    has_earlier = layer.keys.shape[-2] - removed >= left
    if not has_earlier or (is_full and not layer.record_past):
        raise InvalidArgument(
            "crop of a cache with sliding-window layers: call activate_past_recording() before the "
            "tokens that may be taken back"
        )


@dataclass
class Pass:
    """A call that has begun: what it will have changed, and what it has to undo if it fails."""

    tokens: int  # that it adds to the cache
    held: int  # that it adds to the rows: of a context sharded by sequence this process has a part
    sliding: SlidingBefore
    before: State  # which it goes back to; a call that ends the text begins with freezing it
    rows: PrefillRows | SessionRows | MethodRows | None = None  # made by this call
    attended: set[int] = field(default_factory=set)  # layers


@dataclass(frozen=True)
class Text:
    """A text that was read to its end."""

    context: topkv.Context
    tokens: int  # of all processes: of a context sharded by sequence each has some only
    ids: torch.Tensor
    # Per sliding-window layer: its number, K and V of the last tokens, tokens in all.
    sliding: tuple[tuple[int, torch.Tensor, torch.Tensor, int], ...] = ()


@dataclass(frozen=True)
class State:
    """A text being read, or a text and what follows it in so many batch rows."""

    options: Options
    text: Text | None = None
    tokens: int = 0  # of the text and those that follow it
    rows: PrefillRows | SessionRows | MethodRows | None = None  # None: not made yet
    held: int = 0  # tokens of `rows` that count; it may have more, of a call that failed
    batch: int = 1
    ids: HeldIds = field(default_factory=HeldIds)
    records: bool = False  # tokens may be taken back
    was_cropped: bool = False
    open: Pass | None = None

    def ends_text(self, tokens: int) -> bool:
        """A call of so many more tokens is the first after the text."""
        reads = self.text is None and self.tokens > 0
        return reads and (tokens == 1 or (self.records and self.was_cropped))

    @property
    def text_tokens(self) -> int:
        return 0 if self.text is None else self.text.tokens

    def after(self, done: Pass) -> State:
        """The state when a pass has ended."""
        return replace(
            self,
            tokens=self.tokens + done.tokens,
            held=self.held + done.held,
            rows=done.rows or self.rows,
            open=None,
        )
