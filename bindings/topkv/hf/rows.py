"""The rows of a TopkCache's topkv layers, and who attends them.

Two stages with the same face. ``PrefillRows`` collects the text in a ContextBuilder and attends it
densely; ``SessionRows`` holds a session per batch row over the frozen context and retrieves. Both
take a step, the tensors of the next tokens of a layer, in float32 of the core's layout:

    q    [batch, tokens, q_heads, head_dim]
    k, v [batch, tokens, kv_heads, head_dim]
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import topkv
from topkv import OutOfMemory, Unsupported
from topkv.hf import plain

ROW_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


_open: dict[str, tuple[int, topkv.Device]] = {}  # by name: the ceiling asked for, the device


def open_device(device: torch.device, memory_ceiling: int) -> topkv.Device:
    """topkv's device where tensors of a torch device lie. Kept open between caches, for kernels are
    planned anew by a device that was just opened; let go when another ceiling is asked for."""
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
    """Lets go of the devices that are kept open between caches; those in use stay open."""
    _open.clear()


def row_dtype(dtype: torch.dtype, device: torch.device) -> str:
    """What rows are stored as when nobody said: the model's dtype; a CUDA device takes bf16."""
    return "bf16" if device.type == "cuda" else ROW_DTYPES.get(dtype, "f32")


def on_device_of(x: torch.Tensor) -> AbstractContextManager[Any]:
    """PyTorch gives the address of a CUDA tensor only while its device is the current one."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def stream_of(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def core_layout(x: torch.Tensor) -> torch.Tensor:
    """[batch, heads, tokens, head_dim] as the core takes it: [batch, tokens, heads, head_dim] in
    float32, contiguous. One copy at most."""
    x = x.detach().transpose(1, 2)
    if x.dtype == torch.float32:
        return x.contiguous()
    return x.to(torch.float32, memory_format=torch.contiguous_format)


@dataclass
class Step:
    """One layer's tensors of the next tokens. out [batch, tokens, q_heads, head_dim] is written;
    so is lse [batch, tokens, q_heads] unless it is None. kv_first and kv_tokens: which of the
    tokens k and v are of (see AttentionStep)."""

    layer: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor | None
    kv_first: int = 0
    kv_tokens: int = -1

    @property
    def kv_count(self) -> int:
        return self.q.shape[1] - self.kv_first if self.kv_tokens < 0 else self.kv_tokens

    def run_together(self, sessions: list[topkv.Session]) -> None:
        """Gives each batch row's part to its session, all in one call."""
        part = slice(self.kv_first, self.kv_first + self.kv_count)
        topkv.Session.attend_together(
            sessions,
            self.layer,
            self.q,
            self.k[:, part].contiguous() if self.kv_count else None,
            self.v[:, part].contiguous() if self.kv_count else None,
            out=self.out,
            lse=self.lse,
            kv_tokens=self.kv_count,
            stream=stream_of(self.q.device),
        )

    def run(self, builder: topkv.ContextBuilder) -> None:
        """Gives the only batch row there is to a builder."""
        first, count = self.kv_first, self.kv_count
        builder.attend(
            self.layer,
            self.q[0],
            self.k[0, first : first + count] if count else None,
            self.v[0, first : first + count] if count else None,
            out=self.out[0],
            lse=None if self.lse is None else self.lse[0],
            kv_first=first if count else 0,
            kv_tokens=count,
            stream=stream_of(self.q.device),
        )


def shape_of(
    layers: int,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    softcap: float,
) -> topkv.AttentionShape:
    """Head counts come from the tensors: a rank of a tensor-parallel model has some only."""
    plain.require_equal_heads(query, keys, values)
    return topkv.AttentionShape(
        layers=layers,
        q_heads=query.shape[1],
        kv_heads=keys.shape[1],
        head_dim=query.shape[-1],
        scale=scale,
        softcap=softcap,
    )


#: Tokens whose rows are copied at a time when a text that was to be frozen is read on.
_COPIED = 65536


