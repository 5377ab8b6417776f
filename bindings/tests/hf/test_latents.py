"""Models whose layers cache a latent (MLA): DeepSeek V2 and V3, GLM-4.7-Flash, Kimi Linear and others.

Rows have a few elements, of which a CUDA device takes none, so these tests run on the CPU. Rows of
DeepSeek's widths run on both.
"""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import topkv
from small_models import (
    LATENT,
    NEWER,
    after,
    agree,
    assert_greedy,
    assert_logits_agree,
    dtype_of,
    dynamic_logits,
    logits_by_pieces,
    make_config,
    make_ids,
    make_model,
    step,
)
from topkv import IndexSpec, InvalidArgument, Unsupported, hf
from topkv.hf import TopkCache, families, latent
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

CPU = torch.device("cpu")
ALL = {"k": 10_000, "window": 8, "sinks": 2}
PIECES = {
    "prompt then tokens": [60] + [1] * 12,
    "chunks": [25, 25, 10] + [1] * 12,
    "last chunk of one token": [30, 30, 1] + [1] * 11,
    "prompt of one token": [1] * 24,
    "question after freezing": [50, 1, 1, 12] + [1] * 8,
}
#: One without a latent of queries, one with experts, YaRN and interleaved RoPE, one whose queries are
#: scaled by position, and one beside recurrences.
KINDS = ["deepseek_v2", "deepseek_v3", "mistral4", "kimi_linear"]
FEATURES = {
    "deepseek_v2": {"q_lora_rank": 24},
    "deepseek_v3": {"q_lora_rank": None, "rope_interleave": False},
    "glm4_moe_lite": {"rope_interleave": False},
    "minicpm3": {"q_lora_rank": None, "num_key_value_heads": 4},
    "youtu": {"q_lora_rank": None, "attention_bias": True},
}


@pytest.fixture(scope="module")
def models():
    made = {}

    def model(family):
        if family not in made:
            made[family] = make_model(family, CPU)
        return made[family]

    return model


def read(model, ids, **options):
    cache = TopkCache(model.config, **ALL | options)
    model(ids, past_key_values=cache, use_cache=True)
    return cache


# ---- equal logits ----


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("family", LATENT)
def test_logits_equal_those_of_dynamic_cache(family, pieces, models):
    model, pieces = models(family), PIECES[pieces]
    ids = make_ids(sum(pieces), CPU)
    cache = TopkCache(model.config, **ALL)
    found = logits_by_pieces(model, cache, ids, pieces)
    assert cache.context.shape.keys_are_values
    agree(found, dynamic_logits(model, ids, pieces))


@pytest.mark.parametrize("chunk", [None, 17])
@pytest.mark.parametrize("family", LATENT)
def test_greedy_tokens_equal_those_of_dynamic_cache(family, chunk, models):
    model, ids = models(family), make_ids(69, CPU)
    how = {"max_new_tokens": 24, "do_sample": False, "prefill_chunk_size": chunk}
    expected = model.generate(ids, past_key_values=DynamicCache(config=model.config), **how)
    found = model.generate(ids, past_key_values=TopkCache(model.config, **ALL), **how)
    assert expected[0, 69:].unique().numel() > 3
    assert_greedy(model, found, 69)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("family", FEATURES)
def test_other_features_of_these_models(family):
    config = make_config(family)
    torch.manual_seed(1)
    config = type(config).from_dict(config.to_dict() | FEATURES[family])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    pieces = PIECES["chunks"]
    ids = make_ids(sum(pieces), CPU)
    found = logits_by_pieces(model, TopkCache(model.config, **ALL), ids, pieces)
    agree(found, dynamic_logits(model, ids, pieces))


@pytest.mark.parametrize("pieces", ["chunks", "question after freezing"])
@pytest.mark.parametrize("family", ["deepseek_v2", "youtu"])
def test_rows_of_576_elements(family, pieces, device):
    config = make_config(family)
    config = type(config).from_dict(config.to_dict() | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "head_dim": 64})
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(device, dtype_of(device)).eval()
    pieces = PIECES[pieces]
    ids = make_ids(sum(pieces), device)
    cache = TopkCache(model.config, **ALL)
    found = logits_by_pieces(model, cache, ids, pieces)
    assert cache.context.shape.keys_are_values
    assert_logits_agree(found, model, ids)


@pytest.mark.parametrize("family", LATENT)
def test_attention_of_these_models_reaches_far_back(family, models):
    model, ids = models(family), make_ids(60, CPU)
    other = ids.clone()
    other[0, :8] = (other[0, :8] + 1) % 97
    change = (model(ids).logits - model(other).logits)[0, -1].abs().max()
    assert change > 1e-2 * model(ids).logits[0, -1].abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["deepseek_v2", "youtu"])
