"""Models whose layers attend what a trained indexer chooses. The reference is transformers, which attends densely under
a mask of the choice."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import topkv
from small_models import (
    EAGER,
    INDEXED,
    after,
    agree,
    caches_latents,
    dynamic_logits,
    indexed_config,
    indexed_model,
    logits_by_pieces,
    make_ids,
    skip_without_latents,
    step,
)
from topkv import InvalidArgument, Unsupported, hf
from topkv.hf import TopkCache, indexer_readers
from topkv.hf import indexers as indexer_module
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

CPU = torch.device("cpu")
TOKENS = 72
ALL, FEW = 400, 16  # tokens that an indexer chooses
PIECES = {
    "at once": [72],
    "prompt then tokens": [60] + [1] * 12,
    "chunks": [25, 25, 10] + [1] * 12,
    "token by token": [1] * 72,
    "question after freezing": [50, 1, 1, 12] + [1] * 8,
}
#: Layers that cache latents, that have K and V, and that have an index key for four tokens.
KINDS = ("glm_moe_dsa", "minimax_m3_vl_text", "qwen4_exp_text")
#: Layers with states, of recurrences and of index keys for four tokens.
WITH_STATES = ("glm5_next_text", "qwen4_exp_text")



def pytest_generate_tests(metafunc):
    """Every test runs for all families, unless it names some."""
    named = any("family" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "family" in metafunc.fixturenames and not named:
        metafunc.parametrize("family", INDEXED)


@pytest.fixture(autouse=True, scope="module")
def ties_go_to_the_earlier_token():
    """ReLU makes equal scores of zero. Of these topkv chooses the earlier token, and PyTorch's topk any."""

    def topk(x, k, dim=-1, **_):
        values, at = x.sort(dim=dim, descending=True, stable=True)
        return torch.return_types.topk((values.narrow(dim, 0, k), at.narrow(dim, 0, k)))

    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(torch.Tensor, "topk", topk)
        yield


@pytest.fixture(scope="module")
def models():
    made = {}

    def model(family, tokens=FEW):
        if (family, tokens) not in made:
            made[family, tokens] = indexed_model(family, tokens)
        return made[family, tokens]

    return model


def only(*families):
    return pytest.mark.parametrize("family", families)


def read(model, ids, **options):
    cache = TopkCache(model.config, **options)
    model(ids, past_key_values=cache, use_cache=True)
    return cache


# ---- equal logits ----


@pytest.mark.parametrize(
    "tokens, pieces", [*((FEW, pieces) for pieces in PIECES), (ALL, "question after freezing")]
)
def test_logits_equal_those_of_dynamic_cache(family, tokens, pieces, models):
    model, pieces = models(family, tokens), PIECES[pieces]
    ids = make_ids(TOKENS, CPU)
    expected = dynamic_logits(model, ids, [TOKENS])
    cache = TopkCache(model.config)
    agree(logits_by_pieces(model, cache, ids, pieces), expected)
    assert cache.get_seq_length() == TOKENS


def test_the_choice_changes_the_logits(family, models):
    """Else the comparisons here would show nothing."""
    ids = make_ids(TOKENS, CPU)
    few, everything = (dynamic_logits(models(family, x), ids, [TOKENS])[0, -1] for x in (FEW, ALL))
    assert (few - everything).abs().max() > 1e-2 * everything.abs().max()


@pytest.mark.parametrize("chunk", [None, 17])
def test_greedy_tokens_equal_those_of_dynamic_cache(family, chunk, models):
    model, ids = models(family), make_ids(69, CPU)
    how = {"max_new_tokens": 12, "do_sample": False, "prefill_chunk_size": chunk, "eos_token_id": None}
    expected = model.generate(ids, past_key_values=DynamicCache(config=model.config), **how)
    found = model.generate(ids, past_key_values=TopkCache(model.config), **how)
    assert torch.equal(found, expected)


def test_other_caches_get_what_they_got_before(family):
    model, ids = indexed_model(family, FEW), make_ids(40, CPU)
    pieces, text = [30, 9, 1], hf.families.text_config(model.config)
    for attention in ("eager", "sdpa"):
        if family == "hy_v4" and attention == "sdpa":
            continue  # leaves out the sinks of its layers
        text._attn_implementation = attention
        before = [dynamic_logits(model, ids, pieces), model(ids, use_cache=False).logits]
        TopkCache(model.config)
        assert text._attn_implementation == f"topkv:{attention}"
        now = [dynamic_logits(model, ids, pieces), model(ids, use_cache=False).logits]
        for x, y in zip(before, now):
            agree(y, x)


