"""What a small k does: so many rows are attended and no more, and a needle is still found."""

import pytest
import torch
from needles import load_tokenizer, make_needles, text_with
from small_models import dtype_of, make_ids, make_model
from topkv.hf import TopkCache
from transformers import AutoModelForCausalLM


@pytest.mark.parametrize("select_by", ["query_head", "group"])
def test_each_token_attends_k_rows_per_query_head(select_by, device):
    model = make_model("llama", device, dtype_of(device))
    ids = make_ids(200, device)
    cache = TopkCache(model.config, k=5, window=16, sinks=2, select_by=select_by)
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
    cache = TopkCache(model.config, k=[3, 7], window=16, sinks=2)
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


@pytest.mark.parametrize("index", ["exact", "hnsw:M=16"])
def test_needle_14m_finds_needles_with_64_rows_of_4096(index, device, needle_14m):
    tokenizer = load_tokenizer(needle_14m)
    model = AutoModelForCausalLM.from_pretrained(needle_14m, dtype=torch.bfloat16).to(device)
    needles = make_needles(3)
    text = text_with(needles, 4096, tokenizer)
    cache = TopkCache(model.config, index=index, k=64, window=256)
    for first in range(0, len(text), 1024):
        part = torch.tensor([text[first : first + 1024]], device=device)
        model(part, past_key_values=cache, use_cache=True, logits_to_keep=1)
    for needle in needles:
        question = tokenizer.encode(needle.question, add_special_tokens=False)
        ids = torch.tensor([text + question], device=device)
        out = model.generate(
            ids, past_key_values=cache.session(), max_new_tokens=12, do_sample=False
        )
        assert needle.value in tokenizer.decode(out[0, ids.shape[1] :])