class PrefillRows:
    """A text being read. One row only: a batch of texts would be a batch of contexts.

    freeze() does not end it: when what comes after that fails, such as the build of an index, the
    text can be read on, or be frozen again.
    """

    def __init__(self, shape: topkv.AttentionShape, device: topkv.Device, **options: Any):
        self._shape = shape
        self._options = {"device": device} | options
        self._capacity = self._options.pop("capacity")
        # What holds the rows: a ContextBuilder, or a Context over them.
        self._held: list[Any] = [self._builder_of(self._capacity)]

    def _builder_of(self, capacity: int) -> topkv.ContextBuilder:
        return topkv.ContextBuilder(self._shape, capacity=capacity, **self._options)

    @property
    def shape(self) -> topkv.AttentionShape:
        return self._shape

    @property
    def _is_frozen(self) -> bool:
        return isinstance(self._held[-1], topkv.Context)

    @property
    def _builder(self) -> topkv.ContextBuilder:
        if self._is_frozen:
            self._read_on(self._tokens)
        return self._held[-1]

    @property
    def _tokens(self) -> int:
        held = self._held[-1]
        return held.tokens if self._is_frozen else held.tokens(0)

    def cut(self, held: int, spoiled: bool) -> None:
        """Keeps the first `held` tokens. spoiled: layers may differ in what they hold."""
        if spoiled or self._tokens != held:
            self._builder.truncate(held)

    def make_room(self, more: int) -> None:
        """Room for this many more; doubles, so that copying is linear in the whole."""
        wanted = self._tokens + more
        if self._is_frozen:
            self._capacity = max(self._capacity, wanted)
        if wanted <= self._builder.capacity:
            return
        try:
            self._builder.reserve(max(wanted, 2 * self._builder.capacity))
        except OutOfMemory:  # twice as much is a convenience, this much is needed
            self._builder.reserve(wanted)

    def _read_on(self, held: int) -> None:
        """Copies the first rows of a context that nobody came to use into a builder."""
        context = self._held[-1]
        builder = self._builder_of(max(self._capacity, held))
        heads = range(self._shape.kv_heads)
        for layer in range(self._shape.layers):
            for first in range(0, held, _COPIED):
                part = slice(first, min(first + _COPIED, held))
                builder.append(
                    layer,
                    np.stack([context.keys(layer, head)[part] for head in heads], axis=1),
                    np.stack([context.values(layer, head)[part] for head in heads], axis=1),
                )
        self._held = [builder]

    def attend(self, step: Step) -> None:
        step.run(self._builder)

    def keep(self, context: topkv.Context) -> None:
        """What freeze() gave, with an index besides: for the next freeze()."""
        self._held.append(context)

    def freeze(self) -> topkv.Context:
        """What it holds as a context."""
        if not self._is_frozen:
            # In one call of C, which Ctrl-C does not part: the builder is empty afterwards, and the
            # context all that holds the rows.
            self._held.extend(map(topkv.ContextBuilder.freeze, (self._builder,)))
        return self._held[-1]


class SessionRows:
    """Sessions over one frozen context, one per batch row."""

    def __init__(self, sessions: list[topkv.Session]):
        self.sessions = sessions

    @property
    def shape(self) -> topkv.AttentionShape:
        return self.sessions[0].context.shape

    def cut(self, held: int, spoiled: bool) -> None:
        """Keeps the first `held` of every session's own tokens."""
        for session in self.sessions:
            if spoiled or session.own_tokens != held:
                session.truncate(held)

    def make_room(self, more: int) -> None:
        """A session has its capacity from the beginning."""

    def attend(self, step: Step) -> None:
        step.run_together(self.sessions)

    def select(self, rows: list[int]) -> SessionRows:
        """Batch row i is what row rows[i] was; a row taken twice is forked."""
        taken: set[int] = set()
        chosen = []
        for row in rows:
            old = self.sessions[row]
            chosen.append(old.fork() if row in taken else old)
            taken.add(row)
        return SessionRows(chosen)
