"""The rows of a TopkCache's topkv layers, and attention over them.

There are two stages with one interface. ``TextsRead`` (texts_read.py) collects texts in
ContextBuilders and attends them in a prefill. ``SessionRows`` holds a session per batch row over frozen
contexts and retrieves. Both take a step, the tensors of a layer's next tokens, in float32 and the
core's layout. They also take a count for each batch row: its last tokens count, and the tokens before
these are padding.

    q    [batch, tokens, q_heads, head_dim]
    k, v [batch, tokens, kv_heads, head_dim]
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

import topkv
from topkv import Unsupported
from topkv.hf import plain

ROW_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


_open: dict[str, tuple[int, topkv.Device]] = {}  # by name: the ceiling asked for, the device


def open_device(device: torch.device, memory_ceiling: int) -> topkv.Device:
    """topkv's device for the tensors of a torch device.

    It stays open between caches, because a newly opened device plans its kernels again. Another
    ceiling closes it."""
    if device.type not in ("cpu", "cuda"):
        raise Unsupported(f"topkv runs on cpu and cuda; the model is on {device.type}")
    name = "cpu"
    if device.type == "cuda":
        name = f"cuda:{torch.cuda.current_device() if device.index is None else device.index}"
    ceiling, kept = _open.get(name, (None, None))
    if ceiling != memory_ceiling:
        _open.pop(name, None)
        del kept
        kept = topkv.Device.open(name, memory_ceiling=memory_ceiling)
        _open[name] = memory_ceiling, kept
    return kept


def close_devices() -> None:
    """Closes the devices that are kept open between caches. Devices in use stay open."""
    _open.clear()


def row_dtype(dtype: torch.dtype, device: torch.device) -> str:
    """The default dtype of rows: the model's, and bf16 on a CUDA device."""
    return "bf16" if device.type == "cuda" else ROW_DTYPES.get(dtype, "f32")


def on_device_of(x: torch.Tensor) -> AbstractContextManager[Any]:
    """Makes a tensor's device current, which PyTorch needs to give the address of a CUDA tensor."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def stream_of(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def core_layout(x: torch.Tensor) -> torch.Tensor:
    """[batch, heads, tokens, head_dim] in the core's layout: [batch, tokens, heads, head_dim],
    float32, contiguous. At most one copy."""
    x = x.detach().transpose(1, 2)
    if x.dtype == torch.float32:
        return x.contiguous()
    return x.to(torch.float32, memory_format=torch.contiguous_format)


@dataclass
class IndexStep:
    """What the indexer of a layer gives for the next tokens, in float32.

    q [batch, tokens, heads, dim], weights [batch, tokens, heads]. keys: of each batch row those that its
    tokens complete, [keys, dim]. of_groups: a key is of a group of tokens, not of each token."""

    q: torch.Tensor
    weights: torch.Tensor
    keys: list[torch.Tensor]
    of_groups: bool

    def part(self, rows: Sequence[int], tokens: int) -> IndexStep:
        """The last `tokens` tokens of these batch rows."""
        last = slice(self.q.shape[1] - tokens, None)
        q, weights = (x[list(rows), last].contiguous() for x in (self.q, self.weights))
        return IndexStep(q, weights, [self.keys[row] for row in rows], self.of_groups)

    def together(self) -> dict[str, torch.Tensor]:
        """Arguments of a step of several sessions."""
        keys = (torch.cat if self.of_groups else torch.stack)(self.keys)
        return {"index_q": self.q, "index_k": keys, "index_weights": self.weights}

    def alone(self) -> dict[str, torch.Tensor]:
        """Arguments of a step of the only batch row."""
        return {"index_q": self.q[0], "index_k": self.keys[0], "index_weights": self.weights[0]}


@dataclass
class Step:
    """One layer's tensors of the next tokens.

    k and v are None in a layer that attends the rows of another layer, and v if keys are values.
    out [batch, tokens, q_heads, head_dim] is written, and lse [batch, tokens, q_heads] unless it is
    None. kv_first, kv_tokens: the tokens that k and v belong to (see AttentionStep)."""

    layer: int
    q: torch.Tensor
    k: torch.Tensor | None
    v: torch.Tensor | None
    out: torch.Tensor
    lse: torch.Tensor | None
    kv_first: int = 0
    kv_tokens: int = -1
    index: IndexStep | None = None

    @property
    def kv_count(self) -> int:
        return self.q.shape[1] - self.kv_first if self.kv_tokens < 0 else self.kv_tokens

    def part(self, rows: Sequence[int], tokens: int) -> Step:
        """The last `tokens` tokens of these batch rows. take() accepts the result."""
        batch, all_tokens = self.q.shape[:2]
        if len(rows) == batch and tokens == all_tokens:
            return self
        last = slice(all_tokens - tokens, None)
        q, k, v = (
            None if x is None else x[list(rows), last].contiguous() for x in (self.q, self.k, self.v)
        )
        lse = None if self.lse is None else q.new_empty(q.shape[:-1])
        index = None if self.index is None else self.index.part(rows, tokens)
        return Step(self.layer, q, k, v, torch.empty_like(q), lse, index=index)

    def take(self, part: Step, rows: Sequence[int]) -> None:
        """Copies the results of a part to these batch rows; one row's result goes to all of them."""
        if part is self:
            return
        last = slice(self.q.shape[1] - part.q.shape[1], None)
        self.out[list(rows), last] = part.out
        if self.lse is not None:
            self.lse[list(rows), last] = part.lse

    def _kept(self, rows: torch.Tensor | None) -> torch.Tensor | None:
        """K or V of the tokens that they belong to."""
        if rows is None or self.kv_count == 0:
            return None
        return rows[:, self.kv_first : self.kv_first + self.kv_count].contiguous()

    def run_together(self, sessions: list[topkv.Session]) -> None:
        """Gives each batch row's part to its session, in one call for all."""
        topkv.Session.attend_together(
            sessions,
            self.layer,
            self.q,
            self._kept(self.k),
            self._kept(self.v),
            out=self.out,
            lse=self.lse,
            kv_tokens=self.kv_count,
            stream=stream_of(self.q.device),
            **({} if self.index is None else self.index.together()),
        )

    def run(self, builder: topkv.ContextBuilder) -> None:
        """Gives the only batch row to a builder."""
        count, k, v = self.kv_count, self._kept(self.k), self._kept(self.v)
        builder.attend(
            self.layer,
            self.q[0],
            None if k is None else k[0],
            None if v is None else v[0],
            out=self.out[0],
            lse=None if self.lse is None else self.lse[0],
            kv_first=self.kv_first if count else 0,
            kv_tokens=count,
            stream=stream_of(self.q.device),
            **({} if self.index is None else self.index.alone()),
        )


