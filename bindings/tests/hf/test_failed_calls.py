"""A call that is refused, or fails in the model's own code, leaves every layer as it was."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import topkv
from small_models import assert_logits_agree, make_ids, make_model
from topkv.hf import TopkCache

ALL = {"k": 10_000, "window": 8, "sinks": 2, "progress": False}
HELD = 40


def call(model, ids, cache, **how):
    return model(ids, past_key_values=cache, use_cache=True, **how).logits


def with_a_long_mask(model, ids, cache):
    mask = torch.ones(1, cache.get_seq_length() + ids.shape[1] + 3)
    with pytest.raises(topkv.InvalidArgument, match="attention_mask has"):
        call(model, ids, cache, attention_mask=mask)


def with_padding(model, ids, cache):
    mask = torch.ones(1, cache.get_seq_length() + ids.shape[1])
    mask[0, -1] = 0
    with pytest.raises(topkv.InvalidArgument, match="attention_mask hides token"):
        call(model, ids, cache, attention_mask=mask)


def with_a_mask_of_ones_own(model, ids, cache):
    mask = torch.zeros(1, 1, ids.shape[1], cache.get_seq_length() + ids.shape[1])
    with pytest.raises(topkv.Unsupported, match="no mask that the caller made"):
        call(model, ids, cache, attention_mask=mask)


def with_gradients(model, ids, cache):
    with torch.inference_mode(False), torch.enable_grad():
        with pytest.raises(topkv.Unsupported, match="torch.no_grad"):
            call(model, ids.clone(), cache)


def in_training(model, ids, cache):
    model.train()
    with pytest.raises(topkv.Unsupported, match=r"model\.eval\(\)"):
        call(model, ids, cache)
    model.eval()


def with_too_many_rows(model, ids, cache):
    if cache.get_seq_length() == 0:
        return  # a batch of two texts
    with pytest.raises(topkv.InvalidArgument, match="a batch of 2"):
        call(model, ids.expand(2, -1), cache)


def out_of_memory_in_the_core(model, ids, cache):
    from topkv.hf import rows

    def failing(whole):
        def attend(self, *args):
            if self.layer == 1:
                raise topkv.OutOfMemory("no memory")
            return whole(self, *args)

        return attend

    before = rows.Step.run, rows.Step.run_together
    rows.Step.run, rows.Step.run_together = map(failing, before)
    try:
        with pytest.raises(topkv.OutOfMemory):
            call(model, ids, cache)
    finally:
        rows.Step.run, rows.Step.run_together = before


def raising_in(module_of):
    """A hook of a module of the model's raises, as its own code may."""

    def fail(model, ids, cache):
        def hook(*_):
            raise torch.OutOfMemoryError("CUDA out of memory")

        handle = module_of(model).register_forward_hook(hook)
        try:
            with pytest.raises(torch.OutOfMemoryError):
                call(model, ids, cache)
        finally:
            handle.remove()

    return fail


FAILURES = {
    "a long mask": with_a_long_mask,
    "padding on the right": with_padding,
    "a mask of one's own": with_a_mask_of_ones_own,
    "gradients": with_gradients,
    "training": in_training,
    "too many rows": with_too_many_rows,
    "no memory in the core": out_of_memory_in_the_core,
    "the last layer's mlp": raising_in(lambda model: model.model.layers[-1].mlp),
    "the second layer's mlp": raising_in(lambda model: model.model.layers[1].mlp),
    "lm_head": raising_in(lambda model: model.lm_head),
    "the whole model": raising_in(lambda model: model),
}


# Full attention; windows; experts and sinks; layers that share rows.
@pytest.fixture(scope="module", params=["llama", "gemma2", "gpt_oss", "gemma3n"])
def model(request):
    with torch.inference_mode(False):  # for gradients
        return make_model(request.param, torch.device("cpu"))


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
def test_after_it_the_call_gives_what_it_should(fail, model):
    """Of an empty cache, of a text being read, of a session."""
    ids = make_ids(HELD + 6, model.device)
    empty, reading = (TopkCache(model.config, **ALL) for _ in range(2))
    call(model, ids[:, :HELD], reading)
    text = TopkCache(model.config, **ALL)
    call(model, ids[:, : HELD - 3], text)
    session = text.session()
    call(model, ids[:, HELD - 3 : HELD], session)
    for cache in (empty, reading, session):
        held = cache.get_seq_length()
        fail(model, ids[:, held:], cache)
        of_layers = {x.get_seq_length() for x in cache.layers if hasattr(x, "get_seq_length")}
        assert of_layers == {held}
        logits = call(model, ids[:, held:], cache)
        assert_logits_agree(logits, model, ids, first=held)


def test_a_call_of_forward_that_fails_is_noticed_by_the_next(model):
    """Which topkv does not see the end of."""
    ids = make_ids(HELD, model.device)
    cache = TopkCache(model.config, **ALL)
    model.forward(ids[:, :20], past_key_values=cache, use_cache=True)
    broken = model.model.layers[1].mlp

    def hook(*_):
        raise RuntimeError("broken")

    handle = broken.register_forward_hook(hook)
    with pytest.raises(RuntimeError):
        model.model.forward(ids[:, 20:], past_key_values=cache, use_cache=True)
    handle.remove()
    assert cache.get_seq_length() == 20
    logits = model.forward(ids[:, 20:], past_key_values=cache, use_cache=True).logits
    assert_logits_agree(logits, model, ids, first=20)


def test_layers_called_by_themselves_are_refused():
    model = make_model("llama", torch.device("cpu"))
    cache = TopkCache(model.config, **ALL)
    x = torch.zeros(1, 3, 64)
    positions = model.model.rotary_emb(x, torch.arange(3)[None])
    with pytest.raises(topkv.InvalidArgument, match="call the model as a whole"):
        model.model.layers[1](x, position_embeddings=positions, past_key_values=cache)


def test_a_model_of_fewer_layers_than_its_config_says_is_refused():
    model = make_model("llama", torch.device("cpu"))
    del model.model.layers[2]
    cache = TopkCache(model.config, **ALL)
    with pytest.raises(topkv.InvalidArgument, match="2 of the 3 layers of the cache took"):
        call(model, make_ids(9, model.device), cache)
    assert cache.get_seq_length() == 0
