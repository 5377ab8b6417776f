"""Attend inside a network of your own: it computes q, k and v; topkv keeps the rows, finds the
ones that matter and gives attention back.

Prints how far attention with retrieval is from dense attention over all rows, for several k. The
"network" is a random one-layer stack whose keys point in uneven directions, as those of attention
heads do; what counts is the order of the calls.

    python examples/python/own_network.py
"""

import numpy as np

import topkv

TOKENS, CHUNK, STEPS = 20_000, 1000, 8
shape = topkv.AttentionShape(layers=1, q_heads=8, kv_heads=2, head_dim=64)
random = np.random.default_rng(1)
spread = 5 * np.arange(1, 65, dtype=np.float32) ** -0.4


def normal(tokens, heads):
    return random.standard_normal((tokens, heads, 64), dtype=np.float32)


# Prefill: for each chunk of tokens and each layer, hand over q, k (post-RoPE) and v.
builder = topkv.ContextBuilder(shape, capacity=TOKENS, prefill="window", window=512, sinks=4)
for _ in range(0, TOKENS, CHUNK):
    out = builder.attend(0, normal(CHUNK, 8) * spread, normal(CHUNK, 2) * spread, normal(CHUNK, 2))
    # ... out goes on through the network.
context = builder.freeze()

# Decode: any number of sessions, in any threads, over the one context.
steps = [(normal(1, 8) * spread, normal(1, 2) * spread, normal(1, 2)) for _ in range(STEPS)]


def decode(**options):
    session = topkv.Session(context, window=512, **options)
    return np.concatenate([session.attend(0, *step) for step in steps]), session.stats()


dense, _ = decode(dense_layers=1)
for k in (16, 128, 1024, TOKENS):
    found, stats = decode(k=k)
    error = np.linalg.norm(found - dense) / np.linalg.norm(dense)
    print(f"k = {k:5d}: {stats.rows_retrieved // STEPS:6d} rows a token, relative error {error:.1e}")
