"""Attention and search in float64 with NumPy alone; shares no code with the library."""

import numpy as np


def attention(q, k, v, visible, scale=None, softcap=0.0):
    """q [tokens, q_heads, d], k and v [rows, kv_heads, d], visible [tokens, rows] of bool.

    Gives out [tokens, q_heads, d] and lse [tokens, q_heads]; (0, -inf) where nothing is visible.
    """
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scale = q.shape[2] ** -0.5 if scale is None else scale
    scores = np.einsum("thd,rhd->thr", q, np.repeat(k, group, axis=1)) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(visible[:, None, :], scores, -np.inf)
    high = scores.max(axis=2, keepdims=True, initial=-1e300)
    weights = np.exp(scores - high)
    total = weights.sum(axis=2)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + high[:, :, 0]
    weights /= np.maximum(total, 1e-300)[:, :, None]
    return np.einsum("thr,rhd->thd", weights, np.repeat(v, group, axis=1)), lse


def causal(tokens, rows, first, window=None, sinks=0):
    """Token i, at position first + i, sees the rows up to it: all, or sinks and the last window."""
    position = first + np.arange(tokens)[:, None]
    row = np.arange(rows)[None, :]
    visible = row <= position
    if window is not None:
        visible &= (row > position - window) | (row < sinks)
    return visible


def best_rows(queries, keys, k, allowed):
    """Positions of the k largest q·k of each query, best first, ties by lower position."""
    scores = np.asarray(queries, np.float64) @ np.asarray(keys, np.float64).T
    found = []
    for row, (begin, end) in zip(scores, allowed):
        order = np.argsort(-row[begin:end], kind="stable")[:k]
        found.append(begin + order)
    return found