def test_16_bits_agree_within_their_own_rounding(family, dtype):
    model = make_model(family, CPU, dtype)
    ids = make_ids(72, CPU)
    found = logits_by_pieces(model, TopkCache(model.config, **ALL), ids, [60] + [1] * 12)
    assert_logits_agree(found, model, ids)


@pytest.mark.parametrize("family", NEWER)
def test_models_that_the_lowest_version_does_not_have(family):
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {family}")
    model = make_model(family, CPU)
    for pieces in PIECES.values():
        ids = make_ids(sum(pieces), CPU)
        found = logits_by_pieces(model, TopkCache(model.config, **ALL), ids, pieces)
        agree(found, dynamic_logits(model, ids, pieces))


# ---- rows ----


@pytest.mark.parametrize("family", KINDS)
def test_a_token_has_one_row_of_its_latent_and_the_rotated_part_of_its_key(family, models):
    model = models(family)
    cache = read(model, make_ids(50, CPU)).freeze()
    shape = cache.context.shape
    assert (shape.kv_heads, shape.head_dim, shape.keys_are_values) == (1, 32 + 8, True)
    assert shape.q_heads == 4
    assert cache.memory().rows == shape.layers * 50 * (32 + 8) * 4
    layer = next(i for i, x in enumerate(cache.layers) if isinstance(x, hf.TopkLayer))
    dynamic = DynamicCache(config=model.config)
    model(make_ids(50, CPU), past_key_values=dynamic, use_cache=True)
    kept = dynamic.layers[layer]
    expected = torch.cat((kept.keys, kept.values), dim=-1)[0, 0]
    assert (torch.from_numpy(cache.context.keys(0, 0)) - expected).abs().max() < 1e-4


def test_the_default_index_is_one_for_rows_of_the_latents_width():
    config = AutoConfig.for_model("deepseek_v3")
    assert families.head_dim(config) == 512 + 64
    index = TopkCache(config)._engine.options.session["index"]
    assert index == IndexSpec.default_for(576).text


@pytest.mark.parametrize("index", [None, "exact", "codes:k=16,v=8"])
@pytest.mark.parametrize("family", KINDS)
def test_sparse_retrieval_comes_nearer_with_more_rows(family, index, models):
    model, ids = models(family), make_ids(220, CPU)
    pieces = [200] + [1] * 20
    dense = dynamic_logits(model, ids, pieces)
    errors = []
    for k in (2, 150):
        cache = TopkCache(model.config, index=index, tail="none", **ALL | {"k": k})
        found = logits_by_pieces(model, cache, ids, pieces)
        errors.append(float((found - dense)[:, 200:].abs().max()))
        (stats,) = cache.stats()
        assert stats.rows_retrieved > 0
    assert errors[0] > 1e-3 and errors[1] < errors[0]


@pytest.mark.parametrize("kv_dtype, allowed", [("bf16", 0.03), ("q8", 0.03), ("q4", 0.5)])
def test_rounded_rows_give_logits_nearby(kv_dtype, allowed, models):
    model, ids = models("youtu"), make_ids(72, CPU)
    pieces = [60] + [1] * 12
    cache = TopkCache(model.config, kv_dtype=kv_dtype, **ALL)
    found, expected = logits_by_pieces(model, cache, ids, pieces), dynamic_logits(model, ids, pieces)
    error = (found - expected).square().mean().sqrt() / expected.std()
    assert 1e-5 < error < allowed


def test_one_vector_is_stored_so_keys_and_values_have_one_dtype():
    config = make_config("deepseek_v3")
    with pytest.raises(InvalidArgument, match="one vector is stored for both; expected one dtype"):
        TopkCache(config, kv_dtype="q8/q4")


# ---- sessions, files, batches ----


@pytest.mark.parametrize("family", KINDS)
def test_sessions_files_and_crop(family, models, tmp_path):
    model, text = models(family), make_ids(50, CPU)
    a, b = make_ids(6, CPU, seed=1), make_ids(5, CPU, seed=2)
    cache = read(model, text)
    cache.save(tmp_path / "c.tkv", model)
    loaded = TopkCache.from_file(tmp_path / "c.tkv", model)
    mapped = TopkCache.from_file(tmp_path / "c.tkv", model, mapped=True)
    for held in (cache, loaded, mapped):
        session = held.session()
        step(model, session, a)
        session.crop(-6)
        agree(step(model, session, b), after(model, text, b))
        found = step(model, held.session(batch=2), torch.cat((b, a[:, :5])))
        expected = torch.cat([after(model, text, x) for x in (b, a[:, :5])])
        agree(found, expected)


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "mistral4"])
def test_speculative_tokens_are_taken_back(family, models):
    model, text = models(family), make_ids(50, CPU)
    a, b = make_ids(6, CPU, seed=1), make_ids(5, CPU, seed=2)
    cache = read(model, text)
    cache.activate_past_recording()
    step(model, cache, a)
    cache.crop(-4)
    agree(step(model, cache, b), after(model, text, a[:, :2], b))


