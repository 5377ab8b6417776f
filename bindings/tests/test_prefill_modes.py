"""Prefills in which tokens choose the keys that they attend, and the choice between modes."""

import numpy as np
import pytest

import topkv

LAYERS, Q_HEADS, KV_HEADS, DIM = 2, 4, 2, 16
TOKENS = 1000
FEW = {"window": 64, "sinks": 3, "prefill_keys": 128, "prefill_least": 0}


class Text:
    """Random q, k, v of all layers."""

    def __init__(self, random, chunk_len=0):
        self.shape = topkv.AttentionShape(LAYERS, Q_HEADS, KV_HEADS, DIM, chunk_len=chunk_len)
        self.q = 2 * random(LAYERS, TOKENS, Q_HEADS, DIM)
        self.k = random(LAYERS, TOKENS, KV_HEADS, DIM)
        self.v = random(LAYERS, TOKENS, KV_HEADS, DIM)

    def read(self, **options):
        """The attention of all tokens, and the builder that gave it."""
        builder = topkv.ContextBuilder(self.shape, TOKENS, dtype="f32", **options)
        parts = [
            np.stack([
                builder.attend(layer, self.q[layer, a:b], self.k[layer, a:b], self.v[layer, a:b])
                for layer in range(LAYERS)
            ])
            for a, b in ((0, 300), (300, TOKENS))
        ]
        return np.concatenate(parts, axis=1), builder


def context_of(text, tokens, **options):
    """The first tokens as a context."""
    builder = topkv.ContextBuilder(text.shape, tokens, dtype="f32", **options)
    for layer in range(LAYERS):
        builder.attend(layer, *(x[layer, :tokens] for x in (text.q, text.k, text.v)))
    return builder.freeze()


def test_a_budget_above_the_text_is_dense_to_the_bit(random):
    text = Text(random)
    dense, builder = text.read()
    assert builder.share(0).queries == 0
    sparse, builder = text.read(prefill="sparse")
    np.testing.assert_array_equal(sparse, dense)
    share = builder.share(1)
    assert (share.queries, share.mass, share.keys) == (TOKENS * KV_HEADS, 1, 1)
    assert repr(share) == f"PrefillShare(queries={TOKENS * KV_HEADS}, mass=1, keys=1)"


def test_more_keys_come_nearer_to_dense_attention(random):
    text = Text(random)
    dense, _ = text.read()
    errors, masses, keys = [], [], []
    for most in (64, 256, 512):
        sparse, builder = text.read(prefill="sparse", **FEW | {"prefill_keys": most}, prefill_mass=1)
        errors.append(np.linalg.norm(sparse - dense) / np.linalg.norm(dense))
        share = builder.share(0)
        masses.append(share.mass)
        keys.append(share.keys)
    window, _ = text.read(prefill="window", window=64, sinks=3)
    errors.insert(0, np.linalg.norm(window - dense) / np.linalg.norm(dense))
    assert errors == sorted(errors, reverse=True) and errors[-1] < errors[0] / 2
    assert masses == sorted(masses) and 0 < masses[0] < masses[-1] < 1
    assert keys == sorted(keys) and 0 < keys[0] < keys[-1] < 1


def test_a_share_can_be_measured(random):
    text = Text(random)
    estimated, builder = text.read(prefill="sparse", **FEW)
    measured, of_all = text.read(prefill="sparse", **FEW, prefill_measure=True)
    np.testing.assert_array_equal(measured, estimated)
    assert of_all.share(0).keys == builder.share(0).keys
    assert of_all.share(0).mass != builder.share(0).mass
    assert of_all.share(0).mass == pytest.approx(builder.share(0).mass, abs=0.1)


def test_fewer_keys_are_chosen_once_a_share_is_met(random):
    text = Text(random)
    keys = [text.read(prefill="sparse", **FEW, prefill_mass=x)[1].share(0).keys for x in (0.2, 0.5, 1)]
    assert keys[0] < keys[1] < keys[2]
    least = text.read(prefill="sparse", **FEW | {"prefill_least": 128}, prefill_mass=0.2)[1]
    assert least.share(0).keys == keys[2]


@pytest.mark.parametrize(
    "option",
    [
        {"prefill_keys": 0},
        {"prefill_keys": -1},
        {"prefill_least": -1},
        {"prefill_keys": 64, "prefill_least": 65},
        {"prefill_mass": 0},
        {"prefill_mass": 1.1},
        {"prefill_mass": float("nan")},
        {"window": 0},
        {"sinks": -1},
    ],
)
def test_numbers_out_of_range_are_refused(option):
    shape = topkv.AttentionShape(LAYERS, Q_HEADS, KV_HEADS, DIM)
    with pytest.raises(topkv.InvalidArgument):
        topkv.ContextBuilder(shape, TOKENS, prefill="sparse", **option)


def test_a_mode_is_one_of_four():
    shape = topkv.AttentionShape(LAYERS, Q_HEADS, KV_HEADS, DIM)
    says = "prefill is 'full'; expected 'auto', 'dense', 'sparse' or 'window'"
    with pytest.raises(topkv.InvalidArgument, match=says):
        topkv.ContextBuilder(shape, TOKENS, prefill="full")
    with pytest.raises(topkv.InvalidArgument, match="'auto' without the length of the text"):
        topkv.ContextBuilder(shape, TOKENS, prefill="auto")
    chunks = topkv.AttentionShape(LAYERS, Q_HEADS, KV_HEADS, DIM, chunk_len=100)
    with pytest.raises(topkv.Unsupported, match="chunks of 100 tokens; expected a multiple of 128"):
        topkv.ContextBuilder(chunks, TOKENS, prefill="sparse")


