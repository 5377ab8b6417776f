"""TopkCache over a model that GPT-QModel quantised and transformers loads. GPT-QModel 7 needs
transformers 5.20 or newer, and compiles kernels for the CPU the first time."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gptqmodel")
pytest.importorskip("optimum")

from small_models import logits_by_pieces, make_config, make_ids
from topkv.hf import TopkCache
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, GPTQConfig

ALL = {"k": 10_000, "window": 8, "sinks": 2}
PIECES = [25, 25, 10] + [1] * 12
GREEDY = {"max_new_tokens": 24, "do_sample": False}
TEXT = "the quick brown fox jumps over the lazy dog " * 40


@pytest.fixture(scope="module")
def checkpoint(needle_14m, tmp_path_factory):
    plain, quantised = (tmp_path_factory.mktemp(x) for x in ("plain", "gptq"))
    tokenizer = AutoTokenizer.from_pretrained(needle_14m)
    config = make_config("llama")
    config.vocab_size, config.intermediate_size = len(tokenizer), 128
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config, dtype=torch.float16).save_pretrained(plain)
    tokenizer.save_pretrained(plain)
    how = GPTQConfig(
        bits=4, group_size=32, dataset=[TEXT] * 4, tokenizer=tokenizer, backend="torch"
    )
    with torch.inference_mode(False), torch.enable_grad():
        model = AutoModelForCausalLM.from_pretrained(
            plain, dtype=torch.float16, quantization_config=how
        )
        model.save_pretrained(quantised)
    return quantised


@pytest.fixture
def load(checkpoint):
    def load(dtype):
        with torch.inference_mode(False):
            return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).eval()

    return load


# float32 arithmetic over rounded weights; fp16's: some ten roundings of 2^-11.
@pytest.mark.parametrize("dtype, allowed", [(torch.float32, 1e-5), (torch.float16, 0.01)])
def test_logits_and_tokens_are_those_of_dynamic_cache(dtype, allowed, load):
    model = load(dtype)
    ids = make_ids(sum(PIECES), "cpu")
    found = logits_by_pieces(model, TopkCache(model.config, **ALL), ids, PIECES)
    expected = logits_by_pieces(model, DynamicCache(config=model.config), ids, PIECES)
    assert (found - expected).square().mean().sqrt() <= allowed * expected.std()
    ids = make_ids(69, "cpu")
    expected = model.generate(ids, past_key_values=DynamicCache(config=model.config), **GREEDY)
    found = model.generate(ids, past_key_values=TopkCache(model.config, **ALL), **GREEDY)
    assert expected[0, 69:].unique().numel() > 3
    assert torch.equal(found, expected)


def test_retrieval_runs(load):
    model = load(torch.float16)
    cache = TopkCache(model.config, k=4, window=8, sinks=2)
    assert model.generate(make_ids(69, "cpu"), past_key_values=cache, **GREEDY).shape == (1, 93)
    assert cache.context.dtype == "f16" and cache.stats()[0].rows_retrieved > 0
