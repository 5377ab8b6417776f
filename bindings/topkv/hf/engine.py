"""What stands behind the layers of a cache: the text being read, or sessions over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

import topkv
from topkv import InvalidArgument, Unsupported
from topkv.hf import options as option
from topkv.hf.ids import HeldIds
from topkv.hf.method import PreparedMethod
from topkv.hf.method_rows import MethodRows
from topkv.hf.options import Options
from topkv.hf.progress import Reading, building
from topkv.hf.rows import (
    PrefillRows,
    SessionRows,
    Step,
    core_layout,
    on_device_of,
    open_device,
    row_dtype,
    shape_of,
)
from topkv.hf.state import Pass, SlidingBefore, State, Text


class Engine:
    """Two stages: it reads a text; then, frozen, it has a session per batch row over the text.

    begin() is called first of all in every forward pass, attend() by each topkv layer in turn,
    attended() when a layer of either kind is done. The pass counts when all are, or when the call
    of the model that it is part of has returned (see in_call()); until then `state` is the one
    before it.
    """

    def __init__(self, state: State):
        self.state = state
        self.layers: Sequence[Any] = ()  # of the cache, all of them
        self.device: topkv.Device | None = None
        self.reading: Reading | None = None
        self.method: PreparedMethod | None = None  # finds the rows instead of an index
        self.reads_until = 0  # tokens that the text will have, when that is known
        self.torch_device: torch.device | None = None  # of the model, once it attended
        self._in_call: Any = None  # what in_call() was given, while it lasts
        self._spoiled = False  # a pass has begun to give tokens to the rows and did not end

    # ---- what it holds ----

    @property
    def options(self) -> Options:
        return self.state.options

    @property
    def context(self) -> topkv.Context | None:
        return None if self.state.text is None else self.state.text.context

    @property
    def tokens(self) -> int:
        """Of the cache; those of a pass once all layers have them."""
        done = self.state.open
        return self.state.tokens + (done.tokens if done and self._has_all(done) else 0)

    @property
    def sessions(self) -> list[topkv.Session]:
        self.settle_between_calls()
        if not isinstance(self.state.rows, SessionRows):
            return []
        if self.state.open is None:
            self._prepare()
        return self.state.rows.sessions

    def sliding_layers(self) -> list[tuple[int, Any]]:
        return [(i, x) for i, x in enumerate(self.layers) if x.is_sliding]

    # ---- calls that change all of it or nothing ----

    def _has_all(self, done: Pass) -> bool:
        return len(done.attended) == len(self.layers)

    def settle(self) -> None:
        """Ends a pass that nobody ended: it counts if all layers are done, else it is undone."""
        if self.state.open is not None and self._has_all(self.state.open):
            self._commit()
        elif self.state.open is not None:
            self.undo()

    def settle_between_calls(self) -> None:
        """The same, unless a call of the model is under way."""
        if self._in_call is None:
            self.settle()

    def _commit(self) -> None:
        self._spoiled = False
        self.state = self.state.after(self.state.open)

    def undo(self) -> None:
        if (done := self.state.open) is not None:
            done.sliding.undo()
            if done.before.rows is not (self.state.rows or done.rows):
                self._spoiled = False  # those of this pass are let go
            self.state = done.before
            if self.reading is not None:
                self.reading.pause()

    def _prepare(self, more: int = 0) -> None:
        """Cuts off what a call that failed, or crop(), left in the rows and makes room for more."""
        state = self.state
        if state.rows is None:
            return
        try:
            state.rows.cut(state.held, self._spoiled)
        except InvalidArgument as error:
            raise InvalidArgument(
                f"the rows of this cache are lost ({error}): cache.reset(), and read the text again"
            ) from error
        self._spoiled = False
        if more:
            state.rows.make_room(more)

    @contextmanager
    def change(self) -> Iterator[Callable[..., None]]:
        """For calls that change sliding-window layers in place. Yields what takes the members of
        the state afterwards; unless the call gets there, everything is as before."""
        self.settle()
        before = self.state
        self.state = replace(before, open=Pass(0, 0, SlidingBefore(self.sliding_layers()), before))

        def put(state: State | None = None, **members: Any) -> None:
            self.state = replace(state or before, **members)

        try:
            yield put
        finally:
            self.undo()

    def in_call(self, ids: torch.Tensor | None, call: Callable[[], Any]) -> Any:
        """call() of a model with these ids: a pass counts when it returns."""
        if self._in_call is not None:  # a model calls the models it consists of
            return call()
        self.settle()
        try:
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
                f"{len(done.attended)} of the {len(self.layers)} layers of the cache took the "
                "tokens of this call: make the cache with the model's own config, model.config"
            )
        self._commit()

    # ---- a forward pass ----

    def begin(self, keys: torch.Tensor) -> None:
        """A pass begins with K of its tokens in the first layer. Checks what can be checked before
        a layer takes them."""
        self.settle()
        batch, tokens = keys.shape[0], keys.shape[-2]
        self._check_batch(batch)
        if keys.requires_grad and torch.is_grad_enabled():
            raise Unsupported("topkv's layers have no backward pass: run under torch.no_grad()")
        before = self.state
        try:
            if before.ends_text(tokens):
                self.freeze()
            part = self._part(tokens)[1]
            self._prepare(part)
            state = self.state
            state.ids.put(state.tokens, (self._in_call or (None,))[0], batch, tokens)
            if state.text is None:
                self._report(tokens)
            sliding = SlidingBefore(self.sliding_layers())
            self.state = replace(state, open=Pass(tokens, part, sliding, before))
        except BaseException:
            self.state = before  # the text is being read again, if this froze it
            raise

    def _check_batch(self, batch: int) -> None:
        if self.context is not None:
            if batch != self.state.batch:
                raise InvalidArgument(
                    f"a batch of {batch} for a cache of {self.state.batch} rows: make one with "
                    f"cache.session(batch={batch})"
                )
        elif batch != 1:
            raise InvalidArgument(
                f"a batch of {batch} (of num_beams or num_return_sequences, perhaps): topkv reads "
                "one text at a time. Read it once with a batch of 1 into a cache of your own, "
                f"TopkCache(model.config), then generate with cache.session(batch={batch})"
            )

    def _report(self, tokens: int) -> None:
        if self.reading is None:
            self.reading = Reading(*self.who_reports())
        total = max(self.reads_until, self.options.max_cache_len, self.state.tokens + tokens)
        known = max(self.reads_until, self.options.max_cache_len) >= self.state.tokens + tokens
        self.reading.begin(self.state.tokens, tokens, total if known else None)

    def who_reports(self) -> tuple[bool | None, bool]:
        """Whether words about long work are wanted, and are this process's to say."""
        shards = self.options.shards
        return self.options.progress, shards is None or shards.is_first

    def attended(self, index: int) -> None:
        """Layer `index`, of all of them, has taken the tokens of the pass and attended them."""
        done = self._open_pass()
        done.attended.add(index)
        if self.reading is not None and self.state.text is None:
            self.reading.layer_done(len(done.attended), len(self.layers))
        if self._has_all(done) and self._in_call is None:
            self._commit()

    def _open_pass(self) -> Pass:
        if self.state.open is None:
            raise InvalidArgument(
                "a layer of this cache is given tokens, and the first layer was not: call the "
                "model as a whole"
            )
        return self.state.open

    def update_sliding(
        self, index: int, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What transformers' layer gives to attention."""
        done = self._open_pass()
        layer, tokens = self.layers[index], keys.shape[-2]
        full = layer.update(keys, values, *args, **kwargs)
        done.sliding.updated(index, *full, tokens)
        # One that records its past may give more than its masks are for.
        seen = slice(-(layer.sliding_window - 1 + tokens), None)
        return full[0][:, :, seen], full[1][:, :, seen]

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        softcap: float,
        sink_scores: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attention of one topkv layer. query [batch, q_heads, tokens, head_dim], keys and values
        [batch, kv_heads, tokens, head_dim] -> [batch, tokens, q_heads, head_dim].
        sink_scores: [q_heads], one more score under the softmax whose row has a value of zero."""
        with on_device_of(query):
            return self._attend(layer, query, keys, values, scale, softcap, sink_scores)

    def _attend(
        self,
        layer: int,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        softcap: float,
        sink_scores: torch.Tensor | None,
    ) -> torch.Tensor:
        done = self._open_pass()
        rows = self.state.rows or done.rows
        if rows is None:
            rows = done.rows = self._make_rows(query, keys, values, scale, softcap)
        self._check(rows.shape, query, scale, softcap)
        q, k, v = (core_layout(x) for x in (query, keys, values))
        out = torch.empty_like(q)
        shards = self.options.shards
        lse = q.new_empty(q.shape[:-1]) if shards or sink_scores is not None else None
        part = self._part(q.shape[1])
        self._check_room(part[1])
        self._spoiled = True
        rows.attend(Step(layer, q, k, v, out, lse, *part))
        if shards is not None:
            out, lse = shards.merge(out, lse)
        if sink_scores is not None:
            out = out * torch.sigmoid(lse - sink_scores.to(lse.dtype)).unsqueeze(-1)
        return out.to(query.dtype)

    # ---- the text and its sessions ----

    def freeze(self, index: str | None = None) -> None:
        """Ends the text and builds the index, if they are not there yet."""
        self.settle()
        state = self.state
        index = state.options.session["index"] if index is None else index
        text = state.text or self._text_read()
        if not text.context.has_index(index):
            text = self._with_index(text, index)
        session = state.options.session | {"index": index}
        text = self._with_tail(text, session)
        options = replace(state.options, session=session)
        if state.text is None:
            ids = HeldIds(text.ids)
            state = replace(state, rows=None, held=0, ids=ids)
        self.state = replace(state, options=options, text=text)
        self.reading = None

    def add_tail(self, options: Options) -> None:
        """Builds the tail of sessions with these options over the text, if it is not there yet."""
        text = self.state.text
        self.state = replace(self.state, text=self._with_tail(text, options.session))

    def _with_tail(self, text: Text, session: dict[str, Any]) -> Text:
        tail = option.tail_of(session)
        if tail in option.NO_TAIL_SPEC or text.context.has_index(tail):
            return text
        return self._with_index(text, tail)

    def _with_index(self, text: Text, index: str) -> Text:
        with building(index, *self.who_reports()) as report:
            text = replace(text, context=text.context.with_index(index, report, self.device))
        if self.state.text is None:
            self.state.rows.keep(text.context)  # should the text be frozen again
        return text

    def _text_read(self) -> Text:
        state = self.state
        if not isinstance(state.rows, PrefillRows) or state.tokens == 0:
            raise InvalidArgument("freeze() of a cache that has read nothing")
        sliding = []
        for number, layer in self.sliding_layers():
            last = slice(1 - layer.sliding_window, None)
            keys, values = (x[:, :, last].clone() for x in (layer.keys, layer.values))
            sliding.append((number, keys, values, layer.cumulative_length))
        self._prepare()
        context = state.rows.freeze()
        return Text(context, state.tokens, state.ids.text(state.tokens), tuple(sliding))

    def options_with(self, given: dict[str, Any]) -> Options:
        """Its own, for sessions of other options."""
        session = self.options.session | option.session_options(given)
        return option.check(replace(self.options, session=session))

    def fork(self, batch: int, options: Options) -> Engine:
        """Another one over the same text, with sessions of its own."""
        index = options.session["index"]
        if not self.context.has_index(index):
            raise InvalidArgument(
                f"the text has no index {index!r}, only {', '.join(self.context.indices())}; "
                f"build it with cache.freeze({index!r})"
            )
        text = self.state.text
        state = State(options, text, tokens=text.tokens, batch=batch, ids=HeldIds(text.ids))
        return Engine(state)

    def held_without(self, tokens: int) -> int:
        """Tokens in the rows when the last so many are taken back: of the text, or once frozen of
        the sessions."""
        shards = self.options.shards
        if shards is not None and self.context is None and tokens > 0:
            raise Unsupported("crop of a text that is sharded by sequence: freeze() it first")
        return self.state.held - (0 if shards and not shards.has_own_tokens() else tokens)

    def selected(self, rows: list[int]) -> dict[str, Any]:
        """Members of the state in which batch row i is what row rows[i] was."""
        chosen: dict[str, Any] = {"batch": len(rows), "ids": self.state.ids.of_rows(rows)}
        if isinstance(self.state.rows, (SessionRows, MethodRows)):
            self._prepare()
            chosen["rows"] = self.state.rows.select(rows)
        return chosen

    def _part(self, tokens: int) -> tuple[int, int]:
        """Which of a call's tokens have their rows here: the first and how many."""
        shards = self.options.shards
        if shards is None:
            return 0, tokens
        return shards.prefill_part(tokens) if self.context is None else shards.session_part(tokens)

    def _check(
        self, shape: topkv.AttentionShape, query: torch.Tensor, scale: float, softcap: float
    ) -> None:
        has = (shape.scale or shape.head_dim**-0.5, shape.softcap)
        if any(abs(a - b) > 1e-6 * a for a, b in zip((scale, softcap), has)):
            raise Unsupported(
                f"scores of this layer are scaled by {scale} and capped at {softcap}, those of "
                f"the context by {has[0]} and {has[1]}"
            )
        if query.device != self.torch_device:
            raise Unsupported(
                f"layers of this model are on {self.torch_device} and {query.device}: topkv "
                "serves a model on one device"
            )

    def _check_room(self, tokens: int) -> None:
        """Raises unless the sessions have room for so many more tokens."""
        held, room = self.state.held, self.options.session["capacity"]
        if self.context is not None and held + tokens > room:
            raise InvalidArgument(
                f"{held} tokens follow the text and this call brings {tokens} more; the cache was "
                f"made with room for {room}: give TopkCache() or session() a larger "
                "session_capacity"
            )

    def _make_rows(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        softcap: float,
    ) -> PrefillRows | SessionRows | MethodRows:
        options = self.options
        self.torch_device = query.device
        self.device = open_device(query.device, options.device_memory)
        if self.method is not None:
            return MethodRows(self.method, options.session)
        if self.context is not None:
            return SessionRows(
                [
                    topkv.Session(
                        self.context,
                        device=self.device,
                        **options.session | {"tail": option.tail_of(options.session)},
                    )
                    for _ in range(self.state.batch)
                ]
            )
        shape = shape_of(options.layers, query, keys, values, scale, softcap)
        ranks = 1 if options.shards is None else options.shards.ranks
        topkv.IndexSpec(options.session["index"]).check(shape.head_dim, 0)  # now, not once it is read
        return PrefillRows(
            shape,
            self.device,
            capacity=max(keys.shape[-2], -(-options.max_cache_len // ranks)),
            dtype=options.kv_dtype or row_dtype(keys.dtype, keys.device),
            **options.prefill,
        )
