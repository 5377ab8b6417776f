"""fp16 models, dense and of experts: logits, tokens, and the dtypes of rows and attention outputs."""

import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_models import (
    assert_greedy,
    assert_logits_agree,
    exact_logits,
    logits_by_pieces,
    make_ids,
    make_model,
)
from topkv import Unsupported, hf
from topkv.hf import TopkCache, layer
from transformers import DynamicCache

ALL = {"k": 10_000, "window": 8, "sinks": 2}
PIECES = [25, 25, 10] + [1] * 12
FAMILIES = ["llama", "qwen2", "qwen3", "gemma2", "gpt_oss"]


def assert_agrees_as_bf16_would(found, family, ids):
    """For rows in bf16: as near to float32 as a bf16 model of the same family."""
    assert_logits_agree(found, make_model(family, ids.device, torch.bfloat16), ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_fp16_models_are_those_of_float32_within_rounding(family, device):
    model = make_model(family, device, torch.float16)
    ids = make_ids(sum(PIECES), device)
    cache = TopkCache(model.config, **ALL)
    found = logits_by_pieces(model, cache, ids, PIECES)
    # A CUDA device takes rows in bf16, of 8 bits where fp16 has 11.
    assert cache.context.dtype == ("bf16" if device.type == "cuda" else "f16")
    if device.type == "cuda":
        assert_agrees_as_bf16_would(found, family, ids)
    else:
        assert_logits_agree(found, model, ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_of_fp16_models_are_those_of_dynamic_cache(family, device):
    model = make_model(family, device, torch.float16)
    ids = make_ids(69, device)
    how = {"max_new_tokens": 24, "do_sample": False}
    found = model.generate(ids, past_key_values=TopkCache(model.config, **ALL), **how)
    if device.type == "cpu":
        expected = model.generate(ids, past_key_values=DynamicCache(config=model.config), **how)
        assert expected[0, 69:].unique().numel() > 3
        assert torch.equal(found, expected)
    else:  # where two logits are nearer than bf16 rows leave them, either is right
        assert_greedy(make_model(family, device, torch.bfloat16), found, 69)


def test_retrieval_runs_over_fp16_rows(device):
    model = make_model("qwen2", device, torch.float16)
    cache = TopkCache(model.config, k=4, window=8, sinks=2)
    ids = make_ids(69, device)
    out = model.generate(ids, past_key_values=cache, max_new_tokens=12, do_sample=False)
    assert out.shape == (1, 81)
    assert cache.stats()[0].rows_retrieved > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_attention_gives_the_dtype_of_the_model(dtype, device):
    """Else the next layer's product would be of two dtypes."""
    model = make_model("llama", device, dtype)
    seen = []
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda module, args: seen.append(args[0].dtype)
        )
    cache = TopkCache(model.config, **ALL)
    logits_by_pieces(model, cache, make_ids(22, device), [20, 1, 1])
    assert len(seen) == 9 and set(seen) == {dtype}


@pytest.mark.parametrize("index", ["exact", "codes:k=16,v=8", "hnsw:M=8"])
def test_indices_over_fp16_rows_find_all(index):
    device = torch.device("cpu")
    model = make_model("llama", device, torch.float16)
    ids = make_ids(sum(PIECES), device)
    found = logits_by_pieces(model, TopkCache(model.config, index=index, **ALL), ids, PIECES)
    assert_logits_agree(found, model, ids)


def test_large_values_of_fp16_models_stay_finite():
    """Keys near the end of fp16's range, as Qwen2's biases make them: scores are float32."""
    device = torch.device("cpu")
    model = make_model("qwen2", device, torch.float16)
    for layer in model.model.layers:
        layer.self_attn.k_proj.bias.fill_(3000.0)
        layer.self_attn.q_proj.bias.fill_(0.0)
        layer.self_attn.q_proj.weight.mul_(1e-2)
    ids = make_ids(sum(PIECES), device)
    found = logits_by_pieces(model, TopkCache(model.config, **ALL), ids, PIECES)
    assert found.isfinite().all() and exact_logits(model, ids).isfinite().all()
    assert_logits_agree(found, model, ids)


def test_fp16_rows_on_a_cuda_device_are_refused_with_what_it_takes():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda")
    model = make_model("llama", device, torch.float16)
    cache = TopkCache(model.config, kv_dtype="f16", **ALL)
    with pytest.raises(Unsupported, match="rows in f16 on a CUDA device; expected bf16"):
        model(make_ids(20, device), past_key_values=cache, use_cache=True)


def test_self_check_takes_fp16_models(device):
    assert hf.self_check(make_model("qwen3", device, torch.float16), tokens=64).difference < 0.03


@pytest.mark.parametrize(
    "kv_dtype, bias, told",
    [("q4", 0, 0), ("q4", 3, 1), ("q8", 3, 0), ("q8", 900, 1), ("q8/q4", 900, 1), (None, 900, 0)],
)
def test_keys_in_blocks_warn_of_biases_that_are_rounded_with_them(kv_dtype, bias, told, device):
    model = make_model("qwen2", device, torch.float32)
    ids = make_ids(20, device)
    for each in model.model.layers[:-1]:
        each.self_attn.k_proj.bias.data.zero_()
    last = model.model.layers[-1].self_attn.k_proj.bias.data
    last.zero_()
    last[-1] = bias  # the norm of one head of one layer
    with warnings.catch_warnings(record=True) as found, torch.no_grad():
        warnings.simplefilter("always")
        cache = TopkCache(model.config, kv_dtype=kv_dtype, k=8, window=4, sinks=1)
        model(ids[:, :16], past_key_values=cache)
        model(ids[:, 16:], past_key_values=cache)
    assert len([x for x in found if "biases" in str(x.message)]) == told


def test_biases_of_offloaded_weights_are_not_read():
    model = make_model("qwen2", "cpu")
    attention = model.model.layers[0].self_attn
    attention.k_proj.bias.data.fill_(900)
    assert layer._bias_norm(attention, attention.head_dim) > 900
    assert layer._bias_norm(attention.to("meta"), attention.head_dim) == 0