@pytest.mark.parametrize("family", KINDS)
def test_beams_and_padded_texts(family, models):
    model, ids = models(family), make_ids(40, CPU, rows=2)
    mask = torch.ones_like(ids)
    mask[1, :11] = 0
    how = {"max_new_tokens": 8, "do_sample": False}
    for options in ({"num_beams": 3}, {"attention_mask": mask, "pad_token_id": 0}):
        expected = model.generate(ids, past_key_values=DynamicCache(config=model.config), **how, **options)
        found = model.generate(ids, past_key_values=TopkCache(model.config, **ALL), **how, **options)
        assert torch.equal(found, expected)


def test_install(models):
    model, ids = models("deepseek_v3"), make_ids(40, CPU)
    how = {"max_new_tokens": 8, "do_sample": False}
    expected = model.generate(ids, **how)
    hf.install(model, **ALL)
    try:
        assert torch.equal(model.generate(ids, **how), expected)
    finally:
        hf.uninstall(model)


class Every:
    """A method that finds every row."""

    def search(self, queries, keys, k, scale):
        return torch.arange(keys.shape[0])


@pytest.mark.parametrize("family", KINDS)
def test_a_method_in_python_searches_latents(family, models):
    model, text, question = models(family), make_ids(50, CPU), make_ids(7, CPU, seed=1)
    cache = read(model, text, index="exact")
    session = cache.session(method=cache.prepare(Every))
    found = logits_by_pieces(model, session, question, [3, 1, 1, 1, 1])
    ids = torch.cat((text, question), dim=1)
    agree(found, dynamic_logits(model, ids, [50, 3, 1, 1, 1, 1])[:, 50:])


@pytest.mark.parametrize("family", KINDS)
def test_a_layer_that_fails_leaves_the_cache_as_it_was(family, models):
    model, text, question = models(family), make_ids(50, CPU), make_ids(4, CPU, seed=1)
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


def latent_context(model, tokens, rank=32):
    """A context of random rows."""
    shape = topkv.AttentionShape(3, 4, 1, rank + 8, keys_are_values=True)
    builder = topkv.ContextBuilder(shape, capacity=tokens, dtype="f32")
    for layer in range(3):
        builder.append(layer, torch.randn(tokens, 1, rank + 8), None)
    return builder.freeze()


def test_contexts_from_elsewhere_are_refused(models):
    """The order of the rotated part differs between programs: topkv.Model keeps the pairs of DeepSeek V3
    side by side, and transformers does not."""
    model = models("deepseek_v3")
    with pytest.raises(Unsupported, match="the order of the rotated part of a key"):
        TopkCache.from_context(model.config, latent_context(model, 30))
    with pytest.raises(InvalidArgument, match="are latents, .* are K and V"):
        TopkCache.from_context(make_config("llama"), latent_context(model, 30))


def test_files_of_other_rows_are_refused(models, tmp_path):
    model = models("deepseek_v3")
    latent_context(model, 30, rank=40).save(tmp_path / "wide.tkv")
    with pytest.raises(InvalidArgument, match="heads of 48 dims, and the model has heads of 40"):
        TopkCache.from_file(tmp_path / "wide.tkv", model, check_model=False)
    builder = topkv.ContextBuilder(topkv.AttentionShape(3, 4, 1, 40), capacity=30, dtype="f32")
    for layer in range(3):
        builder.append(layer, torch.randn(30, 1, 40), torch.randn(30, 1, 40))
    builder.freeze().save(tmp_path / "kv.tkv")
    with pytest.raises(InvalidArgument, match="are K and V, .* are latents"):
        TopkCache.from_file(tmp_path / "kv.tkv", model, check_model=False)


# ---- the layer's own code ----


def test_other_caches_get_what_they_got_before(models):
    code = families.model_code(make_config("youtu"))
    (kind,) = latent.expanding_layers(code)
    model, ids = models("youtu"), make_ids(40, CPU)
    own = kind.expand_kv
    try:
        kind.expand_kv = getattr(own, "__wrapped__", own)
        expected = dynamic_logits(model, ids, [30] + [1] * 10)
    finally:
        kind.expand_kv = own
    read(model, ids)
    assert kind.expand_kv.__wrapped__ is getattr(own, "__wrapped__", own)  # wrapped once
    assert torch.equal(dynamic_logits(model, ids, [30] + [1] * 10), expected)


