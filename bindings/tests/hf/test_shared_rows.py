"""Models whose last layers attend the K and V of earlier layers: Gemma 3n and the E models of Gemma 4."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import topkv
from small_models import (
    after,
    agree,
    dynamic_logits,
    logits_by_pieces,
    make_ids,
    make_model,
    step,
)
from topkv import InvalidArgument, Unsupported
from topkv.hf import TopkCache
from topkv.hf.mask import LazyMask
from transformers import DynamicCache

CPU = torch.device("cpu")
ALL = {"k": 10_000, "window": 8, "sinks": 2}
FAMILIES = ["gemma3n", "gemma4-shared"]


@pytest.fixture(scope="module")
def models():
    return {family: make_model(family, CPU) for family in FAMILIES}


def read(model, ids, **options):
    cache = TopkCache(model.config, **ALL | options)
    model(ids, past_key_values=cache, use_cache=True)
    return cache


@pytest.mark.parametrize("family", FAMILIES)
def test_shared_rows_are_kept_once(family, models):
    cache = read(models[family], make_ids(50, CPU)).freeze()
    shape = cache.context.shape
    assert shape.layers == 4 and shape.row_layer == [0, 1, 1, 1]
    of_layer = 50 * shape.kv_heads * shape.head_dim * 2 * 4
    assert cache.memory().rows == 2 * of_layer
    assert shape.head_dim == (512 if family == "gemma4-shared" else 64)


@pytest.mark.parametrize("last", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_sharing_layers_that_compute_the_last_logits_alone(family, last, models):
    """generate asks for the last logits, and transformers then gives sharing layers the last queries only
    (Gemma 4, from 5.23 on)."""
    model, text, question = models[family], make_ids(50, CPU), make_ids(9, CPU, seed=1)
    cache = TopkCache(model.config, **ALL)
    found = step(model, cache, text, logits_to_keep=last)
    agree(found, model(text, use_cache=False).logits[:, -last:])
    agree(step(model, cache, question, logits_to_keep=last), after(model, text, question)[:, -last:])
    session = cache.freeze().session(batch=2)
    questions = question.expand(2, -1)
    ids = torch.cat((text, question, question), dim=1)
    found = step(model, session, questions, logits_to_keep=last)
    agree(found, dynamic_logits(model, ids, [50, 9, 9])[:, -last:].expand(2, -1, -1))


def test_other_parts_of_a_mask_are_refused():
    mask = LazyMask("eager", {"q_length": 9, "q_offset": 3, "kv_length": 12, "kv_offset": 0})
    every = slice(None)
    assert mask[:, :, slice(-2, None), :].arguments["q_offset"] == 10
    assert mask[:, :, slice(0, None), :].queries == 9
    for part in (0, every, (every, every, slice(0, 2), every), (every, 0, slice(-1, None), every)):
        with pytest.raises(Unsupported, match="takes the part .* of a mask"):
            mask[part]


@pytest.mark.parametrize("family", FAMILIES)
def test_sparse_retrieval_of_sharing_layers(family, models):
    """Each layer retrieves for its own queries, from the index of the layer that has the rows."""
    model, ids = models[family], make_ids(220, CPU)
    pieces = [200] + [1] * 20
    dense = dynamic_logits(model, ids, pieces)
    errors = []
    for k in (2, 150):
        cache = TopkCache(model.config, index="exact", **ALL | {"k": k})
        found = logits_by_pieces(model, cache, ids, pieces)
        errors.append(float((found - dense)[:, 200:].abs().max()))
        (stats,) = cache.stats()
        assert stats.rows_retrieved > 0
    assert errors[0] > 1e-3 and errors[1] < errors[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_sessions_files_and_crop(family, models, tmp_path):
    model, text = models[family], make_ids(50, CPU)
    a, b = make_ids(6, CPU, seed=1), make_ids(5, CPU, seed=2)
    cache = read(model, text)
    cache.save(tmp_path / "c.tkv", model)
    loaded = TopkCache.from_file(tmp_path / "c.tkv", model)
    for held in (cache, loaded):
        session = held.session()
        session.activate_past_recording()
        step(model, session, a)
        session.crop(-4)
        agree(step(model, session, b), after(model, text, a[:, :2], b))
        found = step(model, held.session(batch=2), torch.cat((b, a[:, :5])))
        expected = torch.cat([after(model, text, x) for x in (b, a[:, :5])])
        agree(found, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_of_other_sharing_is_refused(family, models, tmp_path):
    model = models[family]
    cache = read(model, make_ids(30, CPU)).freeze()
    shape = cache.context.shape
    plain = topkv.AttentionShape(shape.layers, shape.q_heads, shape.kv_heads, shape.head_dim, scale=1)
    builder = topkv.ContextBuilder(plain, capacity=30, dtype="f32")
    rows = torch.randn(30, shape.kv_heads, shape.head_dim)
    for layer in range(shape.layers):
        builder.append(layer, rows, rows)
    builder.freeze().save(tmp_path / "c.tkv")
    with pytest.raises(InvalidArgument, match=r"rows of layers \[\], .* rows of layers \[0, 1, 1, 1\]"):
        TopkCache.from_file(tmp_path / "c.tkv", model, check_model=False)


class Every:
    """A method that finds every row."""

    def search(self, queries, keys, k, scale):
        return torch.arange(keys.shape[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_method_in_python_searches_shared_rows(family, models):
    model, text, question = models[family], make_ids(50, CPU), make_ids(7, CPU, seed=1)
    cache = read(model, text, index="exact")
    session = cache.session(method=cache.prepare(Every))
    found = logits_by_pieces(model, session, question, [3, 1, 1, 1, 1])
    ids = torch.cat((text, question), dim=1)
    agree(found, dynamic_logits(model, ids, [50, 3, 1, 1, 1, 1])[:, 50:])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sharing_layer_that_fails_leaves_the_cache_as_it_was(family, models):
    model, text, question = models[family], make_ids(50, CPU), make_ids(4, CPU, seed=1)
    for frozen in (True, False):
        cache = read(model, text)
        if frozen:
            cache.freeze()

        def fail(*_):
            raise RuntimeError("no more")

        handle = model.model.layers[-1].register_forward_hook(fail)
        try:
            with pytest.raises(RuntimeError, match="no more"):
                step(model, cache, make_ids(4, CPU, seed=9))
        finally:
            handle.remove()
        assert cache.get_seq_length() == 50
        agree(step(model, cache, question), after(model, text, question))


@pytest.mark.parametrize("family", FAMILIES)
def test_beams_and_padded_texts(family, models):
    model, ids = models[family], make_ids(40, CPU, rows=2)
    mask = torch.ones_like(ids)
    mask[1, :11] = 0
    how = {"max_new_tokens": 8, "do_sample": False}
    for options in ({"num_beams": 3}, {"attention_mask": mask, "pad_token_id": 0}):
        expected = model.generate(ids, past_key_values=DynamicCache(config=model.config), **how, **options)
        found = model.generate(ids, past_key_values=TopkCache(model.config, **ALL), **how, **options)
        assert torch.equal(found, expected)
