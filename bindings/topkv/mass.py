"""How much of the attention the best rows hold.

The softmax mass of the exact k best rows is the most that a retrieval method can keep. It is computed
in float64, from the keys of a context and your own queries. See docs/reference/eval.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from topkv import InvalidArgument

if TYPE_CHECKING:
    from topkv import Context

__all__ = ["attention_mass"]

_TILE_SCORES = 1 << 21  # of one tile, 16 MiB in float64


def attention_mass(
    context: Context, layer: int, queries: np.ndarray, ks: Sequence[int], *, sinks: int = 0,
    window: int = 0,
) -> np.ndarray:
    """The share of each query's attention over the context that its k best rows hold.

    queries: [n, q_heads, head_dim], as they reach attention (rotated), any float type.
    sinks, window: the first and last rows of the context that are always attended. They count as
    kept, and the k best rows are chosen among the others.
    Returns float64 [len(ks), n, q_heads], in the order of ks. Other memory grows with a tile of
    scores and with the largest k, not with the context.
    Raises InvalidArgument for a layer with a sliding window, which has no rows to choose from.
    """
    shape = context.shape
    queries = np.asarray(queries, dtype=np.float64)
    _check(shape, layer, queries, ks, sinks, window)
    group = shape.q_heads // shape.kv_heads
    scale = shape.scale if shape.scale > 0 else shape.head_dim**-0.5
    shares = np.empty((len(ks), queries.shape[0], shape.q_heads))
    for kv_head in range(shape.kv_heads):
        heads = slice(kv_head * group, (kv_head + 1) * group)
        part = queries[:, heads].reshape(-1, shape.head_dim) * scale
        kept = _kept(context.keys(layer, kv_head), part, ks, shape.softcap, sinks, window)
        shares[:, :, heads] = kept.reshape(len(ks), -1, group)
    return shares


def _kept(
    keys: np.ndarray, queries: np.ndarray, ks: Sequence[int], softcap: float, sinks: int,
    window: int,
) -> np.ndarray:
    """[len(ks), queries], of one KV head; queries are scaled."""
    rows, most = len(keys), max(ks)
    others = (min(sinks, rows), max(rows - window, min(sinks, rows)))
    best = np.empty((len(queries), 0))  # scores of the best of the others, in any order
    all_mass, always = _LogSum(len(queries)), _LogSum(len(queries))
    tile = max(1, _TILE_SCORES // max(len(queries), keys.shape[1]))
    for begin in range(0, rows, tile):
        scores = queries @ _as_float64(keys[begin : begin + tile]).T
        if softcap > 0:
            scores = softcap * np.tanh(scores / softcap)
        all_mass.add(scores)
        first, last = (min(max(at - begin, 0), scores.shape[1]) for at in others)
        always.add(scores[:, :first])
        always.add(scores[:, last:])
        best = np.concatenate((best, scores[:, first:last]), axis=1)
        if best.shape[1] > most:
            cut = best.shape[1] - most
            best = np.partition(best, cut, axis=1)[:, cut:] if most else best[:, :0]
    total = all_mass.value()
    mass = np.exp(-np.sort(-best, axis=1) - total[:, None])
    summed = np.concatenate((np.zeros((len(queries), 1)), np.cumsum(mass, axis=1)), axis=1)
    kept = np.exp(always.value() - total)
    # Rounding may carry a full sum past 1 by a few units of the last place.
    return np.stack([np.minimum(kept + summed[:, min(k, best.shape[1])], 1.0) for k in ks])


class _LogSum:
    """Running log-sum-exp of one row of scores for each query."""

    def __init__(self, queries: int) -> None:
        self._largest = np.full(queries, -np.inf)
        self._sum = np.zeros(queries)

    def add(self, scores: np.ndarray) -> None:
        if scores.shape[1] == 0:
            return
        largest = np.maximum(self._largest, scores.max(axis=1))
        self._sum *= np.exp(self._largest - largest)
        self._sum += np.exp(scores - largest[:, None]).sum(axis=1)
        self._largest = largest

    def value(self) -> np.ndarray:
        with np.errstate(divide="ignore"):  # log(0) is -inf: nothing was added
            return self._largest + np.log(self._sum)


def _as_float64(rows: np.ndarray) -> np.ndarray:
    if rows.dtype == np.uint16:  # bf16, whose bits are the upper half of a float32
        rows = (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.float64)


def _check(shape, layer: int, queries: np.ndarray, ks: Sequence[int], sinks: int, window: int):
    if not 0 <= layer < shape.layers:
        raise InvalidArgument(f"expected a layer from 0 to {shape.layers - 1}, found {layer}")
    windows = shape.sliding_window
    if len(windows) > 0 and windows[layer] > 0:
        raise InvalidArgument(
            f"layer {layer} has a sliding window of {windows[layer]} rows and retrieves none; "
            "name a layer with full attention"
        )
    if queries.ndim != 3 or queries.shape[1:] != (shape.q_heads, shape.head_dim):
        raise InvalidArgument(
            f"expected queries [n, {shape.q_heads}, {shape.head_dim}], "
            f"found shape {list(queries.shape)}"
        )
    if len(ks) == 0 or min(ks) < 0:
        raise InvalidArgument(f"expected a list of ks, each 0 or more, found {list(ks)}")
    if sinks < 0 or window < 0:
        raise InvalidArgument(f"expected sinks and window of 0 or more, found {sinks}, {window}")
