"""Contexts and sessions against attention in float64 over all rows."""

import gc
import itertools

import numpy as np
import pytest
from reference import attention, best_rows, causal

import topkv

LAYERS, Q_HEADS, KV_HEADS, DIM = 2, 6, 2, 16
TOLERANCE = 256 * 2.0**-23  # sums of some hundred float32 terms of order one
SHAPES = {
    "plain": {},
    "scaled": {"scale": 0.1},
    "softcap": {"softcap": 1.5},
    "sliding": {"sliding_window": [0, 7]},
}


class Steps:
    """Random q, k, v of all layers and tokens, and their attention in float64."""

    def __init__(self, random, tokens, **shape):
        self.shape = topkv.AttentionShape(LAYERS, Q_HEADS, KV_HEADS, DIM, **shape)
        self.q = random(LAYERS, tokens, Q_HEADS, DIM)
        self.k = random(LAYERS, tokens, KV_HEADS, DIM)
        self.v = random(LAYERS, tokens, KV_HEADS, DIM)
        self.tokens = tokens

    def builder(self, capacity=None, **options):
        return topkv.ContextBuilder(self.shape, capacity or self.tokens, dtype="f32", **options)

    def context(self, tokens):
        builder = self.builder(tokens)
        for layer in range(LAYERS):
            builder.append(layer, self.k[layer, :tokens], self.v[layer, :tokens])
        return builder.freeze()

    def run(self, target, begin, end, lse=None):
        """One step of all layers: [layers, tokens, q_heads, dim]."""
        return np.stack(
            [
                target.attend(
                    layer,
                    self.q[layer, begin:end],
                    self.k[layer, begin:end],
                    self.v[layer, begin:end],
                    lse=None if lse is None else lse[layer, begin:end],
                )
                for layer in range(LAYERS)
            ]
        )

    def dense(self, begin, end, window=None, sinks=0):
        """(out, lse) of these tokens over all before them, in float64."""
        results = []
        for layer in range(LAYERS):
            sliding = self.shape.sliding_window[layer] if self.shape.sliding_window else 0
            visible = causal(end - begin, end, begin, sliding or window, 0 if sliding else sinks)
            scale = self.shape.scale or None
            results.append(
                attention(self.q[layer, begin:end], self.k[layer, :end], self.v[layer, :end],
                          visible, scale, self.shape.softcap)
            )
        return tuple(np.stack(part) for part in zip(*results))


