"""What a small k does: so many rows are attended and no more, and a needle is still found."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import topkv
from needles import load_tokenizer, make_needles, text_with
from own_index import Flat, registered
from small_models import dtype_of, make_config, make_ids, make_model
from topkv.hf import TopkCache
from transformers import AutoModelForCausalLM


@pytest.mark.parametrize("select_by", ["query_head", "group"])
def test_each_token_attends_k_rows_per_query_head(select_by, device):
    model = make_model("llama", device, dtype_of(device))
    ids = make_ids(200, device)
    cache = TopkCache(
        model.config, index="exact", k=5, window=16, sinks=2, select_by=select_by
    )
    model(ids[:, :190], past_key_values=cache, use_cache=True)
    for i in range(190, 200):
        model(ids[:, i : i + 1], past_key_values=cache, use_cache=True)
    (stats,) = cache.stats()
    layers, q_heads = 3, 4
    assert stats.steps == 10 * layers
    assert stats.rows_retrieved == 10 * layers * q_heads * 5


def test_a_list_of_k_counts_full_attention_layers_only(device):
    model = make_model("gemma2", device, dtype_of(device))  # 2 full, 2 sliding
    ids = make_ids(101, device)
    cache = TopkCache(model.config, index="exact", k=[3, 7], window=16, sinks=2)
    model(ids[:, :100], past_key_values=cache, use_cache=True)
    model(ids[:, 100:], past_key_values=cache, use_cache=True)
    (stats,) = cache.stats()
    assert stats.rows_retrieved == 4 * (3 + 7)


def test_fewer_rows_change_the_logits(device):
    """Else k would not reach the attention at all."""
    model = make_model("llama", device, dtype_of(device))
    ids = make_ids(400, device)

    def last(k):
        cache = TopkCache(model.config, k=k, window=8, sinks=2)
        model(ids[:, :399], past_key_values=cache, use_cache=True)
        return model(ids[:, 399:], past_key_values=cache, use_cache=True).logits[0, -1].float()

    everything = last(10_000)
    assert (last(1) - everything).abs().max() > 1e-3 * everything.abs().max()


def test_an_index_written_in_python_answers_as_exact_also_after_a_file(device, tmp_path):
    model = make_model("llama", device, dtype_of(device))
    ids = make_ids(205, device)

    def last(cache):
        return model(ids[:, 200:], past_key_values=cache.session(), use_cache=True).logits

    with registered("flat", Flat):
        exact, flat = (
            TopkCache(model.config, index=index, tail="none", k=5, window=16, sinks=2)
            for index in ("exact", "flat")
        )
        for cache in (exact, flat):
            model(ids[:, :200], past_key_values=cache, use_cache=True)
        assert torch.equal(last(flat), last(exact))
        flat.save(tmp_path / "text.topkv", model)
        assert torch.equal(last(TopkCache.from_file(tmp_path / "text.topkv", model)), last(exact))
    with pytest.raises(topkv.InvalidArgument, match="no index is named \"flat\""):
        TopkCache.from_file(tmp_path / "text.topkv", model)


def test_memory_and_context_tell_what_is_held(device):
    model = make_model("gemma2", device, dtype_of(device))
    cache = TopkCache(model.config, k=5)
    assert cache.memory().rows == 0
    model(make_ids(100, device), past_key_values=cache, use_cache=True)
    cache.freeze()
    row = 64 * (2 if device.type == "cuda" else 4)
    assert cache.context.tokens == 100
    assert cache.memory().rows >= 2 * 2 * 100 * 2 * row  # layers, heads, tokens, K and V
    assert cache.memory().sliding > 0


@pytest.fixture(scope="module")
def haystack(needle_14m):
    """Tokenizer, needles and the ids of a text of 4096 tokens that holds them."""
    tokenizer = load_tokenizer(needle_14m)
    needles = make_needles(3)
    return tokenizer, needles, text_with(needles, 4096, tokenizer)


def read_haystack(directory, text, device, **options):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype_of(device)).to(device)
    cache = TopkCache(model.config, k=64, window=256, **options)
    for first in range(0, len(text), 1024):
        part = torch.tensor([text[first : first + 1024]], device=device)
        model(part, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return model, cache


def test_needle_14m_finds_needles_with_64_rows_of_4096(device, needle_14m, haystack):
    tokenizer, needles, text = haystack
    model, cache = read_haystack(needle_14m, text, device)
    for needle in needles:
        question = tokenizer.encode(needle.question, add_special_tokens=False)
        ids = torch.tensor([text + question], device=device)
        out = model.generate(
            ids, past_key_values=cache.session(), max_new_tokens=12, do_sample=False
        )
        assert needle.value in tokenizer.decode(out[0, ids.shape[1] :])


def test_recall_of_an_approximate_index_is_measured(device, needle_14m, haystack):
    tokenizer, needles, text = haystack
    model, cache = read_haystack(
        needle_14m, text, device, index="hnsw:M=16", measure_recall=True
    )
    question = tokenizer.encode(needles[1].question, add_special_tokens=False)
    ids = torch.tensor([question], device=device)
    session = cache.session()
    model(ids, past_key_values=session, use_cache=True)
    (stats,) = session.stats()
    assert 0.7 < stats.recall < 1
    assert stats.exact_rows > 0


def test_a_context_read_by_topkv_itself_goes_on_in_transformers(needle_14m, haystack):
    tokenizer, needles, text = haystack
    context = topkv.Model.load(str(needle_14m)).prefill(text)
    model = AutoModelForCausalLM.from_pretrained(needle_14m, dtype=torch.float32)
    cache = TopkCache.from_context(model.config, context, k=64, window=256)
    assert cache.get_seq_length() == len(text)
    for needle in needles:
        question = tokenizer.encode(needle.question, add_special_tokens=False)
        ids = torch.tensor([text + question])
        out = model.generate(
            ids, past_key_values=cache.session(), max_new_tokens=12, do_sample=False
        )
        assert needle.value in tokenizer.decode(out[0, ids.shape[1] :])


def test_a_context_of_another_shape_is_refused():
    builder = topkv.ContextBuilder(
        topkv.AttentionShape(layers=2, q_heads=4, kv_heads=2, head_dim=64), capacity=8
    )
    rows = torch.zeros(8, 2, 64)
    for layer in range(2):
        builder.append(layer, rows, rows)
    context = builder.freeze()
    config = make_config("llama")
    shape = topkv.AttentionShape(layers=3, q_heads=4, kv_heads=2, head_dim=2 * config.head_dim)
    other = topkv.ContextBuilder(shape, capacity=1).freeze()
    with pytest.raises(topkv.InvalidArgument, match="dims, and the model has heads of"):
        TopkCache.from_context(config, other)
    with pytest.raises(topkv.InvalidArgument, match="2 layers, and the model has 3"):
        TopkCache.from_context(make_config("llama"), context)
    with pytest.raises(topkv.Unsupported, match="a context does not have the state of other layers"):
        TopkCache.from_context(make_config("gemma2"), context)
