"""The state of a TopkCache, in one object that is replaced as a whole.

Every call of a cache computes the next state and assigns it once, as its last action. If anything ends
the call before that (a refusal, missing memory, Ctrl-C, an error of the model's code), the earlier
state stays. Two changes happen in place, and a ``Pass`` notes them to undo them: the layers that
transformers keeps change one by one, and the core is given rows, which are cut off before the next use.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

import topkv
from topkv import InvalidArgument
from topkv.hf.ids import HeldIds
from topkv.hf.kept import KeptBefore, LayerState, of_rows
from topkv.hf.method_rows import MethodRows
from topkv.hf.options import Options
from topkv.hf.rows import SessionRows
from topkv.hf.texts_read import TextsRead


@dataclass(frozen=True)
class CacheMemory:
    """Bytes of a TopkCache.

    rows, index: host memory of the context, which its sessions share; 0 while the text is being read.
    sliding: tensors of layers with a sliding window. states: states of layers with a recurrence or a
    convolution."""

    rows: int
    index: int
    sliding: int
    states: int = 0


Rows = TextsRead | SessionRows | MethodRows

@dataclass
class Earlier:
    """States of recurrences that crop() can go back to."""

    tokens: int  # before the last call
    states: dict[int, LayerState]  # by the number of the layer


def check_can_crop(layer: Any, tokens: int, removed: int) -> None:
    """Raises unless a sliding-window layer can take back `removed` of the cache's `tokens` tokens."""
    is_full = tokens >= layer.sliding_window
    # Else transformers' layer would go on with what it has of its window.
    left = min(layer.sliding_window - 1, tokens - removed)
    has_earlier = layer.keys.shape[-2] - removed >= left
    if not has_earlier or (is_full and not layer.record_past):
        raise InvalidArgument(
            "crop of a cache with sliding-window layers; call activate_past_recording() before the "
            "tokens that may be taken back"
        )


@dataclass
class Pass:
    """A call that has begun: its changes, and the state to restore if it fails."""

    tokens: int  # that it adds to the cache
    held: int  # that it adds to the rows: of a context sharded by sequence this process has a part
    kept: KeptBefore  # the layers that transformers keeps
    before: State  # which it goes back to; a call that ends the text begins with freezing it
    padding: torch.Tensor | None = None  # its attention_mask, as its layers will be given it
    alike: int = 1  # a text that begins is that of so many batch rows, one after the other
    rows: Rows | None = None  # made by this call
    attended: set[int] = field(default_factory=set)  # layers


@dataclass(frozen=True)
class Text:
    """A text that was read to its end, or several, one for each batch row.

    transformers counts columns; the columns of a shorter text begin with padding."""

    contexts: tuple[topkv.Context, ...]  # one that all batch rows go on from, or one of each
    tokens: int  # columns; of all processes: of a context sharded by sequence each has some only
    ids: torch.Tensor  # [contexts, tokens]
    pads: tuple[int, ...] = (0,)  # of each context: columns of padding
    # The number of each layer that transformers keeps, and its state after the last token.
    kept: tuple[tuple[int, LayerState], ...] = ()
    prefill: str | None = None  # the mode in which it was read, if that is known

    @property
    def context(self) -> topkv.Context:
        """The context of the only text."""
        if any(context is not self.contexts[0] for context in self.contexts):
            raise InvalidArgument(
                f"this cache holds a batch of {len(self.contexts)} texts; expected one. cache.contexts "
                "has all; cache.batch_select_indices(torch.tensor([0])) keeps the first"
            )
        return self.contexts[0]

    def of_row(self, row: int) -> int:
        """The number of the context that a batch row continues."""
        return 0 if len(self.contexts) == 1 else row

    def kept_of(self, batch: int) -> dict[int, LayerState]:
        """The states of the kept layers for `batch` batch rows, by the number of the layer."""
        rows = [self.of_row(row) for row in range(batch)]
        return {number: of_rows(state, rows) for number, state in self.kept}

    def of_rows(self, rows: list[int]) -> Text:
        """The text with row rows[i] as batch row i."""
        if len(self.contexts) == 1:
            return self
        return replace(
            self,
            contexts=tuple(self.contexts[row] for row in rows),
            ids=self.ids[rows],
            pads=tuple(self.pads[row] for row in rows),
            kept=tuple((i, of_rows(state, rows)) for i, state in self.kept),
        )


@dataclass(frozen=True)
class State:
    """Texts being read, one per batch row; or a text, and the tokens after it in each batch row."""

    options: Options
    text: Text | None = None
    tokens: int = 0  # columns: of the text and those that follow it
    rows: Rows | None = None  # None: not made yet
    held: int = 0  # columns of `rows` that count; it may have more, of a call that failed
    pads: tuple[int, ...] = (0,)  # of each batch row: how many of them, the first, are padding
    ids: HeldIds = field(default_factory=HeldIds)
    records: bool = False  # tokens may be taken back
    was_cropped: bool = False
    earlier: Earlier | None = None
    open: Pass | None = None

    @property
    def batch(self) -> int:
        return len(self.pads)

    @property
    def is_empty(self) -> bool:
        """Whether the cache holds nothing now."""
        return self.text is None and self.tokens == 0

    def ends_text(self, tokens: int) -> bool:
        """Whether a call of `tokens` tokens is the first after the text."""
        reads = self.text is None and self.tokens > max(self.pads)
        return reads and (tokens == 1 or (self.records and self.was_cropped))

    @property
    def text_tokens(self) -> int:
        return 0 if self.text is None else self.text.tokens

    @property
    def texts(self) -> int:
        """The number of texts, read or being read."""
        if self.text is not None:
            return len({id(context) for context in self.text.contexts})
        return self.rows.texts if isinstance(self.rows, TextsRead) else 1

    def counts(self, held: int) -> list[int]:
        """The tokens of each batch row in `held` columns."""
        return [max(0, held - pads) for pads in self.pads]

    def tokens_of(self, row: int) -> int:
        """The tokens of a batch row: its text and the tokens after it, without padding."""
        text = 0 if self.text is None else self.text.tokens - self.text.pads[self.text.of_row(row)]
        return text + max(0, self.tokens - self.text_tokens - self.pads[row])

    def after(self, done: Pass) -> State:
        """The state after a pass."""
        states = done.kept.states()
        return replace(
            self,
            earlier=Earlier(self.tokens, states) if states else None,
            tokens=self.tokens + done.tokens,
            held=self.held + done.held,
            rows=done.rows or self.rows,
            open=None,
        )
