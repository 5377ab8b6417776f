"""A freeze() that fails or is interrupted leaves the cache as it was, reading or frozen."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import topkv
from small_models import assert_greedy, assert_logits_agree, dtype_of, make_ids
from small_models import make_model as model_of
from topkv.hf import TopkCache

ALL = {"k": 10_000, "window": 8, "sinks": 2}
MODELS = ["llama", "gemma2"]
TEXT = 60


def make_model(family, device):
    return model_of(family, device, dtype_of(device))


def read(model, text, **options):
    cache = TopkCache(model.config, **ALL | options)
    model(text, past_key_values=cache, use_cache=True)
    return cache


def fail_in_vain(cache):
    """An index whose training wants more keys than there are."""
    with pytest.raises(topkv.Error):
        cache.freeze("faiss:IVF4096,SQ8")


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C while an index is built."""

    def ready_for(self, index, tail, progress=None, device=None):
        raise KeyboardInterrupt

    def freeze(cache):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(topkv.Context, "ready_for", ready_for)
            cache.freeze("hnsw:M=16")

    return freeze


@pytest.fixture(params=["fails", "is interrupted"])
def no_freeze(request, interrupted):
    """freeze() to no avail."""
    return fail_in_vain if request.param == "fails" else interrupted


@pytest.mark.parametrize("family", MODELS)
def test_after_it_the_text_can_be_frozen_with_another_index(family, no_freeze, device):
    model = make_model(family, device)
    text, question = make_ids(TEXT, device), make_ids(9, device, seed=1)
    cache = read(model, text)
    no_freeze(cache)
    assert cache.context is None and cache.get_seq_length() == TEXT
    cache.freeze("exact")
    assert cache.context.tokens == TEXT
    session = cache.session()
    assert session.get_seq_length() == TEXT
    logits = model(question, past_key_values=session, use_cache=True).logits
    assert_logits_agree(logits, model, torch.cat((text, question), dim=1), first=TEXT)


@pytest.mark.parametrize("family", MODELS)
def test_after_it_the_text_can_be_read_on(family, no_freeze, device):
    model = make_model(family, device)
    ids = make_ids(TEXT + 60, device)
    cache = read(model, ids[:, :TEXT])
    no_freeze(cache)
    logits = model(ids[:, TEXT:-9], past_key_values=cache, use_cache=True).logits
    assert_logits_agree(logits, model, ids[:, :-9], first=TEXT)
    assert cache.context is None
    no_freeze(cache)  # twice does no harm
    no_freeze(cache)
    out = model.generate(ids, past_key_values=cache, max_new_tokens=8, do_sample=False)
    assert_greedy(model, out, ids.shape[1])
    assert cache.context.tokens == ids.shape[1]


def test_a_text_read_on_after_it_keeps_its_rows_to_the_bit(no_freeze):
    device = torch.device("cpu")
    model = model_of("llama", device)
    ids = make_ids(TEXT, device)
    for dtype in ("f32", "f16", "bf16"):
        caches = [read(model, ids[:, :40], kv_dtype=dtype) for _ in range(2)]
        no_freeze(caches[0])
        for cache in caches:
            model(ids[:, 40:], past_key_values=cache, use_cache=True)
            cache.freeze("exact")
        (a, b) = (cache.context for cache in caches)
        for layer in range(3):
            for head in range(2):
                assert (a.keys(layer, head) == b.keys(layer, head)).all()
                assert (a.values(layer, head) == b.values(layer, head)).all()


def test_crop_after_it_takes_tokens_of_the_text_back(no_freeze, device):
    model = make_model("llama", device)
    ids = make_ids(TEXT, device)
    cache = read(model, torch.cat((ids[:, :40], make_ids(5, device, seed=3)), dim=1))
    no_freeze(cache)
    cache.crop(-5)
    logits = model(ids[:, 40:], past_key_values=cache, use_cache=True).logits
    assert_logits_agree(logits, model, ids, first=40)


@pytest.mark.parametrize("family", MODELS)
def test_a_frozen_cache_goes_on_with_the_index_that_it_had(family, no_freeze, device):
    model = make_model(family, device)
    ids = make_ids(TEXT + 12, device)
    cache = read(model, ids[:, :TEXT]).freeze("hnsw:M=8")
    model(ids[:, TEXT : TEXT + 3], past_key_values=cache, use_cache=True)
    no_freeze(cache)
    assert cache.get_seq_length() == TEXT + 3
    for goes_on, first in ((cache, TEXT + 3), (cache.session(), TEXT)):
        logits = model(ids[:, first:], past_key_values=goes_on, use_cache=True).logits
        assert_logits_agree(logits, model, ids, first=first)
    assert cache.context.indices() == ["exact", "hnsw:M=8,efc=100,ef=0"]


def test_a_token_that_ends_the_text_with_an_index_that_fails_can_be_given_again(device):
    model = make_model("gemma2", device)
    ids = make_ids(TEXT + 1, device)
    cache = read(model, ids[:, :TEXT], index="faiss:IVF4096,SQ8")
    for _ in range(2):
        with pytest.raises(topkv.Error):
            model(ids[:, TEXT:], past_key_values=cache, use_cache=True)
        assert cache.get_seq_length() == TEXT and cache.context is None
    cache.freeze("exact")
    logits = model(ids[:, TEXT:], past_key_values=cache, use_cache=True).logits
    assert_logits_agree(logits, model, ids, first=TEXT)


def test_rows_that_do_not_fit_twice_leave_the_text_frozen_or_as_it_is(monkeypatch):
    """Reading on copies the rows; when that is refused nothing has changed."""
    device = torch.device("cpu")
    model = model_of("llama", device)
    ids = make_ids(TEXT, device)
    cache = read(model, ids[:, :40])
    fail_in_vain(cache)

    def no_memory(*_, **__):
        raise topkv.OutOfMemory("context: 2 GiB wanted, 1 GiB available")

    with monkeypatch.context() as patch:
        patch.setattr(topkv, "ContextBuilder", no_memory)
        with pytest.raises(topkv.OutOfMemory):
            model(ids[:, 40:], past_key_values=cache, use_cache=True)
    assert cache.get_seq_length() == 40 and cache.context is None
    logits = model(ids[:, 40:], past_key_values=cache, use_cache=True).logits
    assert_logits_agree(logits, model, ids, first=40)


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("index", ["exact", "hnsw:M=16"])
def test_a_failed_call_of_one_token_does_not_end_the_text(family, index, device):
    """It is what freezes a text, and it may fail after that, in any layer."""
    model = make_model(family, device)
    ids = make_ids(TEXT + 31, device)
    cache = read(model, ids[:, :TEXT], index=index)

    def fail(*_):
        raise RuntimeError("stop")

    for module in (*model.model.layers, model.lm_head):
        hook = module.register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="stop"):
            model(ids[:, TEXT : TEXT + 1], past_key_values=cache, use_cache=True)
        hook.remove()
        assert cache.context is None
        assert cache.get_seq_length() == TEXT
    more = slice(TEXT, TEXT + 30)  # read on, as a part of the text
    model(ids[:, more], past_key_values=cache, use_cache=True)
    got = model(ids[:, -1:], past_key_values=cache, use_cache=True).logits
    assert cache.context.tokens == TEXT + 30
    assert_logits_agree(got, model, ids, first=TEXT + 30)