def check(got, wanted):
    np.testing.assert_allclose(got, wanted, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_prefill_in_chunks_is_causal_attention(shape, random):
    steps = Steps(random, 90, **shape)
    builder = steps.builder()
    lse = np.full((LAYERS, 90, Q_HEADS), np.nan, np.float32)
    bounds = [0, 1, 30, 33, 90]
    parts = [steps.run(builder, a, b, lse) for a, b in itertools.pairwise(bounds)]
    out, wanted_lse = steps.dense(0, 90)
    check(np.concatenate(parts, axis=1), out)
    check(lse, wanted_lse)
    assert [builder.tokens(layer) for layer in range(LAYERS)] == [90, 90]


def test_each_query_meets_the_chunks_that_it_is_for(random):
    steps = Steps(random, 100, chunk_len=30)
    forms = [steps.q, random(*steps.q.shape), random(*steps.q.shape)]
    assert steps.shape.chunk_len == 30 and "chunk_len=30" in repr(steps.shape)

    def wanted(layer, t, head):  # one softmax over all keys, each met by the query of its chunk
        kv = head // (Q_HEADS // KV_HEADS)
        chunks = [min(t // 30 - x // 30, 2) for x in range(t + 1)]
        q = np.stack([forms[form][layer, t, head] for form in chunks]).astype(np.float64)
        scores = (q * steps.k[layer, : t + 1, kv]).sum(-1) * steps.shape.softmax_scale
        weights = np.exp(scores - scores.max())
        return weights @ steps.v[layer, : t + 1, kv].astype(np.float64) / weights.sum()

    def run(target, begin, end):
        return np.stack([
            target.attend(layer, *(x[layer, begin:end] for x in (steps.q, steps.k, steps.v)),
                          q_next=forms[1][layer, begin:end], q_far=forms[2][layer, begin:end])
            for layer in range(LAYERS)])

    builder = steps.builder()
    outs = [run(builder, 0, 70), run(builder, 70, 80)]
    session = topkv.Session(builder.freeze(), k=1000, window=5, sinks=2)
    outs += [run(session, 80, 81), run(session, 81, 100)]
    got = np.concatenate(outs, axis=1)
    for layer, t, head in itertools.product(range(LAYERS), range(0, 100, 3), range(Q_HEADS)):
        check(got[layer, t, head], wanted(layer, t, head))
    with pytest.raises(ValueError, match="q_next is null"):
        session.attend(0, steps.q[0, :1], steps.k[0, :1], steps.v[0, :1])
    with pytest.raises(ValueError, match="chunk_len is -1"):
        topkv.AttentionShape(LAYERS, Q_HEADS, KV_HEADS, DIM, chunk_len=-1)


def test_window_prefill_sees_sinks_and_the_last_tokens(random):
    steps = Steps(random, 60)
    builder = steps.builder(prefill="window", window=8, sinks=3)
    parts = [steps.run(builder, a, b) for a, b in ((0, 25), (25, 60))]
    check(np.concatenate(parts, axis=1), steps.dense(0, 60, window=8, sinks=3)[0])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_session_that_retrieves_all_rows_is_dense_attention(shape, random):
    steps = Steps(random, 80, **shape)
    session = topkv.Session(steps.context(60), k=1000, window=5, sinks=2)
    lse = np.full((LAYERS, 80, Q_HEADS), np.nan, np.float32)
    parts = [steps.run(session, a, b, lse) for a, b in ((60, 61), (61, 62), (62, 75), (75, 80))]
    out, wanted_lse = steps.dense(60, 80)
    check(np.concatenate(parts, axis=1), out)
    check(lse[:, 60:], wanted_lse)
    assert (session.tokens, session.own_tokens) == (80, 20)


def test_a_small_k_attends_sinks_window_and_the_best_rows_alone(random):
    k, window, sinks = 4, 6, 2
    steps = Steps(random, 101)
    session = topkv.Session(steps.context(100), k=k, window=window, sinks=sinks)
    out = steps.run(session, 100, 101)
    for layer, head in itertools.product(range(LAYERS), range(Q_HEADS)):
        keys = steps.k[layer, :, head // 3]
        q = steps.q[layer, 100, head]
        found = best_rows(q[None], keys, k, [(sinks, 101 - window)])[0]
        visible = np.zeros((1, 101), bool)
        visible[0, [*range(sinks), *found, *range(101 - window, 101)]] = True
        wanted, _ = attention(q[None, None], keys[:, None], steps.v[layer, :, head // 3][:, None],
                              visible)
        check(out[layer, 0, head], wanted[0, 0])
    stats = session.stats()
    assert stats.steps == LAYERS
    assert stats.rows_retrieved == LAYERS * Q_HEADS * k
    assert stats.rows_per_head(Q_HEADS) == stats.rows_per_retrieving_head(Q_HEADS) == k
    assert stats.recall is None
    times = session.step_times()
    assert len(times) == LAYERS
    assert times[0].total >= times[0].search > 0


def test_a_session_with_a_tail_tells_how_good_it_was(random):
    steps = Steps(random, 401)
    context = steps.context(400).with_index("codes")
    session = topkv.Session(context, k=8, window=6, tail="codes")
    steps.run(session, 400, 401)
    figures = session.tail_figures()
    assert [of.heads for of in figures] == [Q_HEADS] * LAYERS
    for of in figures:
        assert 0 < of.mean_exact_mass < 1
        assert of.exact_mass == pytest.approx(of.mean_exact_mass * of.heads)
        assert 0 < of.mean_error < 2
    assert repr(figures[0]).startswith(f"TailFigures(heads={Q_HEADS}, mean_exact_mass=0.")
    assert session.stats().device_index_bytes == 0  # of the device's memory
    assert session.stats().coded_tokens == 0  # there are too few of its own
    without = topkv.Session(context, k=8, window=6)
    assert all(of.mean_error is None is of.mean_exact_mass for of in without.tail_figures())
    assert repr(without.tail_figures()[0]) == "TailFigures(heads=0)"
    steps.run(without, 400, 401)
    assert [of.heads for of in without.tail_figures()] == [0] * LAYERS


def test_a_guarantee_samples_rows_that_are_not_found(random):
    steps = Steps(random, 801)
    context = steps.context(800).with_index("codes")

    def run(guarantee, **given):
        session = topkv.Session(context, window=6, k=8, guarantee=guarantee, **given)
        return steps.run(session, 800, 801), session.stats()

    dense, _ = steps.dense(800, 801)
    for index in ("exact", "codes"):
        outs, stats = run((1e-9, 0.01), index=index)
        np.testing.assert_allclose(outs, dense, atol=TOLERANCE)
        assert stats.went_dense == LAYERS * Q_HEADS
        assert stats.rows_retrieved - stats.rows_sampled == 8 * LAYERS * Q_HEADS
        some, stats = run([0.9, 0.9], index=index)
        np.testing.assert_array_equal(some, run((0.9, 0.9), index=index)[0])
    for bad in ((0, 0.1), (0.1, 1), (float("nan"), 0.1)):
        with pytest.raises(topkv.InvalidArgument, match="both must be above 0 and below 1"):
            run(bad)
    with pytest.raises(topkv.InvalidArgument, match="guarantee does not go with tail 'codes'"):
        run((0.1, 0.1), tail="codes")
    with pytest.raises(topkv.InvalidArgument, match="guarantee does not go with mass"):
        run((0.1, 0.1), mass=0.9)
    with pytest.raises(TypeError):
        run(0.1)


def test_rules_say_how_many_rows_are_enough(random):
    steps = Steps(random, 801)
    context = steps.context(800).with_index("codes")

    def run(**given):
        session = topkv.Session(context, window=6, tail="codes", **given)
        return steps.run(session, 800, 801), session.stats()

    dense, _ = steps.dense(800, 801)
    plain, stats = run(k=8)
    assert stats.retrieved_more == stats.went_dense == 0
    outs, stats = run(k=8, error=1e-9)
    np.testing.assert_allclose(outs, dense, atol=TOLERANCE)
    assert stats.went_dense == stats.retrieved_more == LAYERS * Q_HEADS
    outs, stats = run(k=8 * 16, mass=1e-9)
    np.testing.assert_array_equal(outs, plain)
    assert stats.retrieved_more == 0
    for bad in (0, 1, -1, float("nan")):
        with pytest.raises(topkv.InvalidArgument, match="mass is .*above 0 and below 1"):
            run(mass=bad)
    with pytest.raises(topkv.InvalidArgument, match="error is 0; it must be above 0"):
        run(error=0)
    with pytest.raises(topkv.InvalidArgument, match="error is 0.1, but the session has no tail"):
        topkv.Session(context, error=0.1)


def test_k_may_be_per_layer_or_a_sum(random):
    steps = Steps(random, 101)
    context = steps.context(100)
    for k, rows in (([3, 5], 8), ("3,5", 8), ("uniform:10", 10), (np.int64(4), 8), ((3, 5), 8)):
        session = topkv.Session(context, k=k, window=6)
        steps.run(session, 100, 101)
        assert session.stats().rows_retrieved == rows * Q_HEADS
    with pytest.raises(topkv.InvalidArgument, match="k is given for 3 layers; the model has 2"):
        topkv.Session(context, k=[1, 2, 3])


def test_options_that_change_what_is_attended_have_effect(random):
    steps = Steps(random, 101)
    context = steps.context(100)
    group = topkv.Session(context, k=4, window=6, select_by="group")
    steps.run(group, 100, 101)
    assert group.stats().rows_retrieved == LAYERS * Q_HEADS * 4
    dense = topkv.Session(context, k=1, window=1, sinks=0, dense_layers=LAYERS)
    check(steps.run(dense, 100, 101), steps.dense(100, 101)[0])
    assert dense.stats().rows_retrieved == 0
    assert dense.stats().retrieving_steps == 0 < dense.stats().steps
    assert dense.stats().rows_per_head(Q_HEADS) == dense.stats().rows_per_retrieving_head(Q_HEADS) == 0
    measured = topkv.Session(context, k=4, window=6, measure_recall=True)
    steps.run(measured, 100, 101)
    assert measured.stats().recall == 1.0


def test_attention_by_position_is_the_sum_of_softmax_weights(random):
    steps = Steps(random, 104)
    context = steps.context(100)
    session = topkv.Session(context, k=1000, window=6, measure_attention=True)
    assert not session.attention_by_position().any()
    steps.run(session, 100, 104)
    wanted = np.zeros(104)
    group = Q_HEADS // KV_HEADS
    for layer in range(LAYERS):
        q, k = (np.asarray(x[layer], np.float64) for x in (steps.q, steps.k))
        for token in range(100, 104):
            for head in range(Q_HEADS):
                weights = np.exp(k[: token + 1, head // group] @ q[token, head] / np.sqrt(q.shape[-1]))
                wanted[: token + 1] += weights / weights.sum()
    np.testing.assert_allclose(session.attention_by_position(), wanted, rtol=2e-4, atol=1e-6)
    session.reset_attention()
    assert not session.attention_by_position().any()
    with pytest.raises(topkv.InvalidArgument, match="open it with measure_attention"):
        topkv.Session(context).attention_by_position()
    with pytest.raises(topkv.Unsupported, match="guarantee"):
        topkv.Session(context, guarantee=(0.1, 0.05), measure_attention=True)


def test_parts_of_a_sequence_merge_to_the_whole(random):
    """Two ranks hold the rows of half of each step's tokens; both are given all queries."""
    steps = Steps(random, 64)
    whole = steps.dense(0, 64)
    ranks = [steps.builder() for _ in range(2)]
    for begin, end in ((0, 20), (20, 63), (63, 64)):
        tokens = end - begin
        middle = tokens // 2
        for layer in range(LAYERS):
            parts = []
            for rank, (first, last) in zip(ranks, ((0, middle), (middle, tokens))):
                given = slice(begin + first, begin + last)
                part_lse = np.empty((tokens, Q_HEADS), np.float32)
                none = first == last
                part_out = rank.attend(
                    layer,
                    steps.q[layer, begin:end],
                    None if none else steps.k[layer, given],
                    None if none else steps.v[layer, given],
                    lse=part_lse,
                    kv_first=first,
                    kv_tokens=last - first,
                )
                parts.append(topkv.Partial(part_out, part_lse))
            part = topkv.merge(*parts)
            check(part.out, whole[0][layer, begin:end])
            check(part.lse, whole[1][layer, begin:end])
    contexts = [rank.freeze() for rank in ranks]
    assert contexts[0].tokens + contexts[1].tokens == 64
    reader = topkv.Session(contexts[0], k=100, window=4)
    before = reader.tokens
    for layer in range(LAYERS):
        reader.attend(layer, steps.q[layer, :1], None, None, kv_tokens=0)
    assert reader.tokens == before


def test_truncated_tokens_never_were(random):
    steps = Steps(random, 50)
    context = steps.context(40)
    session = topkv.Session(context, k=8, window=4)
    kept = steps.run(session, 40, 43)
    after = topkv.Session(context, k=8, window=4)
    np.testing.assert_array_equal(steps.run(after, 40, 43), kept)
    steps.run(session, 43, 48)
    session.truncate(3)
    assert session.own_tokens == 3
    np.testing.assert_array_equal(steps.run(session, 43, 50), steps.run(after, 43, 50))
    with pytest.raises(topkv.InvalidArgument, match="11"):
        session.truncate(11)


def test_a_fork_goes_its_own_way(random):
    steps = Steps(random, 44)
    session = topkv.Session(steps.context(40), k=8, window=4)
    steps.run(session, 40, 42)
    fork = session.fork()
    np.testing.assert_array_equal(steps.run(fork, 42, 44), steps.run(session, 42, 44))
    fork.truncate(0)
    assert (fork.own_tokens, session.own_tokens) == (0, 4)
    assert fork.context is session.context


def test_sessions_stepped_together_are_as_one_by_one(random):
    steps = Steps(random, 90)
    context = steps.context(60)
    options = dict(k=4, window=8, sinks=1, capacity=32)
    together = [topkv.Session(context, **options) for _ in range(3)]
    for number, session in enumerate(together[1:], 1):  # each at a place of its own
        steps.run(session, 60, 60 + 5 * number)
    alone = [session.fork() for session in together]
    lse = np.empty((3, 2, Q_HEADS), np.float32)
    for layer in range(LAYERS):
        parts = [
            slice(s.tokens - 2 * (layer > 0), s.tokens + 2 - 2 * (layer > 0)) for s in together
        ]
        q, k, v = (np.stack([x[layer, part] for part in parts]) for x in (steps.q, steps.k, steps.v))
        out = topkv.Session.attend_together(together, layer, q, k, v, lse=lse)
        assert out.shape == (3, 2, Q_HEADS, DIM)
        for number, session in enumerate(alone):
            own_lse = np.empty((2, Q_HEADS), np.float32)
            want = session.attend(layer, q[number], k[number], v[number], lse=own_lse)
            np.testing.assert_array_equal(out[number], want)
            np.testing.assert_array_equal(lse[number], own_lse)
    assert [s.own_tokens for s in together] == [2, 7, 12]
    # Reading moves none of them.
    topkv.Session.attend_together(together, 0, q, None, None, kv_tokens=0)
    assert [s.own_tokens for s in together] == [2, 7, 12]
    with pytest.raises(topkv.InvalidArgument, match="session 1 is given twice"):
        topkv.Session.attend_together([together[0]] * 2, 0, q[:2], k[:2], v[:2])
    with pytest.raises(topkv.InvalidArgument, match=r"sessions\[1\] is None; expected a topkv.Session"):
        topkv.Session.attend_together([together[0], None], 0, q[:2], k[:2], v[:2])
    # Sessions that nobody else holds.
    forks = topkv.Session.attend_together(map(topkv.Session.fork, together), 0, q, k, v)
    kept = topkv.Session.attend_together([s.fork() for s in together], 0, q, k, v)
    np.testing.assert_array_equal(forks, kept)
    with pytest.raises(topkv.InvalidArgument, match="no sessions"):
        topkv.Session.attend_together([], 0, q, k, v)
    with pytest.raises(topkv.InvalidArgument, match=r"3.*sessions|sessions.*3"):
        topkv.Session.attend_together(together, 0, q[:2], k, v)
    with pytest.raises(topkv.InvalidArgument, match="session 1 is over another context"):
        other = topkv.Session(steps.context(60), **options)
        topkv.Session.attend_together([together[0], other], 0, q[:2], k[:2], v[:2])
    assert [s.own_tokens for s in together] == [2, 7, 12]


def test_reserve_in_the_middle_changes_nothing(random):
    steps = Steps(random, 50)
    at_once, grown = steps.builder(50), steps.builder(20)
    for builder in (at_once, grown):
        steps.run(builder, 0, 20)
    with pytest.raises(topkv.InvalidArgument, match="reserve"):
        steps.run(grown, 20, 50)
    grown.reserve(50, chunk=30)
    grown.synchronize()
    assert grown.capacity >= 50
    np.testing.assert_array_equal(steps.run(grown, 20, 50), steps.run(at_once, 20, 50))


def test_an_index_of_a_context_searches_its_rows_and_stays_as_it_is(random):
    steps = Steps(random, 200)
    reports = []
    bare = steps.context(200)
    context = bare.with_index("hnsw:M=8", progress=reports.append)
    assert bare.indices() == ["exact"]
    assert context.indices() == ["exact", "hnsw:M=8,efc=100,ef=0"]
    assert context.memory().index_bytes > bare.memory().index_bytes
    assert context.memory().rows_bytes == LAYERS * KV_HEADS * 200 * 2 * DIM * 4
    last = reports[-1]
    assert (last.stage, last.unit, last.done, last.total) == ("index", "keys", 800, 800)
    queries = random(2, DIM)
    index = context.index("exact", 1, 0)
    del context, bare
    gc.collect()
    found = index.search(queries, 5)
    wanted = best_rows(queries, steps.k[1, :, 0], 5, [(0, 200)] * 2)
    np.testing.assert_array_equal(found.positions(1), wanted[1])
    for change in (index.build, lambda: index.add(random(2, DIM))):
        with pytest.raises(topkv.InvalidArgument, match="belongs to a context, which never changes"):
            change()


def test_an_index_is_found_however_its_spec_is_spelled(random):
    context = Steps(random, 50).context(50).with_index("hnsw:efc=100")
    for spec in ("hnsw", "hnsw:M=16", "hnsw:ef=0,M=16"):
        assert context.has_index(spec)
        assert context.index(spec, 0, 1).spec == "hnsw:M=16,efc=100,ef=0"
        topkv.Session(context, index=spec)
        assert context.with_index(spec).indices() == context.indices()
    assert not context.has_index("hnsw:M=8")
    with pytest.raises(topkv.InvalidArgument, match="unknown option"):
        context.has_index("hnsw:m=8")


def test_a_context_is_made_ready_for_an_index_and_a_tail(random):
    context = Steps(random, 100).context(100)
    for tail in ("", "none"):
        assert context.ready_for("exact", tail) is context
    stages = []
    ready = context.ready_for(
        index="hnsw:M=8", tail="mean", progress=lambda p: stages.append(p.stage), device="cpu"
    )
    assert context.indices() == ["exact"]
    assert ready.indices() == ["exact", "hnsw:M=8,efc=100,ef=0", "mean"]
    assert set(stages) == {"index", "tail"}
    assert ready.ready_for("hnsw:efc=100,M=8", "mean") is ready
    assert topkv.Session(ready, index="hnsw:M=8", tail="mean").tail == "mean"
    stages.clear()
    for index, tail in (("nonsense", "mean"), ("hnsw:M=4", "nonsense"), ("hnsw:M=4", "hnsw:M=8"), ("mean", "")):
        with pytest.raises(topkv.InvalidArgument):
            context.ready_for(index, tail, progress=lambda p: stages.append(p.stage))
    assert not stages and context.indices() == ["exact"]


def test_views_of_rows_are_read_only_and_keep_the_context_alive(random):
    steps = Steps(random, 30)
    context = steps.context(30)
    view = context.keys(1, 1)
    again = context.keys(1, 1)
    assert np.shares_memory(view, again)
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0, 0] = 1
    del context, again
    gc.collect()
    np.testing.assert_array_equal(view, steps.k[1, :, 1])
    with pytest.raises(topkv.InvalidArgument, match="layer 2, KV head 0"):
        steps.context(30).keys(2, 0)


def test_what_things_are_can_be_read_back(random):
    steps = Steps(random, 10, scale=0.5, softcap=3.0, sliding_window=[0, 4])
    shape = steps.context(10).shape
    assert (shape.layers, shape.q_heads, shape.kv_heads, shape.head_dim) == (2, 6, 2, 16)
    assert (shape.scale, shape.softcap, shape.sliding_window) == (0.5, 3.0, [0, 4])
    assert (shape.group, shape.softmax_scale) == (3, 0.5)
    context = steps.context(10)
    assert (context.tokens, context.dtype) == (10, "f32")
    builder = steps.builder(33)
    assert builder.capacity == 33
    assert builder.device.name == "host" and not builder.device.is_cuda
    session = topkv.Session(context)
    assert session.device.name == "host"
    assert session.context is context


def test_refusals_of_contexts_and_sessions(random):
    steps = Steps(random, 10)
    context = steps.context(10)
    with pytest.raises(topkv.InvalidArgument, match="no index 'hnsw:M=16', only exact"):
        topkv.Session(context, index="hnsw:M=16")
    for option, text in (
        (dict(window=0), "window is 0"),
        (dict(select_by="head"), "select_by is 'head'; expected 'query_head' or 'group'"),
        (dict(k="many"), "many"),
        (dict(k=0), "0"),
    ):
        with pytest.raises(topkv.InvalidArgument, match=text):
            topkv.Session(context, **option)
    with pytest.raises(topkv.InvalidArgument, match="prefill is 'full'; expected 'auto', 'dense'"):
        steps.builder(prefill="full")
    with pytest.raises(topkv.InvalidArgument, match="f64"):
        topkv.ContextBuilder(steps.shape, 10, dtype="f64")
    session = topkv.Session(context)
    with pytest.raises(topkv.InvalidArgument, match="layer 0 first"):
        session.attend(1, steps.q[1, :1], steps.k[1, :1], steps.v[1, :1])
    bad = steps.k[0, :1].copy()
    bad[0, 1, 3] = np.nan
    with pytest.raises(topkv.InvalidArgument, match="K of layer 0, KV head 1, position 10"):
        session.attend(0, steps.q[0, :1], bad, steps.v[0, :1])
    assert session.own_tokens == 0
    builder = steps.builder()
    builder.append(0, steps.k[0], steps.v[0])
    with pytest.raises(topkv.InvalidArgument, match="layer 0 holds 10 tokens and layer 1 holds 0"):
        builder.freeze()
    builder.append(1, steps.k[1], steps.v[1])
    builder.freeze()
    for use in (builder.freeze, lambda: builder.tokens(0), lambda: builder.capacity):
        with pytest.raises(topkv.InvalidArgument, match="frozen; make another one"):
            use()


def test_layers_share_rows_and_keep_recurrent_states(random, tmp_path):
    shape = topkv.AttentionShape(3, Q_HEADS, KV_HEADS, DIM, row_layer=[0, 0, 2], state_size=[0, 0, 5])
    assert (shape.row_layer, shape.state_size) == ([0, 0, 2], [0, 0, 5])
    assert repr(shape).endswith(", row_layer=[0, 0, 2], state_size=[0, 0, 5])")
    q, k, v = random(3, 30, Q_HEADS, DIM), random(30, KV_HEADS, DIM), random(30, KV_HEADS, DIM)
    states = random(31, 5)

    def run(target, begin, end):
        target.advance(2, end - begin, states[end])
        first = target.attend(0, q[0, begin:end], k[begin:end], v[begin:end])
        second = target.attend(1, q[1, begin:end], None, None)
        for layer, out in enumerate((first, second)):
            visible = causal(end - begin, end, begin)
            check(out, attention(q[layer, begin:end], k[:end], v[:end], visible)[0])

    builder = topkv.ContextBuilder(shape, 20, dtype="f32")
    run(builder, 0, 12)
    builder.snapshot()
    run(builder, 12, 20)
    assert builder.reachable(19) == 12
    with pytest.raises(topkv.InvalidArgument, match="truncate to 12"):
        builder.truncate(15)
    builder.truncate(12)
    np.testing.assert_array_equal(builder.state(2), states[12])
    run(builder, 12, 20)
    context = builder.freeze()
    np.testing.assert_array_equal(context.keys(1, 1), k[:20, 1])
    assert context.memory().rows_bytes == 20 * KV_HEADS * 2 * DIM * 4
    context.save(tmp_path / "c.tkv")
    assert topkv.context_file_info(tmp_path / "c.tkv").states_bytes > 2 * 5 * 4
    loaded = topkv.load_context(tmp_path / "c.tkv").context
    np.testing.assert_array_equal(loaded.state(2), states[20])
    session = topkv.Session(loaded, capacity=16)
    run(session, 20, 25)
    session.snapshot()
    run(session, 25, 28)
    assert (session.reachable(8), session.reachable(7), session.reachable(4)) == (8, 5, 0)
    session.truncate(session.reachable(6))
    np.testing.assert_array_equal(session.state(2), states[25])
    run(session, 25, 30)
    with pytest.raises(topkv.InvalidArgument, match="state_size"):
        session.advance(2, 1, states)
    with pytest.raises(topkv.InvalidArgument, match="layer 1 attends the rows of layer 0"):
        session.attend(1, q[1, :1], k[:1], v[:1])
    with pytest.raises(topkv.InvalidArgument, match="None only together"):
        session.attend(0, q[0, :1], None, None)


def test_layers_with_a_window_have_heads_of_their_own(random):
    shape = topkv.AttentionShape(
        2, 4, 1, 16, scale=0.25, sliding_window=[6, 0], sliding_kv_heads=2, sliding_head_dim=8
    )
    assert (shape.sliding_kv_heads, shape.sliding_head_dim) == (2, 8)
    assert repr(shape).endswith(", sliding_window=[6, 0], sliding_kv_heads=2, sliding_head_dim=8)")
    sizes = [(2, 8), (1, 16)]
    q = [random(30, 4, dim) for _, dim in sizes]
    k, v = ([random(30, heads, dim) for heads, dim in sizes] for _ in range(2))

    def run(target, begin, end):
        for layer, window in enumerate((6, 30)):
            out = target.attend(layer, q[layer][begin:end], k[layer][begin:end], v[layer][begin:end])
            visible = causal(end - begin, end, begin, window)
            want = attention(q[layer][begin:end], k[layer][:end], v[layer][:end], visible, 0.25)[0]
            check(out, want)

    builder = topkv.ContextBuilder(shape, 20, dtype="f32")
    run(builder, 0, 20)
    context = builder.freeze()
    np.testing.assert_array_equal(context.keys(0, 1), k[0][14:20, 1])
    session = topkv.Session(context, capacity=16)
    run(session, 20, 30)
    with pytest.raises(topkv.InvalidArgument, match="head_dim"):
        session.attend(0, q[1][:1], k[1][:1], v[1][:1])


def test_a_builder_reads_on_where_a_context_ends():
    shape = topkv.AttentionShape(layers=2, q_heads=2, kv_heads=1, head_dim=8, sliding_window=[5, 0])
    rng = np.random.default_rng(7)
    k, v = (rng.standard_normal((60, 1, 8)).astype(np.float32) for _ in range(2))
    builder = topkv.ContextBuilder(shape, capacity=40, dtype="f32")
    for layer in range(2):
        builder.append(layer, k[:40], v[:40])
    context = builder.freeze()
    assert [context.first_row(layer) for layer in range(2)] == [35, 0]
    np.testing.assert_array_equal(context.keys(0, 0), k[35:40, 0])
    np.testing.assert_array_equal(context.keys(1, 0), k[:40, 0])
    with pytest.raises(topkv.InvalidArgument, match="layer 2 of a context with 2 layers"):
        context.first_row(2)
    on = topkv.ContextBuilder(shape, capacity=60, dtype="f32")
    on.resume(context)
    with pytest.raises(topkv.InvalidArgument, match="layer 0 of the builder has 40 tokens"):
        on.resume(context)
    for layer in range(2):
        on.append(layer, k[40:], v[40:])
    assert on.reachable(55) == 55 and on.reachable(39) == 0
    with pytest.raises(topkv.InvalidArgument, match="rows of its sliding window; truncate to 0"):
        on.truncate(39)
    whole = on.freeze()
    np.testing.assert_array_equal(whole.values(0, 0), v[55:, 0])
    np.testing.assert_array_equal(whole.values(1, 0), v[:, 0])
