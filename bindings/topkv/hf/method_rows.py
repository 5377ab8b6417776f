"""A session whose rows a method written in Python finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import topkv
from topkv import Partial, Unsupported
from topkv.hf.method import PreparedMethod


@dataclass(frozen=True)
class MethodStats:
    """Counts of a session with your own method, by names of topkv.SessionStats."""

    steps: int = 0  # (token, layer) pairs attended
    rows_retrieved: int = 0  # rows attended beyond window and sinks, over query heads

    def rows_per_head(self, q_heads: int) -> float:
        """As topkv.SessionStats.rows_per_head."""
        return self.rows_retrieved / (self.steps * q_heads) if self.steps > 0 else 0.0


class MethodRows:
    """A session whose rows a PreparedMethod finds, with the interface of rows.SessionRows."""

    def __init__(self, prepared: PreparedMethod, session: dict[str, Any]):
        self._prepared = prepared
        self._context = prepared.context
        self._k, self._window = session["k"], session["window"]
        self._dense_layers = session["dense_layers"]
        shape = self.shape
        empty = torch.empty(shape.kv_heads, 0, shape.head_dim, dtype=prepared.dtype)
        # Of the tokens after the text, by layer: [kv_heads, tokens, dim], as the text's are stored.
        self._own = [(empty, empty) for _ in range(shape.layers)]
        self._steps = self._retrieved = 0

    @property
    def shape(self) -> topkv.AttentionShape:
        return self._context.shape

    def stats(self) -> MethodStats:
        return MethodStats(self._steps, self._retrieved)

    def cut(self, held: list[int], spoiled: bool) -> None:
        """Keeps the first held[0] of its own tokens."""
        (count,) = held
        self._own = [(keys[:, :count], values[:, :count]) for keys, values in self._own]

    def make_room(self, more: list[int]) -> None:
        """Nothing to do: it grows with its tokens."""

    def select(self, rows: list[int]) -> MethodRows:
        if rows != [0]:
            raise Unsupported(
                f"{self._prepared.name} is a method written in Python, whose session has one row; use "
                "an index for beams and for samples side by side"
            )
        return self

    def attend(self, step: Any, counts: list[int]) -> None:
        if counts[0] > 0:
            part = step.part([0], counts[0])
            self._attend_step(part)
            step.take(part, [0])

    def _attend_step(self, step: Any) -> None:
        q = step.q[0].detach().cpu()
        if step.k is not None:
            values = step.k if step.v is None else step.v  # keys that are values
            self._own[step.layer] = tuple(
                torch.cat((rows, more[0].detach().cpu().transpose(0, 1).to(rows.dtype)), dim=1)
                for rows, more in zip(self._own[step.layer], (step.k, values))
            )
        held = self._own[self._row_layer(step.layer)][0].shape[1]
        first = self._context.tokens + held - q.shape[0]
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:-1])
        group = self.shape.q_heads // self.shape.kv_heads
        for token in range(q.shape[0]):
            for head in range(self.shape.kv_heads):
                heads = slice(head * group, (head + 1) * group)
                partial = self._attend(
                    step.layer, head, q[token, heads], step.q[0, token, heads], first + token
                )
                out[token, heads] = torch.from_numpy(partial.out)
                lse[token, heads] = torch.from_numpy(partial.lse)
        self._steps += q.shape[0]
        step.out[0] = out
        if step.lse is not None:
            step.lse[0] = lse

    def _attend(
        self, layer: int, head: int, q: torch.Tensor, on_device: torch.Tensor, position: int
    ) -> Partial:
        """Attention of one token's group of query heads [group, dim]."""
        text, sinks, dense = self._context.tokens, self._prepared.sinks, layer < self._dense_layers
        window = max(0, position + 1 - self._window)  # its first row
        # Rows of the text between sinks and window are the method's.
        begin = min(sinks, text)
        end = begin if dense else max(begin, min(window, text))
        partial = merged(
            self._rows(q, layer, head, np.r_[0:begin, end:text]),
            self._own_rows(q, layer, head, position + 1 - text),
        )
        if not dense:  # its own rows that have left the window
            self._retrieved += max(0, window - max(text, sinks)) * q.shape[0]
        if end == begin:
            return partial
        found, tail = self._prepared.find(
            layer, head, on_device, end - begin, self._k, self._scale
        )
        self._retrieved += found.numel()
        each = [self._rows(q[i : i + 1], layer, head, at.numpy()) for i, at in enumerate(found)]
        together = Partial(*(np.concatenate(x) for x in ([p.out for p in each], [p.lse for p in each])))
        return merged(partial, together, tail)

    def _row_layer(self, layer: int) -> int:
        """The layer whose rows a layer attends."""
        return self.shape.row_layer[layer] if self.shape.row_layer else layer

    @property
    def _scale(self) -> float:
        return self.shape.scale or self.shape.head_dim**-0.5

    def _rows(self, q: torch.Tensor, layer: int, head: int, at: np.ndarray) -> Partial:
        """Attention over these rows of the text."""
        keys, values = self._context.keys(layer, head), self._context.values(layer, head)
        return topkv.attend_rows(q, keys, values, at, self._scale, self.shape.softcap)

    def _own_rows(self, q: torch.Tensor, layer: int, head: int, seen: int) -> Partial:
        """Attention over the first `seen` tokens after the text."""
        keys, values = (x[head] for x in self._own[self._row_layer(layer)])
        return topkv.attend_rows(
            q, keys, values, np.arange(seen), self._scale, self.shape.softcap
        )


def merged(first: Partial, *others: Partial | None) -> Partial:
    for other in others:
        if other is not None:
            first = topkv.merge(first, other)
    return first
