"""Attention mass of the best rows against a softmax over all of them at once."""

import numpy as np
import pytest

import topkv
from topkv import mass

LAYERS, Q_HEADS, KV_HEADS, DIM, TOKENS = 2, 6, 2, 32, 700


def make_context(dtype="f32", **shape):
    random = np.random.default_rng(7)
    keys = random.standard_normal((LAYERS, TOKENS, KV_HEADS, DIM)).astype(np.float32)
    if dtype == "bf16":  # exact in all formats, so that the reference needs no rounding
        keys = (keys.view(np.uint32) & 0xFFFF0000).view(np.float32)
    builder = topkv.ContextBuilder(
        topkv.AttentionShape(LAYERS, Q_HEADS, KV_HEADS, DIM, **shape), TOKENS, dtype=dtype
    )
    for layer in range(LAYERS):
        builder.append(layer, keys[layer], keys[layer])
    return builder.freeze(), keys.astype(np.float64)


def queries_of(count):
    return 3 * np.random.default_rng(8).standard_normal((count, Q_HEADS, DIM)).astype(np.float32)


def brute_force(keys, queries, k, scale=DIM**-0.5, softcap=0.0, sinks=0, window=0):
    shares = np.empty(queries.shape[:2])
    for q in range(queries.shape[0]):
        for head in range(Q_HEADS):
            rows = keys[:, head // (Q_HEADS // KV_HEADS)]
            scores = rows @ queries[q, head].astype(np.float64) * scale
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.exp(scores) / np.exp(scores).sum()
            kept = [row for row in range(TOKENS) if row < sinks or row >= TOKENS - window]
            others = sorted(set(range(TOKENS)) - set(kept), key=lambda row: -weights[row])
            shares[q, head] = weights[kept + others[:k]].sum()
    return shares


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("tile", [1 << 21, 64, 1])
def test_shares_equal_the_softmax_of_all_rows_whatever_the_tile(monkeypatch, dtype, tile):
    monkeypatch.setattr(mass, "_TILE_SCORES", tile * 100)
    context, keys = make_context(dtype)
    queries, ks = queries_of(5), [64, 0, 1, TOKENS, 10 * TOKENS]
    for layer in range(LAYERS):
        shares = mass.attention_mass(context, layer, queries, ks)
        assert shares.shape == (len(ks), 5, Q_HEADS) and shares.dtype == np.float64
        for share, k in zip(shares, ks):
            np.testing.assert_allclose(share, brute_force(keys[layer], queries, k), atol=1e-12)


@pytest.mark.parametrize("tile", [1 << 21, 200])
@pytest.mark.parametrize("sinks, window", [(4, 100), (0, 1), (9, 0), (400, 400), (9999, 9999)])
def test_sinks_and_window_count_as_kept_and_are_not_chosen_again(monkeypatch, tile, sinks, window):
    monkeypatch.setattr(mass, "_TILE_SCORES", tile)
    context, keys = make_context()
    queries = queries_of(2)
    shares = mass.attention_mass(context, 1, queries, [0, 32], sinks=sinks, window=window)
    for share, k in zip(shares, [0, 32]):
        expected = brute_force(keys[1], queries, k, sinks=sinks, window=window)
        np.testing.assert_allclose(share, expected, atol=1e-12)


def test_scale_and_softcap_of_the_shape_are_applied():
    context, keys = make_context(scale=0.5, softcap=3.0)
    queries = queries_of(2)
    (share,) = mass.attention_mass(context, 0, queries, [16])
    np.testing.assert_allclose(share, brute_force(keys[0], queries, 16, 0.5, 3.0), atol=1e-12)
    assert np.abs(share - brute_force(keys[0], queries, 16, 0.5)).max() > 1e-3


def test_large_scores_do_not_overflow():
    context, _ = make_context()
    shares = mass.attention_mass(context, 0, 1e4 * queries_of(1), [1, 2])
    assert np.isfinite(shares).all() and shares.min() > 0.5


def test_arguments_that_do_not_fit_are_refused_in_words():
    context, _ = make_context()
    queries = queries_of(1)
    for arguments, text in (
        ((2, queries, [1]), "expected a layer from 0 to 1, found 2"),
        ((0, queries[:, :2], [1]), r"expected queries \[n, 6, 32\], found shape \[1, 2, 32\]"),
        ((0, queries, []), "expected a list of ks, each 0 or more"),
        ((0, queries, [-1]), "expected a list of ks, each 0 or more"),
    ):
        with pytest.raises(topkv.InvalidArgument, match=text):
            mass.attention_mass(context, *arguments)
    with pytest.raises(topkv.InvalidArgument, match="sinks and window of 0 or more"):
        mass.attention_mass(context, 0, queries, [1], sinks=-1)
    windowed, _ = make_context(sliding_window=[0, 128])
    with pytest.raises(topkv.InvalidArgument, match="layer 1 has a sliding window of 128 rows"):
        mass.attention_mass(windowed, 1, queries, [1])
