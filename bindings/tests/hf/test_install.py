"""install(): generate uses topkv by itself, other caches are served as before, refusals say why."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_models import FAMILIES, assert_greedy, dtype_of, make_config, make_ids, make_model
from topkv import InvalidArgument, Unsupported
from topkv import hf
from topkv.hf import compat
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DynamicCache,
    Gemma2Config,
    MambaConfig,
    LlamaConfig,
    MistralConfig,
    StaticCache,
    T5Config,
)

ALL = {"k": 10_000, "window": 8, "sinks": 2}


@pytest.mark.parametrize("family", FAMILIES)
def test_generate_after_install_gives_the_tokens_of_dense_attention(family, device):
    model = make_model(family, device, dtype_of(device))
    ids = make_ids(50, device)
    hf.install(model, **ALL, prefill_chunk_size=16)
    out = model.generate(ids, max_new_tokens=10, do_sample=False, return_dict_in_generate=True)
    assert isinstance(out.past_key_values, hf.TopkCache)
    assert out.past_key_values.context is not None
    assert_greedy(model, out.sequences, 50)
    again = model.generate(ids, max_new_tokens=10, do_sample=False)  # a new cache
    assert torch.equal(again, out.sequences)


def test_install_reads_in_chunks_and_reserves_once(device):
    model = make_model("llama", device, dtype_of(device))
    hf.install(model, **ALL, prefill_chunk_size=16)
    lengths = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    model.generate(make_ids(50, device), max_new_tokens=3, do_sample=False)
    assert lengths == [16, 16, 16, 2, 1, 1]


def test_a_prompt_of_embeddings_is_read_at_once(device):
    model = make_model("llama", device, dtype_of(device))
    ids = make_ids(50, device)
    hf.install(model, **ALL, prefill_chunk_size=16)
    embeddings = model.get_input_embeddings()(ids)
    out = model.generate(inputs_embeds=embeddings, max_new_tokens=10, do_sample=False)
    assert_greedy(model, torch.cat((ids, out), dim=1), 50)


def test_a_long_answer_has_room(device):
    model = make_model("llama", device, dtype_of(device))
    hf.install(model, **ALL)
    out = model.generate(
        make_ids(50, device),
        max_new_tokens=20_000,
        stopping_criteria=[lambda ids, _: torch.ones(1, dtype=torch.bool, device=device)],
        return_dict_in_generate=True,
    )
    cache = out.past_key_values
    assert cache.session()._engine.options.session["capacity"] >= 20_000


@pytest.mark.parametrize(
    "family, implementation",
    [
        ("llama", "eager"),
        ("llama", "sdpa"),
        ("gemma2", "eager"),  # newer transformers have no sdpa with soft-capping
        ("gemma3", "sdpa"),
        ("qwen2-window", "eager"),
        ("qwen2-window", "sdpa"),
    ],
)
def test_other_caches_give_bit_for_bit_what_they_gave(family, implementation, device):
    model = make_model(family, device, dtype_of(device))
    model.set_attn_implementation(implementation)
    ids = make_ids(40, device, rows=2)
    padded = torch.ones_like(ids)
    padded[0, :7] = 0

    def outputs():
        for mask in (None, torch.ones_like(ids), padded):
            for cache in (
                DynamicCache(config=model.config),
                StaticCache(config=model.config, max_cache_len=64),
                None,
            ):
                use = cache is not None
                yield model(
                    ids, attention_mask=mask, past_key_values=cache, use_cache=use
                ).logits
        packed = torch.arange(20, device=device).repeat(2)[None].expand(2, -1)
        yield model(ids, position_ids=packed, use_cache=False).logits

    before = list(outputs())
    hf.install(model, **ALL)
    assert model.config._attn_implementation == f"topkv:{implementation}"
    for found, expected in zip(outputs(), before, strict=True):
        assert torch.equal(found, expected)


def test_uninstall_gives_the_model_back_as_it_was(device):
    model = make_model("llama", device)
    hf.install(model, k=8)
    hf.install(model, k=9)  # twice does no harm
    hf.uninstall(model)
    assert model.config._attn_implementation == "eager"
    out = model.generate(
        make_ids(20, device), max_new_tokens=2, do_sample=False, return_dict_in_generate=True
    )
    assert isinstance(out.past_key_values, DynamicCache)


def test_chunks_over_a_filled_cache_are_refused(device):
    model = make_model("llama", device)
    hf.install(model, **ALL)
    ids = make_ids(40, device)
    cache = hf.TopkCache(model.config, **ALL)
    model(ids[:, :30], past_key_values=cache, use_cache=True)
    model.generate(ids, past_key_values=cache.session(), max_new_tokens=2)  # none by default
    with pytest.raises(InvalidArgument, match="filled already"):
        model.generate(ids, past_key_values=cache.session(), prefill_chunk_size=16)


class Lengths:
    """Tokens of each forward pass of a model."""

    def __init__(self, model):
        self.all = []
        model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, _, args, kwargs):
        self.all.append(kwargs["input_ids"].shape[1])


@pytest.mark.parametrize("tokens_at_once", [1, 3])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_assisted_generation_of_installed_models_gives_greedy_tokens(
    family, tokens_at_once, device
):
    """An assistant's text is all of the prompt, though it is read in chunks."""
    model = make_model(family, device, dtype_of(device))
    assistant = make_model(family, device, dtype_of(device))
    assistant.generation_config.num_assistant_tokens = tokens_at_once
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0
    ids = make_ids(50, device)
    # transformers' own caches of models with windows fail under an assistant (5.17).
    alone = [] if family == "gemma2" else [[assistant], [model]]
    for installed in ([model, assistant], *alone):
        hf.uninstall(model), hf.uninstall(assistant)
        for one in installed:
            hf.install(one, **ALL, prefill_chunk_size=16)
        made = []
        if assistant in installed:
            caches = assistant._prepare_cache_for_generation

            def prepare(config, kwargs, *rest, caches=caches, made=made):
                caches(config, kwargs, *rest)
                made.append(kwargs[compat.cache_argument()])

            assistant._prepare_cache_for_generation = prepare
        lengths = Lengths(assistant)
        out = model.generate(ids, assistant_model=assistant, max_new_tokens=20, do_sample=False)
        assert_greedy(model, out, 50)
        if assistant in installed:
            assert lengths.all[:4] == [16, 16, 16, 2]
            assert made[-1] is made[0] and made[0].context.tokens >= 50


