"""The engine of a cache's layers: rows of texts and sessions, and attention over them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import topkv
from topkv import InvalidArgument, Unsupported
from topkv.hf import frozen, kept
from topkv.hf import options as option
from topkv.hf.ids import HeldIds
from topkv.hf.method_rows import MethodRows
from topkv.hf.options import Options
from topkv.hf.passes import Passes
from topkv.hf.prefill_mode import PrefillMode, room_of
from topkv.hf.rows import (
    IndexStep,
    SessionRows,
    Step,
    core_layout,
    on_device_of,
    open_device,
    row_dtype,
    shape_of,
)
from topkv.hf.state import Rows, State
from topkv.hf.texts_read import TextsRead



class Engine(Passes):
    """Two stages: it reads texts, one per batch row; then, frozen, it has a session per batch row."""

    told_of_bias = False  # TopkLayer.warn_of_bias

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        keys: torch.Tensor | None,
        values: torch.Tensor | None,
        scale: float,
        softcap: float,
        sink_scores: torch.Tensor | None,
        index: IndexStep | None = None,
    ) -> torch.Tensor:
        """Attention of one topkv layer.

        query [batch, q_heads, tokens, head_dim], keys and values [batch, kv_heads, tokens, head_dim],
        or None in a layer that attends the rows of another layer -> [batch, tokens, q_heads,
        head_dim]. Such a layer may be given the last tokens' queries only. values is None if keys are
        values. sink_scores: [q_heads], one more score under the softmax, with a value of zero. index: of
        a layer with an indexer of its own."""
        with on_device_of(query):
            return self._attend(layer, query, keys, values, scale, softcap, sink_scores, index)

    def _attend(
        self,
        layer: int,
        query: torch.Tensor,
        keys: torch.Tensor | None,
        values: torch.Tensor | None,
        scale: float,
        softcap: float,
        sink_scores: torch.Tensor | None,
        index: IndexStep | None,
    ) -> torch.Tensor:
        done = self.open_pass()
        wanted = query.shape[-2]
        if wanted < done.tokens and keys is None:  # the others' results are not used
            query = torch.nn.functional.pad(query, (0, 0, done.tokens - wanted, 0))
        rows = self.state.rows or done.rows
        if rows is None:
            rows = done.rows = self._make_rows(query, keys, values, scale, softcap)
        self._check(rows.shape, query, scale, softcap)
        q, k, v = (None if x is None else core_layout(x) for x in (query, keys, values))
        counts = self.new_counts(done)
        has_padding = min(counts) < done.tokens  # whose attention nobody uses
        out = torch.zeros_like(q) if has_padding else torch.empty_like(q)
        shards = self.options.shards
        has_lse = shards or sink_scores is not None
        lse = out.new_zeros(q.shape[:-1]) if has_lse else None
        part = self.part_of(q.shape[1])
        self._check_room(part[1])
        self._spoiled = True
        rows.attend(Step(layer, q, k, v, out, lse, *part, index=index), counts)
        if shards is not None:
            out, lse = shards.merge(out, lse)
        if sink_scores is not None:
            out = out * torch.sigmoid(lse - sink_scores.to(lse.dtype)).unsqueeze(-1)
        return out[:, -wanted:].to(query.dtype)

    @property
    def indexer_layer(self) -> list[int]:
        """AttentionShape.indexer_layer; empty: the model has no indexers."""
        if self.indexers is None:
            return []
        return [self.numbers.get(self.indexers.choosers[layer], -1) for layer in self.numbers]

    @property
    def indexers_choose_all(self) -> bool:
        """Whether every layer attends what an indexer chooses."""
        return self.indexers is not None and min(self.indexer_layer) >= 0

    # ---- the text and its sessions ----

    def freeze(self, index: str | None = None) -> None:
        """Ends the texts and builds the index, if they are not there yet."""
        self.settle()
        state = self.state
        index = state.options.session["index"] if index is None else index
        session = state.options.session | {"index": index}
        text = state.text or self._text_read()
        text = self._ready_for(text, index, "none")  # which is kept if the tail fails
        text = self._ready_for(text, index, option.tail_of(session))
        options = replace(state.options, session=session)
        if state.text is None:
            ids, pads = HeldIds(text.ids), (0,) * state.batch
            state = replace(state, rows=None, held=0, ids=ids, pads=pads)
        self.state = replace(state, options=options, text=text)
        self.reading = None

    def add_tail(self, options: Options) -> None:
        """Builds the tail of sessions with these options over the text, if it is not there yet."""
        text = self._ready_for(self.state.text, "exact", option.tail_of(options.session))
        self.state = replace(self.state, text=text)

    def _ready_for(self, text: frozen.Text, index: str, tail: str) -> frozen.Text:
        reading = self.state.rows if self.state.text is None else None
        return frozen.ready_for(text, index, tail, self.device, self.who_reports(), reading)

    def _text_read(self) -> frozen.Text:
        state = self.state
        if not isinstance(state.rows, TextsRead) or state.tokens == 0:
            raise InvalidArgument("freeze() of a cache that has read nothing; read a text first")
        states = self.kept_at_end()
        self.prepare()
        return frozen.text_of(state, states)

    def options_with(self, given: dict[str, Any]) -> Options:
        """The cache's options with these session options in place of its own."""
        session = self.options.session | option.session_options(given)
        options = option.check(replace(self.options, session=session))
        return option.left_to_indexers(options, given) if self.indexers_choose_all else options

    def fork(self, batch: int, options: Options) -> Engine:
        """An engine over the texts of this one, with sessions of its own: `batch` for each text."""
        index, text = options.session["index"], self.state.text
        if not all(context.has_index(index) for context in text.contexts):
            raise InvalidArgument(
                f"the text has no index {index!r}, only {', '.join(text.contexts[0].indices())}; "
                f"build it with cache.freeze({index!r})"
            )
        rows = [row for row in range(len(text.contexts)) for _ in range(batch)]
        text = text.of_rows(rows)
        pads = (0,) * len(rows)
        return Engine(State(options, text, tokens=text.tokens, pads=pads, ids=HeldIds(text.ids)))

    def held_without(self, tokens: int) -> int:
        """Tokens left in the rows after the last `tokens` are taken back: rows of the text, or of the
        sessions once it is frozen."""
        shards = self.options.shards
        if shards is not None and self.state.text is None and tokens > 0:
            raise Unsupported("crop of a text that is sharded by sequence; call freeze() first")
        return self.state.held - (0 if shards and not shards.has_own_tokens() else tokens)

    def states_at(self, tokens: int) -> dict[int, kept.LayerState]:
        """The states that layers had after `tokens` tokens, by the number of the layer; empty: they can be
        cropped, or need not be. Raises InvalidArgument if they are not there."""
        state = self.state
        layers = [(i, layer) for i, layer in self.layers_with_states() if kept.is_used(layer)]
        removed = state.tokens - tokens
        if removed == 0 or all(kept.can_crop(x, state.tokens, removed) for _, x in layers):
            return {}
        begin = state.text_tokens
        if tokens == begin and state.text is not None:
            return state.text.kept_of(state.batch)
        if tokens == begin:
            return {i: kept.fresh(layer) for i, layer in layers}
        if state.earlier is not None and tokens == state.earlier.tokens:
            return state.earlier.states
        there = {begin, state.tokens} | ({state.earlier.tokens} if state.earlier else set())
        raise InvalidArgument(
            f"crop to {tokens} tokens: layers of this model have a state, which is known after "
            f"{' and '.join(map(str, sorted(x for x in there if x >= begin)))} tokens only; crop to one "
            "of these, and give the tokens after it again"
        )

    def selected(self, rows: list[int]) -> dict[str, Any]:
        """Members of the state with row rows[i] as batch row i."""
        state = self.state
        chosen: dict[str, Any] = {
            "text": state.text.of_rows(rows),
            "pads": tuple(state.pads[row] for row in rows),
            "ids": state.ids.of_rows(rows),
            "earlier": None,
        }
        if state.rows is not None:
            self.prepare()
            chosen["rows"] = state.rows.select(rows)
        return chosen

    def _check(
        self, shape: topkv.AttentionShape, query: torch.Tensor, scale: float, softcap: float
    ) -> None:
        has = (shape.scale or shape.head_dim**-0.5, shape.softcap)
        if any(abs(a - b) > 1e-6 * a for a, b in zip((scale, softcap), has)):
            raise Unsupported(
                f"scores of this layer are scaled by {scale} and capped at {softcap}, and the context's "
                f"by {has[0]} and at {has[1]}; use a context that this model made"
            )
        if query.device != self.torch_device:
            raise Unsupported(
                f"layers of this model are on {self.torch_device} and {query.device}; topkv serves a "
                "model on one device"
            )

    def _check_room(self, tokens: int) -> None:
        """Raises unless the sessions have room for `tokens` more tokens."""
        state, room = self.state, self.options.session["capacity"]
        # Of the row with most: padding takes no room.
        held = max(state.counts(state.held))
        after = max(state.counts(state.held + tokens))
        tokens = after - held
        if state.text is not None and after > room:
            raise InvalidArgument(
                f"{held} tokens follow the text, this call adds {tokens}, and session_capacity is "
                f"{room}; give TopkCache() or session() a larger session_capacity"
            )

    def _make_rows(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor | None,
        scale: float,
        softcap: float,
    ) -> Rows:
        options = self.options
        if self.indexers is not None and query.device.type != "cpu":
            raise Unsupported(
                f"layers of this model choose rows by an indexer, which topkv runs on a CPU only; the model is on "
                f"{query.device}. Move it to the CPU, or use another cache"
            )
        self.torch_device = query.device
        self.device = open_device(query.device, options.device_memory)
        if self.method is not None:
            return MethodRows(self.method, options.session)
        if self.state.text is not None:
            return SessionRows(self._make_sessions())
        indexed = {}
        if self.indexers is not None:
            indexed = {
                "indexer": self.indexers.rule.shape("bf16" if keys.dtype == torch.bfloat16 else "f32"),
                "indexer_layer": self.indexer_layer,
            }
        shape = shape_of(
            options.layers, query, keys, values, scale, softcap, row_layer=self.row_layer, **indexed
        )
        topkv.IndexSpec(options.session["index"]).check(shape.head_dim, 0)  # now, not once it is read
        done = self.open_pass()
        chunk, prefill = keys.shape[-2], options.prefill
        if options.shards is not None and prefill["prefill"] == "auto":
            prefill = prefill | {"prefill": "dense"}
        modes = PrefillMode(
            prefill,
            shape,
            self.device,
            options.kv_dtype or row_dtype(keys.dtype, keys.device),
            tokens=max(self.reads_until, options.max_cache_len),
            room=lambda: room_of(self.device, self.torch_device),
        )
        capacities = [
            max(chunk, self._known_rows(row)) for row in range(0, self.state.batch, done.alike)
        ]
        return TextsRead(modes, alike=done.alike, capacities=capacities, chunk=chunk)

    def _known_rows(self, row: int) -> int:
        """The rows that the text of a batch row will have in this process; 0: not known."""
        shards, most = self.options.shards, self.options.max_cache_len
        if shards is not None:
            return -(-most // shards.ranks)
        return max(most, self.reads_until - self.state.pads[row])

    def _make_sessions(self) -> list[topkv.Session]:
        text, given = self.state.text, self.options.session
        given = given | {"tail": option.tail_of(given)}
        contexts = (text.contexts[text.of_row(row)] for row in range(self.state.batch))
        return [topkv.Session(context, device=self.device, **given) for context in contexts]
