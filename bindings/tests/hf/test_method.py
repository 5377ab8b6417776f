"""Methods written in Python: what they find is what is attended, and what they may not return."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import topkv
from small_models import (
    assert_logits_agree,
    dtype_of,
    logits_by_pieces,
    make_ids,
    make_model,
    tolerance,
)
from topkv.hf import TopkCache

TEXT, WINDOW, SINKS = 120, 16, 4
PIECES = [9, 1, 1, 5, 1, 1, 12]  # the text's last tokens leave the window, and own ones follow


class Largest:
    def search(self, queries, keys, k, scale):
        return (queries @ keys.T).topk(k).indices


class All:
    def search(self, queries, keys, k, scale):
        return torch.arange(k, device=keys.device)


class ExactTail:
    """Selects a few rows of the whole group, and attends all others exactly."""

    def search(self, queries, keys, k, scale):
        return (queries @ keys.T).sum(0).topk(min(3, k)).indices

    def tail(self, queries, keys, values, selected, scale):
        left = torch.ones(len(keys), dtype=torch.bool, device=keys.device)
        left[selected] = False
        scores = scale * queries @ keys[left].T
        return scores.softmax(-1) @ values[left], scores.logsumexp(-1)


def read(model, **options):
    ids = make_ids(TEXT + sum(PIECES), model.device)
    options = {"index": "exact", "k": 5, "window": WINDOW, "sinks": SINKS} | options
    cache = TopkCache(model.config, **options)
    model(ids[:, :TEXT], past_key_values=cache, use_cache=True)
    return cache.freeze(), ids


def logits_after(model, cache, ids):
    return logits_by_pieces(model, cache, ids[:, TEXT:], PIECES)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_the_largest_rows_are_those_of_exact_search(family, device):
    model = make_model(family, device)  # float32: a rounding to 16 bits may choose another row
    cache, ids = read(model)
    exact = cache.session()
    own = cache.session(method=cache.prepare(Largest))
    expected = logits_after(model, exact, ids)
    found = logits_after(model, own, ids)
    # Until a token after the text leaves the window: of these exact search takes the best, too.
    difference = (found - expected)[:, :WINDOW].abs().max()
    assert difference <= tolerance(model, ids)
    assert exact.stats()[0].steps == own.stats()[0].steps


def test_rows_are_counted_as_exact_search_counts_them(device):
    model = make_model("llama", device, dtype_of(device))
    cache, ids = read(model, dense_layers=1)
    exact, own = cache.session(k=7), cache.session(k=7, method=cache.prepare(Largest))
    for session in (exact, own):
        logits_by_pieces(model, session, ids[:, TEXT : TEXT + 10], [9, 1])
    assert own.stats()[0].rows_retrieved == exact.stats()[0].rows_retrieved == 10 * 2 * 4 * 7
    assert own.stats()[0].steps == exact.stats()[0].steps == 10 * 3


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_all_rows_are_dense_attention(family, device):
    model = make_model(family, device, dtype_of(device))
    cache, ids = read(model)
    found = logits_after(model, cache.session(k=10_000, method=cache.prepare(All)), ids)
    assert_logits_agree(found, model, ids, first=TEXT)


def test_an_exact_tail_is_dense_attention(device):
    model = make_model("llama", device, dtype_of(device))
    cache, ids = read(model)
    found = logits_after(model, cache.session(method=cache.prepare(ExactTail)), ids)
    assert_logits_agree(found, model, ids, first=TEXT)
    without = logits_after(model, cache.session(k=3, method=cache.prepare(Largest)), ids)
    assert (without - found).abs().max() > 1e-3 * found.abs().max()


def test_each_layer_and_head_is_prepared_once_and_searched_by_its_own_object(device):
    made = []

    class Counted(Largest):
        def __init__(self):
            made.append(self)
            self.prepared = []

        def prepare(self, keys, values):
            assert keys.shape == values.shape == (TEXT - SINKS, 64)
            assert keys.dtype == values.dtype == torch.float32
            self.prepared.append(keys)

        def search(self, queries, keys, k, scale):
            assert queries.shape == (2, 64) and k == 5 and scale == pytest.approx(64**-0.5)
            assert torch.equal(keys, self.prepared[0][: len(keys)])
            return super().search(queries, keys, k, scale)

    model = make_model("llama", device, dtype_of(device))
    cache, ids = read(model)
    method = cache.prepare(Counted)
    for _ in range(2):
        logits_after(model, cache.session(method=method), ids)
    assert [len(one.prepared) for one in made] == [1] * (3 * 2)


def test_a_session_goes_back_to_before_a_call_that_failed(device):
    model = make_model("llama", device, dtype_of(device))
    cache, ids = read(model)
    fails = {"now": False}

    class Fails(Largest):
        def search(self, queries, keys, k, scale):
            if fails["now"] and len(keys) > TEXT - SINKS - WINDOW + 2:
                raise KeyError("lost")
            return super().search(queries, keys, k, scale)

    expected = logits_after(model, cache.session(method=cache.prepare(Largest)), ids)
    session = cache.session(method=cache.prepare(Fails))
    fails["now"] = True
    with pytest.raises(topkv.InvalidArgument, match="Fails.search, layer 0, KV head 0.*KeyError"):
        model(ids[:, TEXT : TEXT + 9], past_key_values=session, use_cache=True)
    fails["now"] = False
    assert session.get_seq_length() == TEXT
    assert torch.equal(logits_after(model, session, ids), expected)


@pytest.mark.parametrize(
    "returned, says",
    [
        (lambda n: [1, 2], "returned a list; expected int64 positions"),
        (lambda n: torch.tensor([1.0, 2.0]), "a tensor of torch.float32"),
        (lambda n: torch.tensor([1, 2], dtype=torch.int32), "a tensor of torch.int32"),
        (lambda n: torch.arange(6), r"torch.int64 \[6\]; expected .* n at most 5"),
        (lambda n: torch.zeros(3, 1, dtype=torch.int64), r"\[3, 1\]; expected .* \[2, n\]"),
        (lambda n: torch.tensor(3), r"torch.int64 \[\]"),
        (lambda n: torch.tensor([0, n]), "returned position [0-9]+; expected positions from 0 to"),
        (lambda n: torch.tensor([-1, 0]), "returned position -1"),
        (lambda n: torch.tensor([[0, 1], [4, 4]]), "returned position 4 twice"),
    ],
)
def test_positions_that_cannot_be_are_refused(returned, says):
    class Wrong:
        def search(self, queries, keys, k, scale):
            return returned(len(keys))

    model = make_model("llama", "cpu")
    cache, ids = read(model)
    session = cache.session(method=cache.prepare(Wrong))
    with pytest.raises(topkv.InvalidArgument, match=f"Wrong.search, layer 0, KV head 0: .*{says}"):
        model(ids[:, TEXT:], past_key_values=session, use_cache=True)


@pytest.mark.parametrize(
    "returned, says",
    [
        (lambda q: q, r"returned a tensor of torch.float32 \[2, 64\]; expected \(out, lse\)"),
        (lambda q: (q, q), r"returned lse as a tensor of torch.float32 \[2, 64\]"),
        (lambda q: (q[:1], q[:, 0]), r"returned out as a tensor of torch.float32 \[1, 64\]"),
        (lambda q: (q.long(), q[:, 0]), "returned out as a tensor of torch.int64"),
        (lambda q: (q * torch.nan, q[:, 0]), "an out that is not finite"),
        (lambda q: (q, q[:, 0] * torch.nan), "an lse of nan or inf"),
    ],
)
def test_tails_that_cannot_be_are_refused(returned, says):
    class Wrong(Largest):
        def tail(self, queries, keys, values, selected, scale):
            return returned(queries)

    model = make_model("llama", "cpu")
    cache, ids = read(model)
    session = cache.session(method=cache.prepare(Wrong))
    with pytest.raises(topkv.InvalidArgument, match=f"Wrong.tail, layer 0, KV head 0: .*{says}"):
        model(ids[:, TEXT:], past_key_values=session, use_cache=True)


def test_what_a_method_cannot_serve_is_refused_with_its_reason():
    model = make_model("llama", "cpu")
    cache, ids = read(model)
    method = cache.prepare(Largest)
    for given, says in (
        ({"batch": 2}, "a batch of 2"),
        ({"tail": "mean"}, "tail says how an index is used"),
        ({"k": "uniform:12"}, "k is 'uniform:12'"),
        ({"sinks": 5}, "was prepared for 4"),
        ({"method": Largest}, r"expected the result of cache.prepare\(a class\)"),
        ({"method": read(model)[0].prepare(Largest)}, "over another text"),
    ):
        with pytest.raises(topkv.InvalidArgument, match=says):
            cache.session(**{"method": method} | given)
    with pytest.raises(topkv.InvalidArgument, match="object has no method search"):
        cache.prepare(object)
    with pytest.raises(topkv.InvalidArgument, match="expected a class"):
        cache.prepare("Largest")
    coded, _ = read(model, kv_dtype="q8")
    with pytest.raises(topkv.Unsupported, match="rows of this text are q8"):
        coded.prepare(Largest)
    capped, _ = read(make_model("gemma2", "cpu"))
    with pytest.raises(topkv.Unsupported, match="ExactTail has a tail, and this model caps"):
        capped.prepare(ExactTail)