def test_bf16_models_have_index_keys_in_bf16(family):
    model = indexed_model(family, ALL).bfloat16()
    ids = make_ids(TOKENS, CPU)
    cache = TopkCache(model.config)
    found = logits_by_pieces(model, cache, ids, [60] + [1] * 12).float()
    exact = dynamic_logits(indexed_model(family, ALL), ids, [TOKENS])
    assert cache.context.shape.indexer.dtype == "bf16"

    def off(logits):
        """Of the median token: rounding sends single tokens to other experts."""
        return (logits.float() - exact).abs().amax(dim=-1).median()

    assert off(found) <= 1.5 * off(dynamic_logits(model, ids, [TOKENS]))


def test_self_check_and_install(family, models):
    model, ids = indexed_model(family, FEW), make_ids(40, CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert hf.self_check(model, tokens=64).difference < 1e-4
        how = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
        expected = model.generate(ids, **how)
        hf.install(model)
        try:
            assert torch.equal(model.generate(ids, **how), expected)
        finally:
            hf.uninstall(model)


# ---- texts, sessions, batches ----


def test_index_keys_are_a_part_of_the_context(family, models):
    model = models(family)
    shape = read(model, make_ids(50, CPU)).freeze().context.shape
    indexed = hf.families.indexers(model.config)
    assert indexer_module.Rule.of(shape.indexer) == indexed.rule
    expected = {
        "glm5_next_text": [0, 1],
        "glm_moe_dsa": [0, 0, 2, 2],
        "hy_v4": [0, 1, 1, 1],
        "minimax_m3_vl_text": [-1, 1, 2],
        "qwen4_exp_text": [0, 1],
    }
    assert shape.indexer_layer == expected.get(family, [0, 1, 2])


def test_sessions_and_files(family, models, tmp_path):
    """The text ends within a group of four tokens, and so do questions."""
    model, text = models(family), make_ids(50, CPU)
    a, b = make_ids(5, CPU, seed=1), make_ids(6, CPU, seed=2)
    cache = read(model, text)
    cache.save(tmp_path / "c.tkv", model)
    loaded = TopkCache.from_file(tmp_path / "c.tkv", model)
    mapped = TopkCache.from_file(tmp_path / "c.tkv", model, mapped=True)
    both = torch.cat([after(model, text, x) for x in (b, torch.cat((a, a[:, :1]), dim=1))])
    for held in (cache, loaded, mapped):
        session = held.session()
        agree(step(model, session, a), after(model, text, a))
        agree(step(model, session, b), after(model, text, a, b))
        fork = held.session(batch=2)
        agree(step(model, fork, torch.cat((b, torch.cat((a, a[:, :1]), dim=1)))), both)
        fork.reorder_cache(torch.tensor([1, 1]))  # row 1 and a fork of it
        more = torch.cat((make_ids(1, CPU, seed=5), make_ids(1, CPU, seed=6)))
        expected = [after(model, text, a, a[:, :1], x[None]) for x in more]
        agree(step(model, fork, more), torch.cat(expected))
        agree(step(model, held.session(), b), after(model, text, b))


def test_a_session_takes_tokens_back(family, models):
    model, text = models(family), make_ids(50, CPU)
    a, b = make_ids(6, CPU, seed=1), make_ids(5, CPU, seed=2)
    session = read(model, text).session()
    step(model, session, a)
    session.crop(-6)  # to the end of the text
    agree(step(model, session, b), after(model, text, b))
    step(model, session, a)
    session.crop(-6)  # to the token before the last call
    agree(step(model, session, a[:, :3]), after(model, text, b, a[:, :3]))


@only("deepseek_v32", "glm_moe_dsa", "minimax_m3_vl_text")
def test_speculative_tokens_are_taken_back(family, models):
    model, text = models(family), make_ids(50, CPU)
    a, b = make_ids(6, CPU, seed=1), make_ids(5, CPU, seed=2)
    cache = read(model, text)
    cache.activate_past_recording()
    step(model, cache, a)
    cache.crop(-4)
    agree(step(model, cache, b), after(model, text, a[:, :2], b))


@only(*WITH_STATES)
def test_a_crop_within_a_call_is_refused_where_keys_are_of_groups(family, models):
    model, text = models(family), make_ids(50, CPU)
    session = read(model, text).session()
    step(model, session, make_ids(6, CPU, seed=1))
    with pytest.raises(InvalidArgument, match="layers of this model have a state"):
        session.crop(-2)
    agree(step(model, session, text[:, :3]), after(model, text, make_ids(6, CPU, seed=1), text[:, :3]))


@only(*[x for x in INDEXED if x != "glm5_next_text"])
def test_padded_texts_equal_texts_alone(family, models):
    """transformers counts MiniMax-M3's blocks from the padding on, so the reference is each text alone."""
    model, ids = models(family), make_ids(40, CPU, rows=2)
    mask = torch.ones_like(ids)
    mask[1, :11] = 0
    cache = TopkCache(model.config)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    found = step(model, cache, ids, attention_mask=mask, position_ids=positions)
    agree(found[0], dynamic_logits(model, ids[:1], [40])[0])
    agree(found[1, 11:], dynamic_logits(model, ids[1:, 11:], [29])[0])
    more = make_ids(5, CPU, rows=2, seed=3)
    for i in range(5):
        mask = torch.cat((mask, mask.new_ones(2, 1)), dim=1)
        token = more[:, i : i + 1]
        last = step(model, cache, token, attention_mask=mask, position_ids=positions[:, -1:] + i + 1)
    agree(last[0], after(model, ids[:1], more[:1])[0, -1:])
    agree(last[1], after(model, ids[1:, 11:], more[1:])[0, -1:])


@only("glm5_next_text")
def test_padding_is_refused_where_layers_get_no_mask(family, models):
    model, ids = models(family), make_ids(40, CPU, rows=2)
    mask = torch.ones_like(ids)
    mask[1, :11] = 0
    cache = TopkCache(model.config)
    with pytest.raises(Unsupported, match="padding in a call of a model that gives its attention layers no mask"):
        step(model, cache, ids, attention_mask=mask)
    agree(step(model, cache, ids[:1]), dynamic_logits(model, ids[:1], [40]))


def test_beams(family, models):
    model, ids = models(family), make_ids(42, CPU)
    how = {"max_new_tokens": 8, "do_sample": False, "num_beams": 3, "eos_token_id": None}
    expected = model.generate(ids, past_key_values=DynamicCache(config=model.config), **how)
    found = model.generate(ids, past_key_values=TopkCache(model.config), **how)
    assert torch.equal(found, expected)


def test_a_layer_that_fails_leaves_the_cache_as_it_was(family, models):
    model, text, question = models(family), make_ids(50, CPU), make_ids(4, CPU, seed=1)
    for frozen in (True, False):
        cache = read(model, text)
        if frozen:
            cache.freeze()

        def fail(*_):
            raise RuntimeError("no more")

        layers = getattr(model.model, "language_model", model.model).layers
        handle = layers[-1].register_forward_hook(fail)
        try:
            with pytest.raises(RuntimeError, match="no more"):
                step(model, cache, make_ids(3, CPU, seed=9))
        finally:
            handle.remove()
        assert cache.get_seq_length() == 50
        agree(step(model, cache, question), after(model, text, question))


@only(*KINDS)
def test_a_cache_can_be_used_again(family, models):
    model, ids = models(family), make_ids(50, CPU)
    cache = read(model, make_ids(47, CPU, seed=4))
    cache.reset()
    agree(step(model, cache, ids), dynamic_logits(model, ids, [50]))


@only("qwen4_exp_text")
def test_a_file_without_the_parts_of_unfinished_keys_is_refused(family, models, tmp_path):
    model = models(family)
    cache = read(model, make_ids(50, CPU)).freeze()
    layer = next(x for x in cache.layers if isinstance(x, hf.layer.PoolingTopkLayer))
    for change, message in (
        (lambda x: x.pop("cos"), "pending.cos is missing"),
        (lambda x: x.update(keys=x["keys"][:, 1:]), "pending.keys has the shape"),
    ):
        kept = dict(cache._engine.state.text.kept)
        parts = kept[layer._index]["pending"]
        before = dict(parts)
        change(parts)
        cache.save(tmp_path / "bad.tkv", model)
        parts.clear()
        parts.update(before)
        with pytest.raises(topkv.FileError, match=message):
            TopkCache.from_file(tmp_path / "bad.tkv", model)


# ---- options and refusals ----


def test_options_that_find_rows_have_no_effect(family, models):
    """They are of the first layer of MiniMax-M3, which has no indexer."""
    model, ids = models(family), make_ids(TOKENS, CPU)
    given = {"index": "exact", "k": 100, "window": 8, "sinks": 2}
    if family == "minimax_m3_vl_text":
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache = TopkCache(model.config, **given)
    else:
        with pytest.warns(UserWarning, match="k, window, sinks of a TopkCache: without effect"):
            cache = TopkCache(model.config, **given)
        with pytest.warns(UserWarning, match="prefill of a TopkCache: without effect"):
            assert read(model, ids, prefill="window").prefill_mode == "dense"
        if family == "qwen4_exp_text":
            with pytest.warns(UserWarning, match="guarantee of a TopkCache: without effect"):
                TopkCache(model.config, guarantee=(0.1, 0.05))
        else:
            with pytest.raises(InvalidArgument, match="keys that are values"):
                TopkCache(model.config, guarantee=(0.1, 0.05))
    pieces = [50, 12] + [1] * 10
    agree(logits_by_pieces(model, cache, ids, pieces), dynamic_logits(model, ids, [TOKENS]))
    if family != "minimax_m3_vl_text":
        with pytest.warns(UserWarning, match="tail of a TopkCache: without effect"):
            cache.session(tail="mean")


@only("minimax_m3_vl_text")
def test_a_layer_without_an_indexer_retrieves(family, models):
    model, ids = models(family), make_ids(TOKENS, CPU)
    pieces = [60] + [1] * 12
    expected = dynamic_logits(model, ids, [TOKENS])
    found = logits_by_pieces(model, TopkCache(model.config, k=1, window=2, sinks=1, tail="none"), ids, pieces)
    assert (found - expected).abs().max() > 1e-3 * expected.abs().max()
    config = indexed_config(family, FEW)
    config.layer_types = ["full_attention"] * 3
    model = AutoModelForCausalLM.from_config(config, **EAGER).eval()
    cache = TopkCache(model.config, k=1000)
    agree(logits_by_pieces(model, cache, ids, pieces), dynamic_logits(model, ids, [TOKENS]))
    assert cache.context.shape.indexer is None


@only(*KINDS)
def test_refusals_say_why(family, models):
    model = models(family)
    with pytest.raises(Unsupported, match="indexers choose rows: a rank has only the rows of its own part"):
        TopkCache(model.config, shard="sequence")
    cache = read(model, make_ids(20, CPU))
    with pytest.raises(Unsupported, match="a method written in Python .* own indexers choose"):
        cache.prepare(object)
    with pytest.raises(Unsupported, match="topkv runs on a CPU only; the model is on meta"):
        some = torch.empty(1, 4, 2, 8, device="meta")
        cache._engine._make_rows(some, some, some, 1.0, 0.0)
    with pytest.raises(Unsupported, match="calls the indexer of a layer in a way that topkv does not know"):
        cache.layers[-1].update_indexer(None)


def test_a_file_of_a_model_with_another_indexer_is_refused(family, models, tmp_path):
    cache = read(models(family), make_ids(20, CPU))
    cache.save(tmp_path / "c.tkv", models(family))
    with pytest.raises(InvalidArgument, match="layers of the context attend choices of Rule"):
        TopkCache.from_file(tmp_path / "c.tkv", models(family, ALL), check_model=False)


@only(*KINDS)
def test_a_config_that_is_not_the_models_own_is_refused(family, models):
    model = models(family)
    other = indexed_config(family, ALL)
    other._attn_implementation = "eager"
    cache = TopkCache(other)
    TopkCache(model.config)  # so that the model attends by topkv
    with pytest.raises(Unsupported, match="make the cache with the model's own config"):
        step(model, cache, make_ids(20, CPU))


@only("hy_v4")
def test_configs_that_no_reader_knows_are_refused(family):
    config = indexed_config(family, FEW)
    config.indexer_types = ["shared", "full", "shared", "shared"]
    with pytest.raises(Unsupported, match="layer 0 has an indexer of type 'shared'"):
        TopkCache(config)
    config = indexed_config("minimax_m3_vl_text", FEW)
    config.index_n_heads = 4
    with pytest.raises(Unsupported, match="4 choices for 2 KV heads"):
        TopkCache(config)
    config = AutoConfig.for_model("qwen4_exp_text")
    with pytest.raises(Unsupported, match="no indexer_n_heads"):
        TopkCache(config)


@only("glm_moe_dsa")
def test_a_choice_of_another_layer_is_refused(family, models):
    model = models(family)
    cache = read(model, make_ids(20, CPU))
    with pytest.raises(Unsupported, match="is given no choice of an indexer; .* the choice of layer 2"):
        cache.layers[3].index_of(None)


# ---- the comparison with the model's own indexer ----


def turned_otherwise(reader, patch):
    patch.setattr(reader, "_rotation", "apply_rotary_pos_emb_interleave")


def changed(**changes):
    """A reader whose choices have other members."""

    def change(reader, patch):
        read = type(reader).read

        def other(module, given):
            choice = read(reader, module, given)
            for name, of in changes.items():
                setattr(choice, name, of(getattr(choice, name)))
            return choice

        patch.setattr(reader, "read", other, raising=False)

    return change


def last_first(parts):
    return {name: x.roll(1, dims=1) for name, x in parts.items()}


def without_rotation(parts):
    return parts | {"cos": torch.ones_like(parts["cos"]), "sin": torch.zeros_like(parts["sin"])}


MISTAKES = [
    ("deepseek_v32", turned_otherwise),
    ("hy_v4", lambda reader, patch: patch.setattr(reader, "_rotates_last", False)),
    ("hy_v4", changed(weights=torch.ones_like)),
    ("glm_moe_dsa", changed(weights=torch.neg)),
    ("axk2", changed(parts=last_first)),
    ("minimax_m3_vl_text", changed(queries=torch.neg)),
    ("minimax_m3_vl_text", changed(parts=last_first)),
    ("qwen4_exp_text", changed(parts=last_first)),
    ("glm5_next_text", changed(parts=last_first)),
    ("glm5_next_text", changed(parts=lambda parts: parts | {"gates": torch.neg(parts["gates"])})),
    ("qwen4_exp_text", changed(parts=without_rotation)),
]


@pytest.mark.parametrize("family, mistake", MISTAKES)
def test_another_choice_than_the_models_own_is_refused(family, mistake, monkeypatch):
    model = indexed_model(family, FEW)
    mistake(indexer_readers.READERS[family], monkeypatch)
    cache = TopkCache(model.config)
    with pytest.raises(Unsupported, match="chooses other tokens than topkv"):
        step(model, cache, make_ids(40, CPU))
    assert cache.get_seq_length() == 0
    monkeypatch.undo()
    agree(step(model, cache, make_ids(40, CPU)), dynamic_logits(model, make_ids(40, CPU), [40]))


@only("deepseek_v32")
def test_code_that_topkv_does_not_know_is_refused(family, monkeypatch):
    skip_without_latents(family)
    code = hf.families.model_code(indexed_config(family, FEW))

    class DeepseekV32Indexer(torch.nn.Module):
        def forward(self, states): ...

    monkeypatch.setattr(code, "DeepseekV32Indexer", DeepseekV32Indexer)
    with pytest.raises(Unsupported, match="takes no hidden_states, q_resid"):
        TopkCache(indexed_config(family, FEW))
    monkeypatch.delattr(code, "DeepseekV32Indexer")
    with pytest.raises(Unsupported, match="has no DeepseekV32Indexer"):
        TopkCache(indexed_config(family, FEW))


# ---- memory ----

READ = """
import multiprocessing, resource, sys, torch
from small_models import indexed_model
from topkv.hf import TopkCache

torch.set_num_threads(1)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

def grown(family):
    model = indexed_model(family, 64)
    ids = torch.randint(90, (1, 16 * 1024), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        model(ids[:, :64], past_key_values=TopkCache(model.config), logits_to_keep=1)
        before = peak()
        model(ids, past_key_values=TopkCache(model.config), logits_to_keep=1)
    return peak() - before

with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
    print(*pool.map(grown, sys.argv[1:], chunksize=1))
"""


def test_a_long_prefill_makes_no_matrix_of_scores():
    """Of 16 Ki tokens, scores of a single head in float32 are 1 GiB, and a mask of bools is 256 MiB. Each family is
    read in a process of its own, a fork of one that has imported everything."""
    families = list(filter(caches_latents, KINDS))
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READ, *families],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,  # where small_models is found
    )
    assert result.returncode == 0, result.stderr
    grown = dict(zip(families, map(int, result.stdout.split()), strict=True))
    assert all(size < 600 for size in grown.values()), f"{grown} MiB"