CALLS = {
    "by position": lambda expand, latents, rotated: expand(latents, rotated),
    "by name": lambda expand, latents, rotated: expand(kv_nope=latents, k_rot=rotated),
    "by name in another order": lambda expand, latents, rotated: expand(k_rot=rotated, kv_nope=latents),
    "both": lambda expand, latents, rotated: expand(latents, k_rot=rotated),
}


@pytest.mark.parametrize("how", CALLS)
def test_a_layer_may_give_arguments_by_name(how):
    model, ids = make_model("deepseek_v3", CPU), make_ids(40, CPU)
    expected = dynamic_logits(model, ids, [30] + [1] * 10)
    TopkCache(model.config, **ALL)  # wraps the method
    kind = type(model.model.layers[0].self_attn)

    def expand_kv(self, latents, rotated):
        return CALLS[how](super(mine, self).expand_kv, latents, rotated)

    mine = type("Mine", (kind,), {"expand_kv": expand_kv, "__module__": kind.__module__})
    for layer in model.model.layers:
        layer.self_attn.__class__ = mine
    assert torch.equal(dynamic_logits(model, ids, [30] + [1] * 10), expected)
    agree(logits_by_pieces(model, TopkCache(model.config, **ALL), ids, [30] + [1] * 10), expected)


def test_arguments_that_topkv_does_not_know(monkeypatch):
    model, ids = make_model("deepseek_v3", CPU), make_ids(40, CPU)
    (kind,) = latent.expanding_layers(families.model_code(model.config))
    own = getattr(kind.expand_kv, "__wrapped__", kind.expand_kv)

    def expand_kv(self, kv_nope, k_rot, factor=1.0, **others):
        return own(self, factor * kv_nope, k_rot)

    monkeypatch.setattr(kind, "expand_kv", expand_kv)
    TopkCache(model.config, **ALL)
    layer = model.model.layers[0].self_attn
    assert kind.expand_kv is not expand_kv
    latents, rotated = torch.randn(1, 1, 5, layer.kv_lora_rank), torch.randn(1, 1, 5, layer.qk_rope_head_dim)
    plain = layer.expand_kv(latents, rotated, factor=2.0)
    assert all(torch.equal(x, y) for x, y in zip(plain, expand_kv(layer, latents, rotated, 2.0)))

    class Mine(kind):
        def expand_kv(self, kv_nope, k_rot):
            return super().expand_kv(kv_nope, k_rot, factor=2.0, other=None)

    layer.__class__, Mine.__module__ = Mine, kind.__module__
    with pytest.raises(Unsupported, match="Mine computes K and V from its latents and from factor, others, which"):
        step(model, TopkCache(model.config, **ALL), ids)


class Other(torch.nn.Linear):
    """A linear layer in a format that only its forward knows."""

    def __init__(self, of):
        super().__init__(of.in_features, of.out_features, bias=False)
        self.weight.data = of.weight.data / 3

    def forward(self, x):
        return 3 * super().forward(x)


def hooked(linear):
    linear = copy.deepcopy(linear)
    linear.weight.data /= 3
    linear.register_forward_hook(lambda module, args, out: 3 * out)
    return linear


def with_own_forward(linear):
    linear = copy.deepcopy(linear)
    linear.weight.data /= 3
    forward = linear.forward
    linear.forward = lambda x: 3 * forward(x)
    return linear


@pytest.mark.parametrize("change", [Other, hooked, with_own_forward])
def test_kv_b_proj_in_a_format_that_its_forward_knows(change):
    model, ids = make_model("deepseek_v3", CPU), make_ids(60, CPU)
    pieces = [50] + [1] * 10
    expected = dynamic_logits(model, ids, pieces)
    for layer in model.model.layers:
        layer.self_attn.kv_b_proj = change(layer.self_attn.kv_b_proj)
    agree(dynamic_logits(model, ids, pieces), expected)
    agree(logits_by_pieces(model, TopkCache(model.config, **ALL), ids, pieces), expected)


