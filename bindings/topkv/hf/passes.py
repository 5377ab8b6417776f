"""The calls of a model, as the cache sees them. A call counts as a whole, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

import topkv
from topkv import InvalidArgument, Unsupported
from topkv.hf.batch import check_batch, pads_after, rows_alike
from topkv.hf.ids import HeldIds
from topkv.hf.indexers import Indexers
from topkv.hf.kept import (
    KeptBefore,
    LayerState,
    at_end,
    has_states,
    is_sliding,
    is_used,
    members,
)
from topkv.hf.method import PreparedMethod
from topkv.hf.options import Options
from topkv.hf.progress import Reading
from topkv.hf.rows import SessionRows
from topkv.hf.state import Pass, State


class Passes:
    """The part of an Engine that begins and ends forward passes.

    In every forward pass begin() is called by the first layer that attends, then attend() by each topkv
    layer in turn, and attended() when a layer that attends is done. A pass outside of in_call() counts
    when all of these layers are done. A pass within in_call() counts when the call of the model has
    returned. Until then `state` is the state before the pass.

    Layers with a recurrence do not attend. They call reach() before they read or write their state,
    perhaps before begin(), and take part in passes within in_call() only.
    """

    def __init__(self, state: State):
        self.state = state
        self.layers: Sequence[Any] = ()  # of the cache, all of them
        self.attending: list[int] = []  # numbers of the layers that attend
        self.numbers: dict[int, int] = {}  # of the layers that topkv attends, among them
        self.row_layer: list[int] = []  # AttentionShape.row_layer
        self.indexers: Indexers | None = None  # which choose the rows that layers attend
        self.restarts = ""  # families.restarting_layer
        self.device: topkv.Device | None = None
        self.reading: Reading | None = None
        self.method: PreparedMethod | None = None  # finds the rows instead of an index
        self.reads_until = 0  # tokens that the text will have, when that is known
        self.prompts = 0  # that generate was given, each for as many batch rows; 0: not known
        self.mask: torch.Tensor | None = None  # attention_mask of the call that is to begin
        self.torch_device: torch.device | None = None  # of the model, once it attended
        self._in_call: Any = None  # what in_call() was given, while it lasts
        self._reached: KeptBefore | None = None  # the layers before a pass that has not begun yet
        self._spoiled = False  # a pass has begun to give tokens to the rows and did not end

    # ---- what it holds ----

    @property
    def options(self) -> Options:
        return self.state.options

    @property
    def tokens(self) -> int:
        """Tokens of the cache, including an open pass that all layers have done."""
        done = self.state.open
        return self.state.tokens + (done.tokens if done and self._has_all(done) else 0)

    @property
    def sessions(self) -> list[topkv.Session]:
        self.settle_between_calls()
        if not isinstance(self.state.rows, SessionRows):
            return []
        if self.state.open is None:
            self.prepare()
        return self.state.rows.sessions

    def set_layers(self, layers: Sequence[Any], attending: list[int]) -> None:
        """layers: of the cache, all of them. attending: numbers of the layers that attend."""
        self.layers, self.attending = layers, attending

    def sliding_layers(self) -> list[tuple[int, Any]]:
        return [(i, x) for i, x in enumerate(self.layers) if is_sliding(x)]

    def layers_with_states(self) -> list[tuple[int, Any]]:
        return [(i, x) for i, x in enumerate(self.layers) if has_states(x)]

    def kept_layers(self) -> list[tuple[int, Any]]:
        """The numbered layers that hold more than rows: windows, which transformers keeps, and states."""
        return [(i, x) for i, x in enumerate(self.layers) if is_sliding(x) or has_states(x)]

    def kept_at_end(self) -> tuple[tuple[int, LayerState], ...]:
        """The state of the kept layers after the last token that counts."""
        if self._reached is not None:
            return self._reached.ends()
        return tuple((i, at_end(layer, members(layer))) for i, layer in self.kept_layers())

    # ---- calls that change everything or nothing ----

    def _has_all(self, done: Pass) -> bool:
        return len(done.attended) == len(self.attending)

    def settle(self) -> None:
        """Ends an open pass: it counts if all layers are done; otherwise it is undone."""
        if self.state.open is not None and self._has_all(self.state.open):
            self._commit()
        elif self.state.open is not None or self._in_call is None:
            self.undo()

    def settle_between_calls(self) -> None:
        """settle(), unless a call of the model is under way."""
        if self._in_call is None:
            self.settle()

    def _commit(self) -> None:
        self._spoiled = False
        self.state = self.state.after(self.state.open)

    def undo(self) -> None:
        """Undoes an open pass, and a pass that has not begun yet. It can be interrupted and repeated."""
        if self.state.open is not None or self._reached is not None:
            self._undo()

    def _undo(self) -> None:
        if self._reached is not None:
            self._reached.undo()
            self._reached = None
        if (done := self.state.open) is not None:
            done.kept.undo()
            if done.before.rows is not (self.state.rows or done.rows):
                self._spoiled = False  # those of this pass are let go
            self.state = done.before
            if self.reading is not None:
                self.reading.pause()

    def prepare(self) -> None:
        """Cuts off rows that a failed call, or crop(), left."""
        state = self.state
        if state.rows is None:
            return
        try:
            state.rows.cut(state.counts(state.held), self._spoiled)
        except InvalidArgument as error:
            raise InvalidArgument(
                f"the rows of this cache are lost ({error}); call cache.reset() and read the text again"
            ) from error
        self._spoiled = False

    @contextmanager
    def change(self) -> Iterator[Callable[..., None]]:
        """For calls that change the kept layers in place. Yields a function that sets members of
        the new state. If the call ends before that, everything is as before."""
        self.settle()
        before = self.state
        self.state = replace(before, open=Pass(0, 0, KeptBefore(self.kept_layers()), before))

        def put(state: State | None = None, **members: Any) -> None:
            self.state = replace(state or before, **members)

        try:
            yield put
        finally:
            self.undo()

    def in_call(self, ids: torch.Tensor | None, call: Callable[[], Any]) -> Any:
        """Runs call(), a call of a model with these ids. Its pass counts when it returns."""
        if self._in_call is not None:  # a model calls the models it consists of
            return call()
        self.settle()
        try:
            self.mask = None
            self._in_call = (ids,)
            result = call()
            self._end_call()
            self._in_call = None
        except BaseException:
            self._in_call = None
            self.undo()
            raise
        return result

    def _end_call(self) -> None:
        done = self.state.open
        if done is None:
            return
        if not self._has_all(done):
            raise InvalidArgument(
                f"{len(done.attended)} of the {len(self.attending)} layers of the cache took the tokens of "
                "this call; expected all. Make the cache with the model's own config, model.config"
            )
        self._commit()

    # ---- a forward pass ----

    def reach(self, number: int) -> None:
        """Layer `number`, with a recurrence, is about to read or write its state."""
        if self._in_call is None:
            raise InvalidArgument(
                "this model has layers with a recurrence, whose state topkv puts back if a call fails; "
                "call the model itself, model(ids, past_key_values=cache), and not its forward method"
            )
        if self.state.open is not None and number < self.attending[0]:
            self.settle()  # the model runs its layers again within one call
        if self.state.open is None and self._reached is None:
            self._reached = KeptBefore(self.kept_layers())

    def begin(self, keys: torch.Tensor) -> None:
        """Begins a pass with the K of its tokens in the first layer, after all checks that are possible
        before a layer takes them."""
        self.settle()
        batch, tokens = keys.shape[0], keys.shape[-2]
        mask, self.mask = self.mask, None
        check_batch(self.state, batch)
        if keys.requires_grad and torch.is_grad_enabled():
            raise Unsupported("topkv's layers have no backward pass: run under torch.no_grad()")
        before = self.state
        first = self.attending[0]
        if self._reached is None and any(i < first and is_used(x) for i, x in self.layers_with_states()):
            raise Unsupported(
                "layers of this model reach the states of their recurrences in a way that topkv does not "
                "know; use another cache"
            )
        if self.restarts and tokens > 1 and not before.is_empty:
            raise Unsupported(
                f"{self.restarts} of this model begins its recurrence anew in a call of several tokens, "
                f"and the cache holds {before.tokens}; give it a text in one call (for generate a "
                f"prefill_chunk_size of at least the prompt's length), then one token a call"
            )
        if before.is_empty:
            self.state = replace(before, rows=None, pads=(0,) * batch, ids=HeldIds())
        try:
            pads = self._pads(mask, tokens)
            ids = (self._in_call or (None,))[0]
            alike = 1
            if before.ends_text(tokens):
                self.freeze()
            elif before.text is None:
                alike = rows_alike(self.state, self.prompts, ids, pads)
            part = self.part_of(tokens)[1]
            self.prepare()
            state = replace(self.state, pads=pads)
            if state.rows is not None:
                counts = zip(state.counts(state.held), state.counts(state.held + part))
                state.rows.make_room([after - held for held, after in counts])
            state.ids.put(state.tokens, ids, batch, tokens)
            if state.text is None:
                self._report(tokens)
            kept = self._reached or KeptBefore(self.kept_layers())
            self.state = replace(state, open=Pass(tokens, part, kept, before, mask, alike))
            self._reached = None
        except BaseException:
            self.state = before  # the text is being read again, if this froze it
            raise

    def _pads(self, mask: torch.Tensor | None, tokens: int) -> tuple[int, ...]:
        """Columns of padding in each batch row after a call adds `tokens` columns; if a text is frozen,
        only columns after it count."""
        pads = pads_after(self.state, mask, tokens)
        if not any(pads):
            return pads
        if self.options.shards is not None:
            raise Unsupported('padding with shard="sequence"; give texts of equal length')
        is_behind = self.state.text is not None or self.state.ends_text(tokens)
        if is_behind and self.kept_layers():
            what = "shorten the windows of sliding-window layers"
            if self.layers_with_states():
                what = "change the states of layers with a recurrence or with index keys of groups"
            raise Unsupported(
                f"padding after a text would {what}; give questions of equal length, or each to a "
                "cache.session() of its own"
            )
        return pads

    def _report(self, tokens: int) -> None:
        if self.reading is None:
            self.reading = Reading(*self.who_reports())
        total = max(self.reads_until, self.options.max_cache_len, self.state.tokens + tokens)
        known = max(self.reads_until, self.options.max_cache_len) >= self.state.tokens + tokens
        self.reading.begin(self.state.tokens, tokens, total if known else None)

    def who_reports(self) -> tuple[bool | None, bool]:
        """Whether progress is wanted, and whether this process reports it."""
        shards = self.options.shards
        return self.options.progress, shards is None or shards.is_first

    def attended(self, index: int) -> None:
        """Notes that layer `index`, among all layers, has attended the tokens of the pass."""
        done = self.open_pass()
        done.attended.add(index)
        if self.reading is not None and self.state.text is None:
            self.reading.layer_done(len(done.attended), len(self.attending))
        if self._has_all(done) and self._in_call is None:
            self._commit()

    def open_pass(self) -> Pass:
        if self.state.open is None:
            raise InvalidArgument(
                "a layer of this cache is given tokens that the first layer was not given; call the "
                "model as a whole"
            )
        return self.state.open

    def update_sliding(
        self, index: int, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V that transformers' layer gives to attention."""
        done = self.open_pass()
        layer, tokens = self.layers[index], keys.shape[-2]
        full = layer.update(keys, values, *args, **kwargs)
        done.kept.updated(index, *full, tokens)
        # One that records its past may give more than its masks are for.
        seen = slice(-(layer.sliding_window - 1 + tokens), None)
        return full[0][:, :, seen], full[1][:, :, seen]

    def new_counts(self, done: Pass) -> list[int]:
        """The number of tokens of a pass without padding, in each batch row."""
        after = self.state.tokens - self.state.text_tokens + done.tokens
        return [min(done.tokens, count) for count in self.state.counts(after)]

    def starts(self) -> list[tuple[int, int]]:
        """For each batch row: the first token of the pass that is not padding, and the number of tokens
        of the row before it."""
        done = self.open_pass()
        return [
            (done.tokens - count, self.state.tokens_of(row))
            for row, count in enumerate(self.new_counts(done))
        ]

    def require_batch(self, batch: int) -> None:
        """Raises unless a call that is to begin has the number of batch rows that the cache holds."""
        check_batch(self.state, batch)

    def require_mask(self, mask: torch.Tensor | None) -> None:
        """Raises unless a layer is given the padding that the pass began with."""
        known = self.open_pass().padding
        if mask is known or (known is None and bool(mask.all())):
            return
        if known is None or mask is None or not torch.equal(known.bool(), mask.bool()):
            raise Unsupported(
                "this model gives its layers another attention_mask than it was called with; give "
                "it texts without padding, or use another cache"
            )

    def part_of(self, tokens: int) -> tuple[int, int]:
        """The tokens of a call whose rows this process keeps: the first, and their number."""
        shards = self.options.shards
        if shards is None:
            return 0, tokens
        if self.state.text is None:
            return shards.prefill_part(tokens)
        return shards.session_part(tokens)

    def freeze(self, index: str | None = None) -> None:
        """Implemented by Engine."""
        raise NotImplementedError