def test_chunks_asked_for_of_assisted_generation_are_no_error(device):
    model, assistant = (make_model("llama", device, dtype_of(device)) for _ in range(2))
    for one in (model, assistant):
        hf.install(one, **ALL)
    ids = make_ids(50, device)
    how = {"max_new_tokens": 10, "do_sample": False, "prefill_chunk_size": 16}
    assert_greedy(model, model.generate(ids, assistant_model=assistant, **how), 50)


@pytest.mark.parametrize("what", [None, LlamaConfig(), torch.nn.Linear(2, 2), "model"], ids=str)
def test_what_is_no_model_is_refused(what):
    with pytest.raises(InvalidArgument, match="expected a model of transformers"):
        hf.install(what)
    with pytest.raises(InvalidArgument, match="expected a model of transformers"):
        hf.uninstall(what)


@pytest.mark.parametrize("chunk", [0, -1, 1.5, "8K", None])
def test_wrong_chunks_are_refused_and_nothing_is_installed(chunk, device):
    model = make_model("llama", device)
    with pytest.raises(InvalidArgument, match="prefill_chunk_size"):
        hf.install(model, prefill_chunk_size=chunk)
    assert model.config._attn_implementation == "eager"


def test_wrong_options_leave_an_earlier_install_in_place(device):
    model = make_model("llama", device)
    hf.install(model, **ALL)
    with pytest.raises(InvalidArgument, match="k is 0"):
        hf.install(model, k=0)
    out = model.generate(make_ids(9, device), max_new_tokens=2, return_dict_in_generate=True)
    assert isinstance(out.past_key_values, hf.TopkCache)


def test_wrong_options_are_refused_at_install_time(device):
    model = make_model("llama", device)
    with pytest.raises(InvalidArgument, match="sequence"):
        hf.install(model, shard="heads")
    with pytest.raises(TypeError, match="topk"):
        hf.install(model, topk=8)


def test_shards_without_processes_are_refused(device):
    with pytest.raises(InvalidArgument, match="torchrun"):
        hf.TopkCache(make_config("llama"), shard="sequence")


UNSUPPORTED = {
    "indexer": (LlamaConfig(index_topk=64), "by an indexer of its own"),
    "cross attention": (T5Config(), "encoder-decoder"),
    "no attention": (MambaConfig(), "every layer has a state of fixed size"),
    "attention code of its own": (BloomConfig(), "BloomAttention .* attends in its own way"),
    "bidirectional": (Gemma2Config(use_bidirectional_attention=True), "not causal"),
    "windows everywhere": (MistralConfig(sliding_window=4096), "every layer has a sliding window"),
}


@pytest.mark.parametrize("config, reason", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_models_it_cannot_serve_are_refused_with_the_reason(config, reason):
    with pytest.raises(Unsupported, match=reason):
        hf.TopkCache(config)


def test_a_copy_of_the_config_is_noticed(device):
    model = make_model("llama", device)
    cache = hf.TopkCache(LlamaConfig(**model.config.to_dict()))
    with pytest.raises(InvalidArgument, match=r"TopkCache\(model\.config\)"):
        model(make_ids(20, device), past_key_values=cache, use_cache=True)


def test_masks_that_are_not_causal_are_refused(device):
    model = make_model("llama", device)
    cache = hf.TopkCache(model.config)
    mask = torch.zeros(1, 1, 20, 20, device=device)
    with pytest.raises(Unsupported, match="no mask that the caller made"):
        model(make_ids(20, device), attention_mask=mask, past_key_values=cache, use_cache=True)


def test_training_and_gradients_are_refused(device):
    with torch.inference_mode(False), torch.enable_grad():
        model = make_model("llama", device)
        with pytest.raises(Unsupported, match="torch.no_grad"):
            model(
                make_ids(20, device),
                past_key_values=hf.TopkCache(model.config),
                use_cache=True,
            )
        model.train()
        with pytest.raises(Unsupported, match=r"model\.eval\(\)"):
            model(
                make_ids(20, device),
                past_key_values=hf.TopkCache(model.config),
                use_cache=True,
            )


def test_a_saved_config_does_not_carry_topkv(device, tmp_path):
    model = make_model("llama", device)
    hf.install(model, k=8)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert "topkv" not in (tmp_path / "config.json").read_text()
    assert loaded.config._attn_implementation == "sdpa"


def test_a_static_cache_gives_what_it_gave(device):
    model = make_model("llama", device, dtype_of(device))
    ids = make_ids(40, device)
    how = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": "static"}
    if device.type == "cuda":
        how["disable_compile"] = True
    before = model.generate(ids, **how)
    hf.install(model, k=8)
    assert torch.equal(model.generate(ids, **how), before)
