"""What is looked at before topkv attends for a model, and what is refused by it."""

import re

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import (
    HYBRID,
    assert_logits_agree,
    dynamic_logits,
    logits_by_pieces,
    make_config,
    make_ids,
    make_model,
)
from topkv import IndexSpec, InvalidArgument, Unsupported, hf
from topkv.hf import families, indexer_readers, plain
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

ALL = {"k": 10_000, "window": 8, "sinks": 2}
CPU = torch.device("cpu")
SIZES = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def read(model, cache, **arguments):
    return model(make_ids(40, CPU), past_key_values=cache, use_cache=True, **arguments).logits


# ---- the config and the code of its model ----

REFUSED = {
    "bamba": "every layer has a state of fixed size",  # its default has no attention
    "bert": "is_decoder=False",
    "bloom": "BloomAttention .* attends in its own way",
    "deepseek_v4": r"an indexer of its own \(index_head_dim=128, ",
    "falcon": "FalconAttention.* attends in its own way",
    "gpt_neox_japanese": "GPTNeoXJapaneseAttention.* attends in its own way",
    "llama4_text": "attends in chunks",
    "mamba": "every layer has a state of fixed size",
    "minimax": "keeps more than K and V, in MiniMaxCache",
    "mllama_text_model": "cross attention",
    "mpt": "MptAttention .* attends in its own way",
    "qwen4_exp_text": "layers with an indexer, and no indexer_n_heads",
    "mimo_v2_flash": "head dimensions of K and V differ: 192 and 128",
    "mistral": "every layer has a sliding window of 4096",
    "recurrent_gemma": "every layer has a sliding window",
    "rwkv": "no layer that gives K and V to a cache",
    "t5": "encoder-decoder",
}
OPTIONS = {
    "mimo_v2_flash": {"head_dim": 192, "v_head_dim": 128},
}


@pytest.mark.parametrize("model_type", REFUSED)
def test_models_that_attend_in_another_way_are_refused_by_their_config(model_type):
    config = AutoConfig.for_model(model_type, **OPTIONS.get(model_type, {}))
    with pytest.raises(Unsupported, match=REFUSED[model_type]):
        hf.TopkCache(config)
    assert not str(config._attn_implementation).startswith("topkv")  # and left as it was


def test_an_indexer_in_the_code_of_a_model_is_seen_where_its_config_is_silent(monkeypatch):
    monkeypatch.delitem(indexer_readers.READERS, "qwen4_exp_text")
    config = AutoConfig.for_model("qwen4_exp_text")
    config.layer_types = [families.FULL] * config.num_hidden_layers
    with pytest.raises(Unsupported, match="Qwen4ExpTextAttention of .* has an indexer.*trust=True"):
        hf.TopkCache(config)


def latent_models():
    """Of all model types in transformers, those whose config has a rank of a latent."""
    for model_type in transformers.CONFIG_MAPPING:
        fields = vars(transformers.CONFIG_MAPPING[model_type])
        if fields.get("kv_lora_rank") is not None:
            yield model_type


def test_models_that_keep_a_latent_are_taken_unless_an_unknown_indexer_chooses_keys():
    """Whatever their layers are called."""
    taken, chosen = set(), set()
    for model_type in latent_models():
        config = AutoConfig.for_model(model_type)
        text = families.text_config(config)
        text.layer_types = [families.FULL] * text.num_hidden_layers
        try:
            hf.check(config, trust=True)
            taken.add(model_type)
        except Unsupported as error:
            assert re.search("by an indexer of its own|from transformers 5.18 on", str(error)), model_type
            chosen.add(model_type)
    assert taken >= {"deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_linear", "youtu"}
    indexed = {"axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4"}
    assert indexed <= (taken if hf.compat.version() >= (5, 18) else chosen)


def test_a_config_whose_layers_differ_is_asked_by_layer():
    config = AutoConfig.for_model(
        "gemma4_text",
        **SIZES | {"num_hidden_layers": 4, "layer_types": HYBRID, "num_kv_shared_layers": 0},
        head_dim=64,
        global_head_dim=512,
    )
    with pytest.raises(RuntimeError):  # of the whole it is not to be asked
        config.head_dim
    loaded = type(config).from_dict(config.to_dict())  # as from config.json
    assert "per_layer_config" in config.to_dict()
    widths = [IndexSpec.default_for(width).text for width in (64, 512)]
    assert widths[0] != widths[1]
    for each in (config, loaded):
        assert families.head_dim(each) == 512
        assert hf.TopkCache(each)._engine.options.session["index"] == widths[1]