class OfRoundedActivations(torch.nn.Linear):
    """A linear layer that rounds its activations to 8 bits, with one scale for each token."""

    def __init__(self, of):
        super().__init__(of.in_features, of.out_features, bias=False)
        self.weight = of.weight

    def forward(self, x):
        scale = x.abs().amax(dim=-1, keepdim=True).float() / 127
        return super().forward(((x / scale).round() * scale).to(x.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kv_b_proj_that_rounds_activations(dtype):
    model, ids = make_model("deepseek_v3", CPU).to(dtype), make_ids(60, CPU)
    for layer in model.model.layers:
        layer.self_attn.kv_b_proj = OfRoundedActivations(layer.self_attn.kv_b_proj)
    expected = dynamic_logits(model, ids, [60])
    found = logits_by_pieces(model, TopkCache(model.config, **ALL), ids, [60])
    assert (found - expected).square().mean().sqrt() < 0.1 * expected.std()


def test_a_kv_b_proj_that_is_not_linear_is_refused():
    class Squared(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).square()

    model = make_model("deepseek_v3", CPU)
    model.model.layers[0].self_attn.kv_b_proj.__class__ = Squared
    cache = TopkCache(model.config, **ALL)
    with pytest.raises(Unsupported, match="kv_b_proj of DeepseekV3Attention is not linear"):
        step(model, cache, make_ids(40, CPU))
    assert cache.get_seq_length() == 0


PROJECTIONS = {"plain": lambda linear: linear, "rounds activations": OfRoundedActivations, "hooked": hooked}

CHANGES = {
    "heads": ("keys", lambda keys, values: (keys.flip(1), values)),
    "order": ("keys", lambda keys, values: (keys.roll(8, dims=-1), values)),
    "scale": ("values", lambda keys, values: (keys, 1.1 * values)),
    "little": ("values", lambda keys, values: (keys, 1.02 * values)),
    "little in keys": ("keys", lambda keys, values: (1.02 * keys, values)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_that_computes_other_keys_or_values_is_refused(change, projection, dtype):
    model = make_model("deepseek_v3", CPU).to(dtype)
    name, changed = CHANGES[change]
    layer = model.model.layers[1].self_attn
    layer.kv_b_proj = PROJECTIONS[projection](layer.kv_b_proj)
    kind = type(layer)

    def expand_kv(self, latents, rotated):
        found = kind.expand_kv(self, latents, rotated)
        return changed(*found) if isinstance(latents, torch.Tensor) else found

    layer.__class__ = type("Mine", (kind,), {"expand_kv": expand_kv, "__module__": kind.__module__})
    cache = TopkCache(model.config, **ALL)
    with pytest.raises(Unsupported, match=f"Mine computes other {name} from its latents"):
        step(model, cache, make_ids(40, CPU))
    assert cache.get_seq_length() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
def test_roundings_of_a_dtype_are_no_other_keys_or_values(dtype, autocast):
    model = make_model("deepseek_v3", CPU, torch.float32 if autocast else dtype)
    cache = TopkCache(model.config, **ALL)
    with torch.autocast("cpu", dtype, enabled=autocast):
        step(model, cache, make_ids(40, CPU))
    assert cache.get_seq_length() == 40


def test_a_bias_of_kv_b_proj_is_refused():
    model = make_model("deepseek_v3", CPU)
    layer = model.model.layers[0].self_attn
    layer.kv_b_proj.bias = torch.nn.Parameter(torch.ones(layer.kv_b_proj.out_features))
    with pytest.raises(Unsupported, match="kv_b_proj has a bias"):
        step(model, TopkCache(model.config, **ALL), make_ids(40, CPU))


def test_an_attention_function_that_is_not_topkvs_is_refused(monkeypatch):
    code = families.model_code(make_config("deepseek_v3"))
    plain_eager = code.eager_attention_forward

    def eager(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        return plain_eager(module, query, key, value, attention_mask, 1.1 * scaling)

    monkeypatch.setattr(code, "eager_attention_forward", eager)
    model = make_model("deepseek_v3", CPU)
    with pytest.raises(Unsupported, match="is not the softmax over K and V"):
        step(model, TopkCache(model.config, **ALL), make_ids(40, CPU))


def test_code_that_computes_k_and_v_in_an_unknown_way_is_refused(monkeypatch):
    config = make_config("deepseek_v3")
    (kind,) = latent.expanding_layers(families.model_code(config))
    monkeypatch.delattr(kind, "expand_kv")
    for trust in (False, True):
        with pytest.raises(Unsupported, match=r"\(MLA, kv_lora_rank=32\), and its code computes K and V"):
            TopkCache(config, trust=trust)


def test_latents_of_layers_with_a_window_are_refused():
    config = make_config("deepseek_v3")
    config.layer_types, config.sliding_window = [families.SLIDING, families.FULL, families.FULL], 24
    with pytest.raises(Unsupported, match=r"\(MLA, .*also in layers with a sliding window"):
        TopkCache(config)