def shape_of(
    layers: int,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor | None,
    scale: float,
    softcap: float,
    **by_layer: Any,
) -> topkv.AttentionShape:
    """The shape by the tensors, because a rank of a tensor-parallel model has only some heads.

    values: None if keys are values. by_layer: further members of the shape."""
    plain.require_equal_heads(query, keys, keys if values is None else values)
    return topkv.AttentionShape(
        layers=layers,
        q_heads=query.shape[1],
        kv_heads=keys.shape[1],
        head_dim=query.shape[-1],
        scale=scale,
        softcap=softcap,
        keys_are_values=values is None,
        **by_layer,
    )


class SessionRows:
    """A session per batch row, each over the context that its text became."""

    def __init__(self, sessions: list[topkv.Session]):
        self.sessions = sessions
        self._contexts = [session.context for session in sessions]

    @property
    def shape(self) -> topkv.AttentionShape:
        return self._contexts[0].shape

    def cut(self, held: list[int], spoiled: bool) -> None:
        """Keeps the first held[i] of session i's own tokens."""
        for session, count in zip(self.sessions, held, strict=True):
            if spoiled or session.own_tokens != count:
                session.truncate(count)

    def make_room(self, more: list[int]) -> None:
        """Nothing to do: a session has its capacity from the beginning."""

    def attend(self, step: Step, counts: list[int]) -> None:
        """Steps sessions together if they have one context and one number of tokens."""
        together: dict[tuple[int, int], list[int]] = {}
        for row, (context, count) in enumerate(zip(self._contexts, counts, strict=True)):
            together.setdefault((id(context), count), []).append(row)
        for (_, count), rows in together.items():
            if count == 0:
                continue
            part = step.part(rows, count)
            part.run_together([self.sessions[row] for row in rows])
            step.take(part, rows)

    def select(self, rows: list[int]) -> SessionRows:
        """The sessions with row rows[i] as batch row i; a row taken twice is forked."""
        taken: set[int] = set()
        chosen = []
        for row in rows:
            old = self.sessions[row]
            chosen.append(old.fork() if row in taken else old)
            taken.add(row)
        return SessionRows(chosen)
