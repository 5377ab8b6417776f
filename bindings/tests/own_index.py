"""An index written in Python, and contexts and sessions that use it."""

import contextlib

import numpy as np

import topkv

SHAPE = topkv.AttentionShape(layers=2, q_heads=6, kv_heads=2, head_dim=16)
TOKENS, WINDOW, SINKS = 300, 16, 2


class Flat:
    """Scores all keys. Its tail attends all rows that are not attended."""

    def __init__(self, params):
        if params:
            raise ValueError("flat takes no parameters")
        self.keys = self.values = np.empty((0, 0), np.float32)

    @property
    def memory(self):
        return self.keys.nbytes + self.values.nbytes

    def build(self, keys):
        self.keys = keys

    def search(self, queries, k):
        scores = queries.data.astype(np.float64) @ self.keys.T
        position = np.arange(len(self.keys))
        begin, end = queries.allowed.T[:, :, None]
        allowed = (position >= begin) & (position < end)
        best = np.argsort(np.where(allowed, -scores, np.inf), axis=1, kind="stable")[:, :k]
        return np.where(np.take_along_axis(allowed, best, axis=1), best, -1)

    def build_tail(self, values):
        self.values = values

    def tail(self, queries, attended, scale, softcap):
        out, lse = np.zeros_like(queries.data), np.full(len(queries.data), -np.inf)
        for i, (begin, end) in enumerate(queries.allowed):
            left = np.setdiff1d(np.arange(begin, end), attended[i])
            scores = scale * (self.keys[left] @ queries.data[i].astype(np.float64))
            if len(left):
                lse[i] = np.logaddexp.reduce(scores)
                out[i] = np.exp(scores - lse[i]) @ self.values[left]
        return out, lse

    def save(self):
        return self.keys.tobytes()

    def load(self, keys, saved):
        self.keys = np.frombuffer(saved, np.float32).reshape(keys.shape)


@contextlib.contextmanager
def registered(name, cls, **options):
    topkv.register_index(name, cls, **options)
    try:
        yield
    finally:
        topkv.unregister_index(name)


def make_context(layers=SHAPE.layers):
    random = np.random.default_rng(5)
    builder = topkv.ContextBuilder(topkv.AttentionShape(layers, 6, 2, 16), TOKENS)
    for layer in range(layers):
        k, v = random.standard_normal((2, TOKENS, 2, 16), dtype=np.float32)
        builder.append(layer, k, v)
    return builder.freeze()


def session(context, **options):
    return topkv.Session(context, **{"k": 8, "window": WINDOW, "sinks": SINKS, "capacity": 64, **options})


def answers(of, steps=3, step=1, **options):
    """[layers, steps, q_heads, head_dim] of the next steps of a session, or of a new one."""
    reader = session(of, **options) if isinstance(of, topkv.Context) else of
    random = np.random.default_rng(6)
    q, k, v = (
        random.standard_normal((SHAPE.layers, steps, heads, 16), dtype=np.float32)
        for heads in (6, 2, 2)
    )
    out = [
        [reader.attend(layer, *(x[layer, t : t + step] for x in (q, k, v))) for layer in range(SHAPE.layers)]
        for t in range(0, steps, step)
    ]
    return np.concatenate(out, axis=1)
