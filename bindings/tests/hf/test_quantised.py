"""TopkCache over quantised models: what DynamicCache gives over the same model is what it gives.

Packages that are not installed are skipped.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from quantised_models import EXACT, ROUNDING, SCHEMES, load, load_mxfp4, random_model
from small_models import dtype_of, dynamic_logits, logits_by_pieces, make_ids, make_model
from topkv import Unsupported, hf
from topkv.hf import TopkCache
from transformers import DynamicCache

CPU = torch.device("cpu")
ALL = {"k": 10_000, "window": 8, "sinks": 2}
PIECES = [25, 25, 10] + [1] * 12
GREEDY = {"max_new_tokens": 24, "do_sample": False}

#: Of the logits' size, root mean square: two to three roundings to 8 bits in each of three layers.
OF_ROUNDING = 0.1

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def difference(found, expected) -> float:
    return float((found - expected).square().mean().sqrt() / expected.std())


def allowed(scheme, device) -> float:
    """Float arithmetic over the same rounded weights; bf16 on a CUDA device."""
    if scheme in ROUNDING:
        return OF_ROUNDING
    return 1e-5 if device.type == "cpu" else 0.03


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_logits_are_those_of_dynamic_cache(scheme, family, device, tmp_path):
    model = load(scheme, family, device, dtype_of(device), tmp_path)
    ids = make_ids(sum(PIECES), device)
    cache = TopkCache(model.config, **ALL)
    found = logits_by_pieces(model, cache, ids, PIECES)
    expected = dynamic_logits(model, ids, PIECES)
    assert difference(found, expected) <= allowed(scheme, device)
    # And the weights are other ones, or nothing was quantised, but nearly the same, or all is noise.
    plain = dynamic_logits(random_model(family, device, dtype_of(device)), ids, PIECES)
    assert 1e-3 < difference(plain, expected) < 0.6


# transformers takes Mixtral from compressed-tensors only with its experts compressed one by one,
# a layout that nothing here writes.
GENERATED = [
    (scheme, family)
    for scheme in SCHEMES
    for family in ("qwen2", "mixtral", "gpt_oss")
    if not (scheme.startswith("compressed") and family == "mixtral")
]


@pytest.mark.parametrize("scheme, family", GENERATED)
def test_greedy_tokens_are_those_of_dynamic_cache(scheme, family, tmp_path):
    model = load(scheme, family, CPU, torch.float32, tmp_path)
    ids = make_ids(69, CPU)
    expected = model.generate(ids, past_key_values=DynamicCache(config=model.config), **GREEDY)
    found = model.generate(ids, past_key_values=TopkCache(model.config, **ALL), **GREEDY)
    assert expected[0, 69:].unique().numel() > 3
    if scheme in EXACT:
        assert torch.equal(found, expected)
        return
    # Where a jump parts them, the token chosen must be nearly as good as the best.
    logits = dynamic_logits(model, found, [found.shape[1]])[0, 68:-1]
    chosen = logits.gather(-1, found[0, 69:, None])[:, 0]
    assert (logits.amax(-1) - chosen).max() <= 4 * OF_ROUNDING * logits.std()


@pytest.mark.parametrize("dtype, rows", [(torch.float16, "f16"), (torch.bfloat16, "bf16")])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_have_the_dtype_of_activations_and_retrieval_runs(scheme, dtype, rows, device, tmp_path):
    """What weights are stored as says nothing of K and V."""
    model = load(scheme, "llama", device, dtype, tmp_path)
    cache = TopkCache(model.config, k=4, window=8, sinks=2)
    out = model.generate(make_ids(69, device), past_key_values=cache, **GREEDY)
    assert out.shape == (1, 93)
    assert cache.context.dtype == ("bf16" if device.type == "cuda" else rows)
    assert cache.stats()[0].rows_retrieved > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_int4_weights_in_the_tiles_of_cuda(tmp_path):
    device = torch.device("cuda")
    model = load("torchao int4 for CUDA", "llama", device, torch.bfloat16, tmp_path)
    ids = make_ids(sum(PIECES), device)
    found = logits_by_pieces(model, TopkCache(model.config, **ALL), ids, PIECES)
    assert difference(found, dynamic_logits(model, ids, PIECES)) <= 0.03


def test_gpt_oss_with_experts_in_mxfp4_as_it_ships(tmp_path):
    model = load_mxfp4(tmp_path)
    ids = make_ids(sum(PIECES), CPU)
    found = logits_by_pieces(model, TopkCache(model.config, **ALL), ids, PIECES)
    assert difference(found, dynamic_logits(model, ids, PIECES)) <= 0.03  # bf16's
    cache = TopkCache(model.config, k=4, window=8, sinks=2)
    assert model.generate(make_ids(69, CPU), past_key_values=cache, **GREEDY).shape == (1, 93)
    assert cache.stats()[0].rows_retrieved > 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_install_and_self_check_take_a_quantised_model(scheme, tmp_path):
    """As it is loaded when nobody says how it attends, and in 16 bits."""
    model = load(scheme, "llama", CPU, torch.bfloat16, tmp_path, attn_implementation=None)
    assert hf.self_check(model, tokens=64).difference < 0.25
    hf.install(model, k=4, window=8, sinks=2)
    assert model.generate(make_ids(69, CPU), **GREEDY).shape == (1, 93)
    hf.uninstall(model)
    assert model.config._attn_implementation == "sdpa"


def test_self_check_allows_what_rounding_activations_makes_of_float32(tmp_path):
    model = load("torchao int8 activations", "llama", CPU, torch.float32, tmp_path)
    result = hf.self_check(model, tokens=64)
    assert result.difference <= result.allowed <= 0.25


def with_float8(of, target=None):
    """A random llama whose KV cache, or whose attention, compressed-tensors rounds to fp8."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
        apply_quantization_config,
    )

    fp8 = QuantizationArgs(num_bits=8, type="float", strategy="tensor", symmetric=True)
    model = make_model("llama", CPU)
    model.config._attn_implementation = "sdpa"  # its attention finds no eager one to go on with
    if of == "attention":
        groups = {"a": QuantizationScheme(targets=["LlamaAttention"], input_activations=fp8)}
        config = QuantizationConfig(config_groups=groups)
    else:
        config = QuantizationConfig(config_groups={}, kv_cache_scheme=fp8)
    with torch.inference_mode(False):
        apply_quantization_config(model, config)
    scales = [x for name, x in model.named_parameters() if name.endswith(("q_scale", "k_scale", "v_scale"))]
    if not scales:  # it looks for an argument past_key_values, which has been `cache` since transformers 5.24
        pytest.skip("this compressed-tensors finds no attention in this transformers, and rounds nothing")
    for scale in scales:
        scale.data.fill_(0.01)
    return model


def test_a_kv_cache_scheme_of_compressed_tensors_rounds_the_rows_as_it_does_dynamic_cache():
    model = with_float8("cache")
    ids = make_ids(sum(PIECES), CPU)
    found = logits_by_pieces(model, TopkCache(model.config, **ALL), ids, PIECES)
    expected = dynamic_logits(model, ids, PIECES)
    assert difference(found, expected) <= 0.01  # a value between two of fp8 may become either
    assert difference(dynamic_logits(make_model("llama", CPU), ids, PIECES), expected) > 0.02


def test_a_scheme_that_rounds_queries_is_refused_with_the_reason():
    model = with_float8("attention")
    with pytest.raises(Unsupported, match="compressed-tensors rounds queries.*use another cache"):
        TopkCache(model.config, **ALL)
    assert model.config._attn_implementation == "ct_hooked_attention"
