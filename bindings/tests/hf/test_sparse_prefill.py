"""Prefills of a TopkCache: tokens choose the keys that they attend while a text is read."""

import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import topkv
from small_models import dynamic_logits, logits_by_pieces, make_ids, make_model
from topkv import InvalidArgument
from topkv.hf import TopkCache, engine, install, prefill_mode, uninstall

TEXT = 900
PIECES = [256, 256, 256, 132, 1, 1]
FEW = {"window": 64, "sinks": 4, "k": 4096}
SOME = FEW | {"prefill_keys": 128, "prefill_least": 0, "prefill_mass": 1}


@pytest.fixture(params=["llama", "gemma2", "gpt_oss"])
def model(request):
    try:
        return make_model(request.param, torch.device("cpu"))
    except KeyError:
        pytest.skip("no such small model")


def logits(model, ids, pieces=PIECES, **options):
    return logits_by_pieces(model, TopkCache(model.config, **options), ids, pieces)


@pytest.mark.parametrize("mode", ["sparse", "auto"])
def test_a_budget_above_the_text_is_dense(mode, model):
    ids = make_ids(sum(PIECES), model.device)
    dense = logits(model, ids, **FEW)
    assert torch.equal(logits(model, ids, prefill=mode, prefill_mass=1, **FEW), dense)
    torch.testing.assert_close(dense, dynamic_logits(model, ids, PIECES), atol=1e-3, rtol=1e-3)


def test_chosen_keys_are_nearer_than_the_window(model):
    ids = make_ids(sum(PIECES), model.device)
    dense = logits(model, ids, **FEW)
    sparse = (logits(model, ids, prefill="sparse", **SOME) - dense).norm()
    more = (logits(model, ids, prefill="sparse", **SOME | {"prefill_keys": 512}) - dense).norm()
    window = (logits(model, ids, prefill="window", **FEW) - dense).norm()
    assert 0 < more < sparse < window


def test_pieces_of_whole_blocks_choose_as_the_text_at_once(model):
    ids = make_ids(sum(PIECES), model.device)
    whole = logits(model, ids, [TEXT, 1, 1], prefill="sparse", **SOME)
    parts = logits(model, ids, PIECES, prefill="sparse", **SOME)
    torch.testing.assert_close(parts, whole, atol=1e-3, rtol=1e-3)


def test_auto_is_sparse_on_a_cpu_but_for_short_texts():
    model = make_model("llama", torch.device("cpu"))
    ids = make_ids(sum(PIECES), model.device)
    sparse = logits(model, ids, prefill="sparse", **SOME)
    assert torch.equal(logits(model, ids, prefill="auto", **SOME), sparse)
    known = logits(model, ids, prefill="auto", max_cache_len=8193, **SOME)
    assert torch.equal(known, sparse)
    short = logits(model, ids, prefill="auto", max_cache_len=8192, **SOME)
    assert torch.equal(short, logits(model, ids, **SOME))


def test_generate_reads_so():
    model = make_model("llama", torch.device("cpu"))
    ids = make_ids(TEXT, model.device)
    answers = {}
    for mode in ("dense", "sparse"):
        install(model, prefill_chunk_size=256, prefill=mode, prefill_mass=1, window=64, k=4096)
        answers[mode] = model.generate(ids, max_new_tokens=4, do_sample=False)
        uninstall(model)
    assert torch.equal(answers["sparse"], answers["dense"])  # 8192 keys are all of the text


@pytest.fixture
def memory(monkeypatch):
    """Makes the host a device on which a sparse prefill takes a byte for each token of its capacity.
    Returns a function that sets the bytes, and the capacities that were asked for."""
    left, capacities = [0], []

    def resolve(mode, tokens, device, *, memory=None, capacity=0, **others):
        assert mode == "auto" and tokens > 0 and others["shape"].head_dim > 0
        if memory is None:
            return "sparse" if tokens > 400 else "dense"
        assert others["chunk"] > 0 and others["dtype"] == "f32" and others["keys"] == 128
        capacities.append(capacity)
        return "sparse" if capacity <= memory else "dense"

    monkeypatch.setattr(prefill_mode.topkv, "resolve_prefill", resolve)
    chooses = property(lambda self: self.asked in ("auto", "sparse"))
    monkeypatch.setattr(prefill_mode.PrefillMode, "takes_memory", chooses)
    monkeypatch.setattr(engine, "room_of", lambda device, where: left[0])

    def set_left(count):
        left[0] = count
        capacities.clear()
        return capacities

    return set_left


