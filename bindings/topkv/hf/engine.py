"""What stands behind the topkv layers of a cache: the text being read, or sessions over it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

import topkv
from topkv import InvalidArgument, Unsupported
from topkv.hf.rows import (
    PrefillRows,
    SessionRows,
    Step,
    core_layout,
    on_device_of,
    open_device,
    row_dtype,
)
from topkv.hf.sharding import SequenceShards


@dataclass(frozen=True)
class Options:
    """Of a cache; see TopkCache."""

    layers: int
    prefill: dict[str, Any] = field(default_factory=dict)  # of the ContextBuilder
    session: dict[str, Any] = field(default_factory=dict)  # of the Session
    kv_dtype: str | None = None
    max_cache_len: int = 0
    device_memory: int = 0
    shards: SequenceShards | None = None


def check_options(options: Options) -> None:
    """Raises topkv.InvalidArgument for options that could not work once a text is read, by making
    with them what will be made then, over a text of one token."""
    topkv.KeyIndex(options.session["index"])
    shape = topkv.AttentionShape(layers=options.layers, q_heads=1, kv_heads=1, head_dim=64)
    builder = topkv.ContextBuilder(
        shape, capacity=1, dtype=options.kv_dtype or "f32", **options.prefill
    )
    row = torch.zeros(1, 1, 64)
    for layer in range(options.layers):
        builder.append(layer, row, row)
    topkv.Session(builder.freeze(), **options.session | {"index": "exact", "capacity": 1})


class Engine:
    """Two stages: it reads a text; then, frozen, it has a session per batch row over the text.

    begin() is called first of all in every forward pass, attend() by each topkv layer in turn.
    """

    def __init__(self, options: Options, context: topkv.Context | None = None, batch: int = 1):
        self.options = options
        self.context = context
        self.batch = batch
        self.device: topkv.Device | None = None
        self._torch_device: torch.device | None = None
        self._rows: PrefillRows | SessionRows | None = None

    @property
    def sessions(self) -> list[topkv.Session]:
        return self._rows.sessions if isinstance(self._rows, SessionRows) else []

    def begin(self, batch: int, tokens: int) -> None:
        """Checks the batch and makes room for the tokens."""
        if self.context is not None:
            if batch != self.batch:
                raise InvalidArgument(
                    f"a batch of {batch} for a cache of {self.batch} rows: make one with "
                    f"cache.session(batch={batch})"
                )
        elif batch != 1:
            raise InvalidArgument(
                f"a batch of {batch}: topkv reads one text at a time. Read it once with a batch "
                f"of 1, then use cache.session(batch={batch}) for several questions, samples or "
                "beams"
            )
        elif isinstance(self._rows, PrefillRows):
            self._rows.make_room(self._part(tokens)[1])

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
        if self._rows is None:
            self._rows = self._make_rows(query, keys, values, scale, softcap)
        self._check(query, scale, softcap)
        q, k, v = (core_layout(x) for x in (query, keys, values))
        out = torch.empty_like(q)
        shards = self.options.shards
        lse = q.new_empty(q.shape[:-1]) if shards or sink_scores is not None else None
        self._rows.attend(Step(layer, q, k, v, out, lse, *self._part(q.shape[1])))
        if shards is not None:
            out, lse = shards.merge(out, lse)
        if sink_scores is not None:
            out = out * torch.sigmoid(lse - sink_scores.to(lse.dtype)).unsqueeze(-1)
        return out.to(query.dtype)

    def freeze(self) -> None:
        """Ends the text and builds the sessions' index, if they are not there yet."""
        if self.context is None:
            if not isinstance(self._rows, PrefillRows):
                raise InvalidArgument("freeze() of a cache that has read nothing")
            self.context, self._rows = self._rows.freeze(), None
        spec = self.options.session["index"]
        if not self.context.has_index(spec):
            self.context = self.context.with_index(spec)

    def fork(self, batch: int, **session_options: Any) -> Engine:
        """Another one over the same context, with sessions of its own."""
        session = self.options.session | session_options
        check_options(replace(self.options, session=session))
        if not self.context.has_index(session["index"]):
            raise InvalidArgument(
                f"the text has no index {session['index']!r}, only "
                f"{', '.join(self.context.indices())}; build it with "
                f"cache.freeze({session['index']!r})"
            )
        return Engine(replace(self.options, session=session), self.context, batch)

    def remove(self, tokens: int) -> None:
        """Forgets the last tokens: of the text, or once frozen of the sessions."""
        shards = self.options.shards
        if shards is not None and self.context is None:
            raise Unsupported("crop of a text that is sharded by sequence: freeze() it first")
        if shards is None or shards.has_own_tokens():
            self._rows.remove(tokens)

    def select(self, rows: list[int]) -> None:
        """Batch row i becomes what row rows[i] was."""
        if isinstance(self._rows, SessionRows):
            self._rows.select(rows)
        self.batch = len(rows)

    def _part(self, tokens: int) -> tuple[int, int]:
        """Which of a call's tokens have their rows here: the first and how many."""
        shards = self.options.shards
        if shards is None:
            return 0, tokens
        return shards.prefill_part(tokens) if self.context is None else shards.session_part(tokens)

    def _check(self, query: torch.Tensor, scale: float, softcap: float) -> None:
        shape = self._rows.shape
        has = (shape.scale or shape.head_dim**-0.5, shape.softcap)
        if any(abs(a - b) > 1e-6 * a for a, b in zip((scale, softcap), has)):
            raise Unsupported(
                f"scores of this layer are scaled by {scale} and capped at {softcap}, those of "
                f"the context by {has[0]} and {has[1]}"
            )
        if query.device != self._torch_device:
            raise Unsupported(
                f"layers of this model are on {self._torch_device} and {query.device}: topkv "
                "serves a model on one device"
            )

    def _make_rows(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        softcap: float,
    ) -> PrefillRows | SessionRows:
        """Head counts come from the tensors: a rank of a tensor-parallel model has some only."""
        options = self.options
        self._torch_device = query.device
        self.device = open_device(query.device, options.device_memory)
        if self.context is not None:
            return SessionRows(
                [
                    topkv.Session(self.context, device=self.device, **options.session)
                    for _ in range(self.batch)
                ]
            )
        if values.shape != keys.shape or query.shape[-1] != keys.shape[-1]:
            raise Unsupported(
                f"head dimensions of q, k and v are {query.shape[-1]}, {keys.shape[-1]} and "
                f"{values.shape[-1]}; topkv needs them equal"
            )
        shape = topkv.AttentionShape(
            layers=options.layers,
            q_heads=query.shape[1],
            kv_heads=keys.shape[1],
            head_dim=query.shape[-1],
            scale=scale,
            softcap=softcap,
        )
        ranks = 1 if options.shards is None else options.shards.ranks
        return PrefillRows(
            shape,
            self.device,
            capacity=max(keys.shape[-2], -(-options.max_cache_len // ranks)),
            dtype=options.kv_dtype or row_dtype(keys.dtype, keys.device),
            **options.prefill,
        )
