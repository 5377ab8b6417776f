"""Beams, samples and pipelines over caches that install() makes, or of one's own."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import make_ids, make_model
from test_batches import padded, texts_of
from topkv.hf import TopkCache, install, uninstall
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedTokenizerFast

CPU = torch.device("cpu")
ALL = {"k": 10_000, "window": 8, "sinks": 2, "progress": False}
DENSE = {"k": 1, "window": 1, "sinks": 0, "dense_layers": 100, "progress": False}
HOW = {
    "beams": {"num_beams": 3, "do_sample": False},
    "several beams of each": {"num_beams": 4, "num_return_sequences": 2, "do_sample": False},
    "samples": {"num_return_sequences": 3, "do_sample": True},
    "beams of samples": {"num_beams": 3, "do_sample": True},
}


def both(model, make_cache, ids, mask, **how):
    """Tokens with DynamicCache, and with what make_cache gives, or install()."""
    how = {"max_new_tokens": 8, "pad_token_id": 0} | how
    results = []
    for cache in (DynamicCache(config=model.config), make_cache()):
        torch.manual_seed(3)
        given = {} if cache is None else {"past_key_values": cache}
        results.append(model.generate(ids, attention_mask=mask, **given, **how))
    return results


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("options", [ALL, DENSE], ids=["all rows", "dense layers"])
def test_an_installed_model_gives_what_dynamic_cache_gives(family, how, options):
    model = make_model(family, CPU)
    ids, mask = padded(texts_of(CPU, (20, 33)))
    install(model, **options, prefill_chunk_size=16)
    expected, found = both(model, lambda: None, ids, mask, **how)
    assert torch.equal(found, expected)


def test_a_cache_of_ones_own_is_given_beams():
    model = make_model("llama", CPU)
    ids, mask = padded(texts_of(CPU, (20, 33)))
    cache = TopkCache(model.config, **ALL)
    expected, found = both(model, lambda: cache, ids, mask, num_beams=3, do_sample=False)
    assert torch.equal(found, expected)


def test_beams_of_a_prompt_share_what_is_read():
    model = make_model("llama", CPU)
    ids = make_ids(30, CPU)
    cache = TopkCache(model.config, **ALL)
    model.generate(ids, past_key_values=cache, num_beams=3, max_new_tokens=4, do_sample=False)
    assert len(cache.sessions) == 3 and len(cache.contexts) == 1
    assert all(session.context is cache.context for session in cache.sessions)
    alone = TopkCache(model.config, **ALL)
    model.generate(ids, past_key_values=alone, max_new_tokens=4, do_sample=False)
    assert cache.memory().rows == alone.memory().rows
    # Two prompts: two texts, of as many rows.
    ids, mask = padded(texts_of(CPU, (20, 33)))
    cache = TopkCache(model.config, **ALL)
    model.generate(
        ids, attention_mask=mask, past_key_values=cache, num_beams=3, max_new_tokens=4
    )
    assert len({id(context) for context in cache.contexts}) == 2 and len(cache.contexts) == 6


def test_beams_of_padded_questions_about_one_text_give_what_dynamic_cache_gives():
    model = make_model("llama", CPU)
    text = make_ids(40, CPU)
    cache = TopkCache(model.config, **ALL)
    model(text, past_key_values=cache, use_cache=True, logits_to_keep=1)
    ids, mask = padded(texts_of(CPU, (4, 9)))
    ids = torch.cat((text.expand(2, -1), ids), dim=1)
    mask = torch.cat((torch.ones_like(text).expand(2, -1), mask), dim=1)
    expected, found = both(
        model, lambda: cache.session(batch=6), ids, mask, num_beams=3, do_sample=False
    )
    assert torch.equal(found, expected)


def test_rows_read_as_one_are_not_given_different_tokens():
    """After a generate of one token, say, which read the prompt and ended there."""
    model = make_model("llama", CPU)
    cache = TopkCache(model.config, **ALL)
    how = {"num_return_sequences": 2, "do_sample": True, "max_new_tokens": 1}
    model.generate(make_ids(20, CPU), past_key_values=cache, **how)
    more = make_ids(3, CPU, rows=2)
    with pytest.raises(ValueError, match=r"were read as one.*cache\.freeze\(\) first"):
        model(more, past_key_values=cache, use_cache=True)
    assert cache.get_seq_length() == 20
    model(more, past_key_values=cache.freeze(), use_cache=True)
    assert cache.get_seq_length() == 23


@pytest.fixture(scope="module")
def asked(needle_14m):
    with torch.inference_mode(False):
        model = AutoModelForCausalLM.from_pretrained(needle_14m, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(needle_14m / "tokenizer.json"))
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    tokenizer.padding_side = "left"
    return model, tokenizer


PROMPTS = [
    "One of the special magic numbers for apples is: 31415. What is it",
    "The grass is green. The sky is blue.",
    "Here we go. There and back again. " * 6,
    "The",
    "One of the special magic numbers",
]


def test_a_pipeline_answers_in_batches_as_one_by_one(asked):
    model, tokenizer = asked
    install(model, k=8, window=8)
    try:
        pipe = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
        how = {"max_new_tokens": 6, "do_sample": False, "return_full_text": False}
        alone = [pipe(prompt, **how) for prompt in PROMPTS]
        assert pipe(PROMPTS, batch_size=4, **how) == alone
    finally:
        uninstall(model)


def test_padded_prompts_of_the_bundled_model_give_what_each_gives_alone(asked):
    model, tokenizer = asked
    inputs = tokenizer(PROMPTS, padding=True, return_tensors="pt", return_token_type_ids=False)
    options = {"k": 8, "window": 8}
    how = {"max_new_tokens": 6, "do_sample": False}
    found = model.generate(**inputs, past_key_values=TopkCache(model.config, **options), **how)
    for row, prompt in enumerate(PROMPTS):
        alone = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        cache = TopkCache(model.config, **options)
        expected = model.generate(**alone, past_key_values=cache, **how)
        new = expected[0, alone.input_ids.shape[1] :]
        assert torch.equal(found[row, inputs.input_ids.shape[1] :][: len(new)], new)