def read(model, pieces, **options):
    """A cache that has read a text in pieces, and the keys of its last layer."""
    ids = make_ids(sum(pieces), model.device)
    cache, at = TopkCache(model.config, **SOME | options), 0
    for piece in pieces:
        model(ids[:, at : at + piece], past_key_values=cache, use_cache=True)
        at += piece
    mode = cache.prefill_mode
    context = cache.freeze().context
    assert cache.prefill_mode == cache.session().prefill_mode == mode
    return mode, torch.tensor(context.keys(context.shape.layers - 1, 0))


def _densely(warnings):
    """How often it was told that a text is read densely."""
    return sum("densely" in str(warning.message) for warning in warnings)


def test_auto_is_dense_where_all_rows_of_a_layer_do_not_fit(memory):
    model = make_model("llama", torch.device("cpu"))
    pieces = [256, 256, 256, 132]
    dense = read(model, pieces)
    assert dense[0] == "dense"
    sparse = read(model, pieces, prefill="sparse")
    assert sparse[0] == "sparse" and not torch.equal(sparse[1], dense[1])
    memory(1000)
    mode, keys = read(model, pieces, prefill="auto", max_cache_len=1000)
    assert mode == "sparse" and torch.equal(keys, sparse[1])
    capacities = memory(999)
    with pytest.warns(UserWarning, match='prefill="auto" reads this text densely: .* 1000 tokens') as told:
        mode, keys = read(model, pieces, prefill="auto", max_cache_len=1000)
    assert mode == "dense" and torch.equal(keys, dense[1]) and _densely(told) == 1
    assert capacities == [1000]  # it is decided once
    capacities = memory(0)
    assert read(model, [300], prefill="auto", max_cache_len=400)[0] == "dense"
    assert capacities == []  # dense by its length, which is nothing to warn of


def test_a_text_of_unknown_length_that_outgrows_the_memory_is_read_on_densely(memory):
    model = make_model("llama", torch.device("cpu"))
    pieces = [256, 256, 256, 132]
    dense = read(model, pieces)[1]
    sparse = read(model, pieces, prefill="sparse")[1]
    for left, wanted in ((1024, [256, 512, 1024]), (1000, [256, 512, 1024, 768, 1536, 960])):
        capacities = memory(left)
        mode, keys = read(model, pieces, prefill="auto")
        assert mode == "sparse" and torch.equal(keys, sparse)
        assert list(dict.fromkeys(capacities)) == wanted
    memory(600)
    with pytest.warns(UserWarning, match="prefill=.auto. reads this text densely") as told:
        mode, keys = read(model, pieces, prefill="auto")
    assert mode == "dense" and _densely(told) == 1
    assert torch.equal(keys[:512], sparse[:512])
    assert not torch.equal(keys[512:], sparse[512:])
    assert (keys - dense)[512:].norm() < (sparse - dense)[512:].norm()
    # "sparse" is what was asked for: its builder says what is missing.
    assert read(model, pieces, prefill="sparse")[0] == "sparse"


def test_texts_that_grow_side_by_side_share_the_memory_that_is_left(memory):
    model = make_model("llama", torch.device("cpu"))
    ids = make_ids(TEXT, model.device).repeat(2, 1)
    for left, mode in ((2 * 1024, "sparse"), (1100, "dense")):  # each alone would have it
        memory(left)
        cache = TopkCache(model.config, prefill="auto", **SOME)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for at in range(0, TEXT, 256):
                model(ids[:, at : at + 256], past_key_values=cache, use_cache=True)
        assert cache.prefill_mode == mode and (_densely(told) > 0) == (mode == "dense")


