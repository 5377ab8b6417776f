"""torch.compile: a compiled model is refused a TopkCache, at once, and serves other caches."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_models import make_ids, make_model
from topkv import Unsupported
from topkv.hf import TopkCache, install
from transformers import CompileConfig, DynamicCache

CPU = torch.device("cpu")


def compiled_forward(model):
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


WAYS = {
    "torch.compile(model)": lambda model: torch.compile(model, backend="eager"),
    "model.compile()": compiled_in_place,
    "torch.compile(model.forward)": compiled_forward,
}


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_compiled_model_is_refused_at_once(way):
    model = make_model("llama", CPU)
    ids = make_ids(20, CPU)
    cache = TopkCache(model.config, k=1000)
    model(ids[:, :12], past_key_values=cache, use_cache=True)
    compiled = way(model)
    with pytest.raises(Unsupported, match=r"torch\.compile.*as it was before"):
        compiled(ids[:, 12:], past_key_values=cache, use_cache=True)
    assert cache.get_seq_length() == 12
    other = DynamicCache(config=model.config)
    assert compiled(ids, past_key_values=other, use_cache=True).logits.isfinite().all()


def test_generate_compiles_nothing_with_it():
    model = make_model("llama", CPU)
    ids = make_ids(20, CPU)
    how = {"max_new_tokens": 4, "do_sample": False}
    expected = model.generate(ids, past_key_values=DynamicCache(config=model.config), **how)
    install(model, k=1000)
    for given in ({"compile_config": CompileConfig()}, {"cache_implementation": "static"}):
        found = model.generate(ids, disable_compile="cache_implementation" in given, **given, **how)
        assert torch.equal(found, expected)
    with pytest.raises(ValueError, match="cache_implementation.*(past_key_values|`cache`)"):
        model.generate(
            ids, past_key_values=TopkCache(model.config), cache_implementation="static", **how
        )
