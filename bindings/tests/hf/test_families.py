"""With k above the context, TopkCache gives what DynamicCache gives, for every family."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_models import (
    FAMILIES,
    INDEXED,
    LATENT,
    OTHERS,
    RECURRENT,
    RESTARTING,
    assert_greedy,
    assert_logits_agree,
    dtype_of,
    logits_by_pieces,
    make_config,
    make_ids,
    make_model,
)
from topkv import hf
from topkv.hf import TopkCache
from transformers import DynamicCache

# Small window and sinks: most of what is attended has to be retrieved.
ALL = {"k": 10_000, "window": 8, "sinks": 2}

PIECES = {
    "prompt then tokens": [60] + [1] * 12,
    "chunks": [25, 25, 10] + [1] * 12,
    "last chunk of one token": [30, 30, 1] + [1] * 11,
    "prompt of one token": [1] * 40,
    "question after freezing": [50, 1, 1, 12] + [1] * 8,
}
EVERY = [(family, pieces) for family in FAMILIES for pieces in PIECES]
EVERY += [(family, "question after freezing") for family in OTHERS]
CHUNKS = [(family, chunk) for family in FAMILIES for chunk in (None, 17)]
CHUNKS += [(family, 17) for family in OTHERS]


@pytest.mark.parametrize("family, pieces", EVERY, ids=lambda x: x)
def test_logits_equal_those_of_dynamic_cache(family, pieces, device):
    model = make_model(family, device, dtype_of(device))
    ids = make_ids(sum(PIECES[pieces]), device)
    cache = TopkCache(model.config, **ALL)
    found = logits_by_pieces(model, cache, ids, PIECES[pieces])
    assert cache.context is not None
    assert cache.get_seq_length() == sum(PIECES[pieces])
    assert_logits_agree(found, model, ids)


@pytest.mark.parametrize("family, chunk", CHUNKS)
def test_greedy_tokens_equal_those_of_dynamic_cache(family, chunk, device):
    model = make_model(family, device, dtype_of(device))
    ids = make_ids(69, device)  # 17 * 4 + 1: the last chunk has one token
    how = {"max_new_tokens": 24, "do_sample": False, "prefill_chunk_size": chunk}
    expected = model.generate(ids, past_key_values=DynamicCache(config=model.config), **how)
    found = model.generate(ids, past_key_values=TopkCache(model.config, **ALL), **how)
    assert expected[0, 69:].unique().numel() > 3  # a model stuck on a token shows nothing
    assert_greedy(model, found, 69)
    if device.type == "cpu":  # in bf16 two logits may be nearer than rounding leaves them
        assert torch.equal(found, expected)


def test_the_families_that_are_named_are_those_that_run_here_and_in_other_files():
    named = (*FAMILIES, *OTHERS, *RECURRENT, *RESTARTING, *LATENT, *INDEXED)
    assert {hf.families.text_config(make_config(x)).model_type for x in named} == set(hf.FAMILIES)


def test_bf16_model_on_the_cpu_agrees_within_its_own_rounding():
    device = torch.device("cpu")
    model = make_model("gemma2", device, torch.bfloat16)
    pieces = [60] + [1] * 12
    ids = make_ids(72, device)
    found = logits_by_pieces(model, TopkCache(model.config, **ALL), ids, pieces)
    assert_logits_agree(found, model, ids)


@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])
def test_attention_of_these_models_reaches_far_back(family):
    """Else the comparisons above would show nothing: other first tokens change the last logits."""
    device = torch.device("cpu")
    model = make_model(family, device)
    ids = make_ids(60, device)
    other = ids.clone()
    other[0, :8] = (other[0, :8] + 1) % 97
    change = (model(ids).logits - model(other).logits)[0, -1].abs().max()
    assert change > 1e-2 * model(ids).logits[0, -1].abs().max()
