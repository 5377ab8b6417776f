"""Prefills of a TopkCache: tokens choose the keys that they attend while a text is read."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_models import dynamic_logits, logits_by_pieces, make_ids, make_model
from topkv import InvalidArgument
from topkv.hf import TopkCache, install, uninstall

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
    assert torch.equal(logits(model, ids, prefill=mode, **FEW), dense)
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


def test_auto_is_sparse_on_a_cpu_for_text_of_any_length():
    model = make_model("llama", torch.device("cpu"))
    ids = make_ids(sum(PIECES), model.device)
    sparse = logits(model, ids, prefill="sparse", **SOME)
    assert torch.equal(logits(model, ids, prefill="auto", **SOME), sparse)
    known = logits(model, ids, prefill="auto", max_cache_len=4096, **SOME)
    assert torch.equal(known, sparse)


def test_generate_reads_so():
    model = make_model("llama", torch.device("cpu"))
    ids = make_ids(TEXT, model.device)
    answers = {}
    for mode in ("dense", "sparse"):
        install(model, prefill_chunk_size=256, prefill=mode, window=64, k=4096)
        answers[mode] = model.generate(ids, max_new_tokens=4, do_sample=False)
        uninstall(model)
    assert torch.equal(answers["sparse"], answers["dense"])  # 8192 keys are all of the text


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

    import topkv

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
