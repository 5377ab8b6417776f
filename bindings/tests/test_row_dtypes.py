"""Contexts whose rows are stored in 8 and 4 bits."""

import numpy as np
import pytest

import topkv

SHAPE = topkv.AttentionShape(layers=1, q_heads=4, kv_heads=2, head_dim=64)


def context(dtype: str, tokens: int = 400) -> tuple[topkv.Context, np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    keys, values = random.standard_normal((2, tokens, 2, 64)).astype(np.float32)
    keys[:, :, 5] *= 30
    builder = topkv.ContextBuilder(SHAPE, capacity=tokens, dtype=dtype)
    builder.append(0, keys, values)
    return builder.freeze(), keys, values


@pytest.mark.parametrize(
    "dtype, key_bytes, value_bytes, key_off, value_off",
    [("q8", 68, 68, 0.006, 0.006), ("q4", 40, 40, 0.1, 0.1), ("q8/q4", 68, 40, 0.006, 0.1)],
)
def test_rows_are_read_back_as_float32(dtype, key_bytes, value_bytes, key_off, value_off):
    made, keys, values = context(dtype)
    assert made.dtype == dtype
    assert made.memory().rows_bytes == 400 * 2 * (key_bytes + value_bytes)
    for given, read, off in ((keys, made.keys(0, 1), key_off), (values, made.values(0, 1), value_off)):
        assert read.dtype == np.float32 and read.shape == (400, 64)
        assert np.linalg.norm(read - given[:, 1]) / np.linalg.norm(given[:, 1]) < off
    # The channel that lies far out takes nothing from its neighbours.
    others = np.arange(64) != 5
    error = np.linalg.norm((made.keys(0, 0) - keys[:, 0])[:, others])
    assert error / np.linalg.norm(keys[:, 0][:, others]) < key_off


def test_sessions_over_them_are_near_those_over_float32():
    query = np.random.default_rng(2).standard_normal((1, 4, 64)).astype(np.float32)
    token = np.zeros((1, 2, 64), np.float32)
    outs = {}
    for dtype in ("f32", "q8", "q4"):
        session = topkv.Session(context(dtype)[0], index="exact", k=64, capacity=8)
        outs[dtype] = session.attend(0, query, token, token)
    size = np.linalg.norm(outs["f32"])
    assert 0 < np.linalg.norm(outs["q8"] - outs["f32"]) / size < 0.05
    assert 0 < np.linalg.norm(outs["q4"] - outs["f32"]) / size < 0.5


def test_unknown_dtypes_are_refused():
    with pytest.raises(topkv.InvalidArgument, match="q5"):
        topkv.ContextBuilder(SHAPE, capacity=8, dtype="q5")
