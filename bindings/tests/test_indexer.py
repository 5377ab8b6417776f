"""Layers with a trained indexer: a builder and sessions attend what the indexer chooses."""

import numpy as np
import pytest
import reference

import topkv

LAYERS, Q_HEADS, KV_HEADS, DIM, TOKENS = 2, 4, 2, 16, 90


class Stream:
    """Tensors of a text. Index tensors are small whole numbers, so that their scores are exact."""

    def __init__(self, indexer, indexer_layer=()):
        random = np.random.default_rng(20)
        self.shape = topkv.AttentionShape(
            LAYERS, Q_HEADS, KV_HEADS, DIM, indexer=indexer, indexer_layer=list(indexer_layer)
        )
        self.q = random.standard_normal((LAYERS, TOKENS, Q_HEADS, DIM)).astype(np.float32)
        self.k, self.v = random.standard_normal((2, LAYERS, TOKENS, KV_HEADS, DIM)).astype(np.float32)

        def small(*sizes):
            return random.integers(-3, 4, (LAYERS, *sizes)).astype(np.float32)

        self.index_q = small(TOKENS, indexer.heads, indexer.dim)
        self.index_k = small(TOKENS // indexer.tokens_per_key, indexer.dim)
        self.index_weights = small(TOKENS, indexer.heads)

    def index(self, layer, first, end):
        of = self.shape.indexer
        if self.shape.indexer_layer and self.shape.indexer_layer[layer] != layer:
            return {}
        keys = slice(first // of.tokens_per_key, end // of.tokens_per_key)
        return {
            "index_q": self.index_q[layer, first:end],
            "index_k": self.index_k[layer, keys],
            "index_weights": self.index_weights[layer, first:end],
        }

    def attend(self, builder_or_session, layer, first, end):
        at = slice(first, end)
        return builder_or_session.attend(
            layer, self.q[layer, at], self.k[layer, at], self.v[layer, at], **self.index(layer, first, end)
        )

    def expected(self, layer, first, end):
        """In float64, of single tokens and one choice."""
        of = self.shape.indexer
        chooser = self.shape.indexer_layer[layer] if self.shape.indexer_layer else layer
        visible = np.zeros((end - first, TOKENS), bool)
        for p in range(first, end):
            keys = (p + 1) // of.tokens_per_key
            dots = self.index_q[chooser, p] @ self.index_k[chooser, :keys].T.astype(np.float64)
            if of.score == "relu":
                dots = np.maximum(dots, 0)
            scores = self.index_weights[chooser, p] @ dots
            for key in np.argsort(-scores, kind="stable")[: of.top]:
                visible[p - first, key * of.tokens_per_key : (key + 1) * of.tokens_per_key] = True
            visible[p - first, keys * of.tokens_per_key : p + 1] = True
        at = slice(first, end)
        return reference.attention(self.q[layer, at], self.k[layer], self.v[layer], visible)[0]


@pytest.mark.parametrize("indexer_layer", [(), (0, 0)])
@pytest.mark.parametrize(
    "options",
    [{"heads": 3, "top": 9}, {"heads": 2, "tokens_per_key": 4, "top": 5}, {"heads": 3, "score": "dot", "top": 7}],
)
def test_builders_and_sessions_attend_the_choice(options, indexer_layer):
    stream = Stream(topkv.IndexerShape(dim=12, **options), indexer_layer)
    builder = topkv.ContextBuilder(stream.shape, TOKENS, dtype="f32")
    for first, end in [(0, 30), (30, 31), (31, 60)]:
        for layer in range(LAYERS):
            out = stream.attend(builder, layer, first, end)
            np.testing.assert_allclose(out, stream.expected(layer, first, end), atol=1e-5)
    context = builder.freeze()
    session = topkv.Session(context, window=4, sinks=1, capacity=40)
    together = [topkv.Session(context, capacity=40) for _ in range(2)]
    for first, end in [(60, 61), (61, 66), (66, 90)]:
        for layer in range(LAYERS):
            out = stream.attend(session, layer, first, end)
            np.testing.assert_allclose(out, stream.expected(layer, first, end), atol=1e-5)

            at = slice(first, end)
            index = stream.index(layer, first, end)
            twice = {name: np.stack([array, array]) for name, array in index.items()}
            if index and stream.shape.indexer.tokens_per_key > 1:
                twice["index_k"] = np.concatenate(twice["index_k"])
            both = topkv.Session.attend_together(
                together,
                layer,
                *(np.stack([x[layer, at]] * 2) for x in (stream.q, stream.k, stream.v)),
                **twice,
            )
            np.testing.assert_array_equal(both, [out, out])
    session.truncate(3)
    np.testing.assert_allclose(
        stream.attend(session, 0, 63, 65), stream.expected(0, 63, 65), atol=1e-5
    )


def test_index_arrays_that_do_not_fit_are_refused():
    stream = Stream(topkv.IndexerShape(dim=12, heads=2, tokens_per_key=4, top=5), (0, 0))
    builder = topkv.ContextBuilder(stream.shape, TOKENS)
    q, k, v = stream.q[0, :10], stream.k[0, :10], stream.v[0, :10]
    index = stream.index(0, 0, 10)
    for name, array in [
        ("index_q", index["index_q"][:, :1]),
        ("index_k", stream.index_k[0, :3]),
        ("index_k", None),
        ("index_weights", index["index_weights"][:5]),
        ("index_q", index["index_q"] * np.nan),
    ]:
        with pytest.raises(topkv.InvalidArgument, match=name.replace("index_q", "index_q|queries")):
            builder.attend(0, q, k, v, **{**index, name: array})
    builder.attend(0, q, k, v, **index)
    with pytest.raises(topkv.InvalidArgument, match="layer 0"):
        builder.attend(1, q, k, v, **index)
    plain = topkv.ContextBuilder(topkv.AttentionShape(LAYERS, Q_HEADS, KV_HEADS, DIM), TOKENS)
    with pytest.raises(topkv.InvalidArgument, match="no indexer"):
        plain.attend(0, q, k, v, index_q=index["index_q"])


def test_what_an_indexer_is_can_be_read_back():
    of = topkv.IndexerShape(
        dim=64, heads=4, choices=2, score="dot", tokens_per_key=2, block=8, top=16, local_blocks=1, dtype="bf16"
    )
    assert (of.dim, of.heads, of.choices, of.score, of.tokens_per_key) == (64, 4, 2, "dot", 2)
    assert (of.block, of.top, of.local_blocks, of.dtype) == (8, 16, 1, "bf16")
    assert of.completed(3, 4) == 2
    assert eval(repr(of), {"IndexerShape": topkv.IndexerShape}) == of
    fields = "dim", "heads", "choices", "score", "tokens_per_key", "block", "top", "local_blocks", "dtype"
    changed = 32, 8, 4, "relu", 1, 4, 8, 2, "f32"
    for field, value in zip(fields, changed):
        kept = {name: getattr(of, name) for name in fields}
        assert topkv.IndexerShape(**kept) == of != topkv.IndexerShape(**kept | {field: value})
    shape = topkv.AttentionShape(2, 4, 2, 16, indexer=of, indexer_layer=[0, -1])
    assert shape.indexer == of and shape.indexer_layer == [0, -1]
    assert "indexer=IndexerShape(dim=64" in repr(shape)
    assert topkv.AttentionShape(2, 4, 2, 16).indexer is None
    for wrong in [{"score": "cosine"}, {"dtype": "f8"}]:
        with pytest.raises(topkv.InvalidArgument):
            topkv.IndexerShape(**wrong)
    with pytest.raises(topkv.InvalidArgument, match="choices"):
        topkv.AttentionShape(2, 4, 2, 16, indexer=topkv.IndexerShape(choices=4))