def test_the_widths_of_gemma_4_as_published():
    config = AutoConfig.for_model("gemma4_text")
    text = families.text_config(config)
    widths = {kind: text.per_layer_config[i].head_dim for i, kind in enumerate(text.layer_types)}
    assert widths == {families.SLIDING: 256, families.FULL: 512}
    assert families.head_dim(config) == 512
    assert hf.TopkCache(config)._engine.options.session["index"] == IndexSpec.default_for(512).text


@pytest.mark.parametrize(
    "override, message",
    [
        ({"num_key_value_heads": 1}, "not alike: num_key_value_heads is 1 and 2"),
        ({"head_dim": 32}, "not alike: head_dim is 32 and 64"),
        ({"skip": ["attention"]}, "leave out attention"),
    ],
)
def test_full_layers_that_differ_are_refused(override, message):
    told = make_config("llama").to_dict() | {"per_layer_config": {"1": override}}
    with pytest.raises(Unsupported, match=message):
        hf.TopkCache(LlamaConfig.from_dict(told))


@pytest.mark.parametrize("model_type", ["diffllama", "doge", "jetmoe"])
def test_models_that_use_k_and_v_themselves_are_refused_at_the_first_call(model_type):
    sizes = SIZES | {"intermediate_size": 96, "num_local_experts": 4, "num_experts_per_tok": 2}
    config = AutoConfig.for_model(model_type, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(InvalidArgument, match="do more with K and V than attend"):
        read(model, hf.TopkCache(model.config, **ALL))


def test_a_bert_that_is_a_decoder_is_taken():
    config = AutoConfig.for_model("bert", is_decoder=True)
    hf.check(config)


class OtherConfig(LlamaConfig):
    model_type = "other"


class Named:  # a scope for a class of a name that transformers has
    class LlamaConfig(LlamaConfig):
        model_type = "another"


@pytest.mark.parametrize("kind", [OtherConfig, Named.LlamaConfig])
def test_a_model_whose_code_is_not_known_needs_trust(kind):
    config = kind(**make_config("llama").to_dict() | {"model_type": kind.model_type})
    torch.manual_seed(1)
    model = LlamaForCausalLM(config).eval()
    with pytest.raises(Unsupported, match=r"no model of .*self_check\(model\).*trust=True"):
        hf.TopkCache(model.config)
    assert hf.self_check(model).difference < 1e-5
    ids = make_ids(40, CPU)
    pieces = [30] + [1] * 10
    cache = hf.TopkCache(model.config, trust=True, **ALL)
    found, expected = logits_by_pieces(model, cache, ids, pieces), dynamic_logits(model, ids, pieces)
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_trust_does_not_take_what_the_config_rules_out():
    with pytest.raises(Unsupported, match="an indexer of its own"):
        hf.TopkCache(AutoConfig.for_model("deepseek_v4"), trust=True)


# ---- the arguments of a call ----

MEANING = {
    "block_indices": torch.zeros(1),
    "cu_seq_lens_q": torch.tensor([0, 20, 40]),
    "is_causal": False,
    "output_attentions": True,
    "position_bias": torch.zeros(1),
    "sliding_window": 8,
}


@pytest.mark.parametrize("name", MEANING)
def test_arguments_that_change_attention_are_refused_and_not_ignored(name):
    model = make_model("llama", CPU)
    layer = model.model.layers[0].self_attn
    q, k = torch.randn(1, 4, 9, 64), torch.randn(1, 2, 9, 64)
    with pytest.raises(Unsupported, match=f"LlamaAttention gives its attention {name}: "):
        plain.require_known(layer, {name: MEANING[name]})
    cache = hf.TopkCache(model.config, **ALL)
    attend = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS[model.config._attn_implementation]
    handle, _ = cache.update(k, k, 0)
    with pytest.raises(Unsupported, match=name):
        attend(layer, q, handle, handle, None, **{name: MEANING[name]})


def test_arguments_that_no_attention_reads_are_taken():
    model = make_model("llama", CPU)
    ids = make_ids(40, CPU)
    found = read(model, hf.TopkCache(model.config, **ALL), a_word_of_my_own=3)
    assert_logits_agree(found, model, ids)


def test_an_unknown_argument_that_the_model_reads_is_refused(monkeypatch):
    plain_eager = modeling_llama.eager_attention_forward

    def eager(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        return plain_eager(module, query, key, value, attention_mask, scaling * kwargs.get("x", 1))

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", eager)
    model = make_model("llama", CPU)
    with pytest.raises(Unsupported, match="gives its attention x: topkv does not know"):
        read(model, hf.TopkCache(model.config, **ALL), x=2)


def test_a_layer_that_attends_both_ways_is_refused():
    model = make_model("llama", CPU)
    model.model.layers[1].self_attn.is_causal = False
    with pytest.raises(Unsupported, match="LlamaAttention attends both ways"):
        read(model, hf.TopkCache(model.config, **ALL))


def test_k_and_v_of_another_layer_are_refused():
    model = make_model("llama", CPU)
    layers = model.model.layers
    cache = hf.TopkCache(model.config, **ALL)
    attend = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS[model.config._attn_implementation]
    q, k = torch.randn(1, 4, 9, 64), torch.randn(1, 2, 9, 64)
    handle, _ = cache.update(k, k, 0)
    attend(layers[0].self_attn, q, handle, handle, None, scaling=0.125)
    with pytest.raises(Unsupported, match="K and V of another layer"):
        attend(layers[1].self_attn, q, handle, handle, None, scaling=0.125)


# ---- the attention function of a model ----


@pytest.mark.parametrize("change", ["bias", "scale", "softmax", "grouping"])
def test_an_attention_function_that_is_not_topkvs_is_refused(change, monkeypatch):
    def eager(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
        groups = module.num_key_value_groups
        if change == "grouping":
            key, value = key.repeat(1, groups, 1, 1), value.repeat(1, groups, 1, 1)
        else:
            key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        scores = query @ key.mT * scaling + attention_mask
        if change == "bias":
            scores = scores + 0.1 * torch.arange(key.shape[-2])
        if change == "scale":
            scores = scores * 1.1
        weights = scores.softmax(-1)
        if change == "softmax":
            weights = weights / (1 + weights.sum(-1, keepdim=True))
        return (weights @ value).transpose(1, 2), weights

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", eager)
    model = make_model("llama", CPU)
    with pytest.raises(Unsupported, match="LlamaAttention is not the softmax over K and V"):
        read(model, hf.TopkCache(model.config, **ALL))


@pytest.mark.parametrize("cap, sinks", [(0.0, False), (2.0, False), (0.0, True)])
def test_the_formula_is_what_topkv_computes(cap, sinks):
    model = make_model("llama", CPU)  # of the same head counts
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(1, 4, 20, 64, generator=generator)
    k, v = (torch.randn(1, 2, 20, 64, generator=generator) for _ in range(2))
    scores = torch.randn(4, generator=generator) if sinks else None
    cache = hf.TopkCache(model.config, **ALL)
    handle, _ = cache.update(k, v, 0)
    how = {"scale": 0.3, "softcap": cap, "sink_scores": scores}
    found = handle.layer.attend(q, k, v, **how)
    expected = plain.formula(*(x.double() for x in (q, k, v)), **how)
    assert (found - expected).abs().max() < 1e-5


def test_the_attention_function_is_that_of_the_file_of_the_forward():
    kind = type("Mine", (modeling_llama.LlamaAttention,), {"__module__": __name__})
    layer = kind(make_config("llama"), 0)
    assert plain.own_attention(layer) is modeling_llama.eager_attention_forward


# ---- the whole model ----


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_self_check_agrees_and_leaves_the_model_as_it_was(family):
    model = make_model(family, CPU).train()
    result = hf.self_check(model, tokens=64)
    assert result.difference < 1e-5 and result.allowed == 1e-4
    assert model.config._attn_implementation == "eager" and model.training


def test_self_check_in_16_bits_allows_what_rounding_does():
    model = make_model("llama", CPU, torch.bfloat16)
    result = hf.self_check(model, tokens=64)
    assert 1e-4 < result.difference < result.allowed


def test_self_check_refuses_other_logits_with_the_numbers():
    model = make_model("llama", CPU)
    with pytest.raises(Unsupported, match="and 0.0001 is allowed"):
        hf.self_check(model, tokens=64, prefill="window", window=4, sinks=0)
    assert model.config._attn_implementation == "eager"
