"""Contexts that tests save and load, and what sessions over them answer."""

import numpy as np

import topkv

SHAPE = topkv.AttentionShape(3, 4, 2, 64, sliding_window=[0, 8, 0])


#: So many that ivf does not look at all keys.
TOKENS = 3000


def make_context(dtype="bf16", indices=(), tokens=TOKENS):
    """Read by attention in steps, so that queries are kept."""
    random = np.random.default_rng(7)
    builder = topkv.ContextBuilder(SHAPE, tokens, dtype=dtype)
    for first in range(0, tokens, 128):
        count = min(128, tokens - first)
        for layer in range(SHAPE.layers):
            q, k, v = (
                random.standard_normal((count, heads, 64), dtype=np.float32) for heads in (4, 2, 2)
            )
            builder.attend(layer, q, k, v)
    context = builder.freeze()
    for index in indices:
        context = context.with_index(index)
    return context


def large_context(tokens):
    """Rows alone, of 256 bytes a token, in one layer."""
    rows = np.random.default_rng(8).standard_normal((4096, 1, 64), dtype=np.float32)
    builder = topkv.ContextBuilder(topkv.AttentionShape(1, 1, 1, 64), tokens)
    for first in range(0, tokens, len(rows)):
        part = rows[: tokens - first]
        builder.append(0, part, part)
    return builder.freeze()


def answers(context, **options):
    """[steps, layers, q_heads, head_dim] of some steps that retrieve few of the rows."""
    random = np.random.default_rng(9)
    session = topkv.Session(context, k=8, window=16, sinks=2, capacity=8, **options)
    q, k, v = (
        random.standard_normal((3, SHAPE.layers, 1, heads, 64), dtype=np.float32)
        for heads in (4, 2, 2)
    )
    return np.stack(
        [
            [session.attend(i, q[t, i], k[t, i], v[t, i])[0] for i in range(SHAPE.layers)]
            for t in range(len(q))
        ]
    )