def test_a_larger_call_is_asked_for_again(memory, monkeypatch):
    model = make_model("llama", torch.device("cpu"))
    chunks = []
    of = prefill_mode.PrefillMode.of
    monkeypatch.setattr(
        prefill_mode.PrefillMode, "of", lambda self, *x: chunks.append(x[1]) or of(self, *x)
    )
    memory(1000)
    assert read(model, [100, 300, 200], prefill="auto", max_cache_len=600)[0] == "sparse"
    assert chunks == [100, 300]


def test_rows_of_a_known_text_are_reserved_once(memory):
    model = make_model("llama", torch.device("cpu"))
    ids = make_ids(TEXT, model.device)
    for left, mode in ((TEXT, "sparse"), (1, "dense")):
        capacities = memory(left)
        cache = TopkCache(model.config, prefill="auto", **SOME)
        how = {"past_key_values": cache, "max_new_tokens": 2, "prefill_chunk_size": 256, "do_sample": False}
        if mode == "sparse":
            model.generate(ids, **how)
        else:
            with pytest.warns(UserWarning, match="reads this text densely"):
                model.generate(ids, **how)
        assert set(capacities) == {TEXT} and cache.prefill_mode == mode
    # Of two texts with padding each has its own length, and both have the memory together.
    ids, mask = make_ids(TEXT, model.device).repeat(2, 1), torch.ones(2, TEXT, dtype=torch.long)
    mask[1, :200] = 0
    capacities = memory(2 * TEXT)
    cache = TopkCache(model.config, prefill="auto", **SOME)
    model.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=2,
                   prefill_chunk_size=256, do_sample=False)
    assert set(capacities) == {TEXT, TEXT - 200} and cache.prefill_mode == "sparse"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_its_memory_decides(monkeypatch):
    model = make_model("llama", torch.device("cuda"))
    pieces = [8192, 8192, 8192, 8192, 1024]  # more than are read densely by length
    room_of, rooms = engine.room_of, []
    monkeypatch.setattr(engine, "room_of", lambda *x: rooms.append(room_of(*x)) or rooms[-1])
    how = {"prefill": "auto", "max_cache_len": sum(pieces)}
    mode, sparse = read(model, pieces, **how)
    assert mode == "sparse" and 2**20 < rooms[0] <= torch.cuda.mem_get_info()[1]
    assert read(model, pieces, prefill="auto")[0] == "sparse"  # whose rows grow
    monkeypatch.setattr(engine, "room_of", lambda *x: 2**20)
    with pytest.warns(UserWarning, match="reads this text densely: .* of 33792 tokens"):
        mode, dense = read(model, pieces, **how)
    assert mode == "dense" and not torch.equal(dense, sparse)
    assert torch.equal(dense, read(model, pieces)[1])


def test_a_file_keeps_how_its_text_was_read(tmp_path):
    model = make_model("llama", torch.device("cpu"))
    ids = make_ids(TEXT, model.device)
    for options, names in ((SOME | {"prefill": "sparse"}, 4), (FEW, 1)):
        cache = TopkCache(model.config, **options)
        model(ids, past_key_values=cache, use_cache=True)
        cache.save(tmp_path / "text.tkv", model)
        loaded = TopkCache.from_file(tmp_path / "text.tkv", model)
        assert loaded._engine.options.prefill == cache._engine.options.prefill
        assert sum(name.startswith("prefill") for name in _saved(tmp_path / "text.tkv")) == names


def _saved(path):
    import json

    made_with = topkv.context_file_info(path).made_with
    return json.JSONDecoder().raw_decode(made_with, made_with.index("{"))[0]


@pytest.mark.parametrize(
    "option",
    [
        {"prefill": "full"},
        {"prefill_keys": 0},
        {"prefill_keys": 1.5},
        {"prefill_least": -1},
        {"prefill_keys": 64, "prefill_least": 65, "prefill": "auto"},
        {"prefill_mass": 0},
        {"prefill_mass": 1.1},
        {"prefill_mass": None},
        {"prefill_mass": True},
    ],
)
def test_options_out_of_range_are_refused(option):
    model = make_model("llama", torch.device("cpu"))
    with pytest.raises(InvalidArgument):
        TopkCache(model.config, **option)