def test_auto_depends_on_the_shape():
    def shape(chunk_len=0):
        return topkv.AttentionShape(LAYERS, Q_HEADS, KV_HEADS, DIM, chunk_len=chunk_len)

    assert topkv.resolve_prefill("auto", 8192, "cpu") == "dense"
    assert topkv.resolve_prefill("auto", 8193, "cpu") == "sparse"
    assert topkv.resolve_prefill("auto", 1 << 20, "cpu") == "sparse"
    assert topkv.resolve_prefill("auto", 1 << 20, "cpu", shape=shape(), keys=1 << 20) == "sparse"
    assert topkv.resolve_prefill("auto", 1 << 20, "cpu", shape=shape(100)) == "dense"
    assert topkv.resolve_prefill("auto", 1 << 20, "cpu", shape=shape(8192)) == "sparse"
    with pytest.raises(topkv.Unsupported, match="chunks of 100 tokens; expected a multiple of 128"):
        topkv.resolve_prefill("sparse", 1 << 20, "cpu", shape=shape(100))
    some = {"memory": 0, "chunk": 100, "capacity": 1 << 20, "dtype": "q8", "window": 64, "sinks": 0}
    assert topkv.resolve_prefill("auto", 1 << 20, "cpu", shape=shape(), **some) == "sparse"
    for wrong in ({"chunk": 0}, {"capacity": -1}, {"shape": None}):
        with pytest.raises(topkv.InvalidArgument, match="expected a shape, at least 1 and at least 0"):
            topkv.resolve_prefill("auto", 1, "cpu", **{"shape": shape()} | some | wrong)
    for mode in ("dense", "window", "sparse"):
        assert topkv.resolve_prefill(mode, 1 << 20, "cpu") == mode
    with pytest.raises(topkv.InvalidArgument, match="prefill is 'full'"):
        topkv.resolve_prefill("full", 1)


def test_a_model_reads_in_each_mode(needle_14m):
    model = topkv.Model.load(needle_14m, "cpu")
    tokens = model.tokenizer().encode("The sky is blue and the grass is green by the sea. " * 60)
    few = {"window": 64, "prefill_keys": 64}
    keys = {}
    for mode in ("dense", "window", "sparse", "auto"):
        shares = []
        context = model.prefill(tokens, mode, kv_dtype="f32", shares=shares, **few)
        assert context.tokens == len(tokens) and len(shares) == model.config.attention.layers
        keys[mode] = context.keys(3, 0)
        for share in shares:
            if mode == "sparse":
                assert share.queries > 0 and 0 < share.mass < 1 and 0 < share.keys < 0.5
            else:
                assert share.queries == 0
    np.testing.assert_array_equal(keys["auto"], keys["dense"])
    assert not np.array_equal(keys["sparse"], keys["dense"])
    # Those are the text's first tokens, which attend everything.
    np.testing.assert_allclose(keys["sparse"][:64], keys["dense"][:64], atol=1e-4)
    whole = model.prefill(tokens, "sparse", kv_dtype="f32")
    np.testing.assert_array_equal(whole.keys(3, 0), keys["dense"])
    plans = topkv.memory_plans(needle_14m, 1000, prefill="auto")
    assert plans[0].host.peak == topkv.memory_plans(needle_14m, 1000)[0].host.peak
    assert plans[0].prefill == "dense"  # a short text
    assert topkv.memory_plans(needle_14m, 10000, prefill="auto")[0].prefill == "sparse"
    assert topkv.Model.plan(needle_14m, "cpu", "sparse").prefill == "sparse"


def test_turns_attend_what_one_prefill_does(random):
    text = Text(random)
    whole, builder = text.read(prefill="sparse", **FEW)
    begin = context_of(text, 300, prefill="sparse", **FEW)
    session = topkv.Session(begin, sinks=3, turns="sparse", turn_window=64, turn_keys=128, turn_least=0)
    assert [share.queries for share in session.turn_shares()] == [0] * LAYERS
    for layer in range(LAYERS):
        out = session.attend(layer, text.q[layer, 300:], text.k[layer, 300:], text.v[layer, 300:])
        np.testing.assert_array_equal(out, whole[layer, 300:])
    for share, all_read in zip(session.turn_shares(), map(builder.share, range(LAYERS))):
        assert share.queries == (TOKENS - 300) * KV_HEADS
        assert 0 < share.mass < 1 and 0 < share.keys < all_read.keys
    assert session.stats().steps == 0


def test_without_turns_each_token_finds_rows(random):
    text = Text(random)
    begin = context_of(text, 300)
    session = topkv.Session(begin)
    session.attend(0, text.q[0, 300:], text.k[0, 300:], text.v[0, 300:])
    assert session.stats().steps == TOKENS - 300
    assert session.turn_shares()[0].queries == 0


def test_turns_in_a_window_are_refused(random):
    with pytest.raises(topkv.InvalidArgument, match="turns are read in the mode 'window'; expected 'auto'"):
        topkv.Session(context_of(Text(random), 300), turns="window")
