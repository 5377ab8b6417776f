"""generate() over a filled cache: what it holds must be the beginning of the ids given."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_models import assert_greedy, dtype_of, make_config, make_ids
from small_models import make_model as model_of
from topkv import InvalidArgument
from topkv.hf import TopkCache
from transformers import DynamicCache

ALL = {"k": 10_000, "window": 8, "sinks": 2}
MODELS = ["llama", "gemma2"]
TEXT = 40


def make_model(family, device):
    return model_of(family, device, dtype_of(device))


def generate(model, ids, cache, **how):
    how = {"max_new_tokens": 6, "do_sample": False} | how
    return model.generate(ids, past_key_values=cache, **how)


def read_by_the_model(model, ids):
    cache = TopkCache(model.config, **ALL)
    for part in ids.split(16, dim=1):
        model(part, past_key_values=cache, use_cache=True)
    return cache


def read_by_generate(model, ids):
    cache = TopkCache(model.config, **ALL)
    generate(model, ids, cache, prefill_chunk_size=16)
    return cache


def read_and_frozen(model, ids):
    return read_by_the_model(model, ids).freeze()


def a_session(model, ids):
    return read_by_the_model(model, ids).session()


READ = [read_by_the_model, read_by_generate, read_and_frozen, a_session]


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("family", MODELS)
def test_another_text_is_refused_and_nothing_is_taken(family, read, device):
    model = make_model(family, device)
    ids = make_ids(TEXT, device)
    cache = read(model, ids)
    held = cache.get_seq_length()
    for tokens in (held + 25, held + 1, held, held - 1, 3):
        with pytest.raises(InvalidArgument, match="holds another text: its token"):
            generate(model, make_ids(tokens, device, seed=9), cache)
        assert cache.get_seq_length() == held
    other = torch.cat((ids, make_ids(30, device, seed=2)), dim=1)
    other[0, 17] = (other[0, 17] + 1) % 97
    with pytest.raises(InvalidArgument, match=rf"its token 17 is {ids[0, 17]}, and the given ids have \d+ there"):
        generate(model, other, cache)
    assert cache.get_seq_length() == held


@pytest.mark.parametrize("read", READ)
def test_a_text_that_brings_nothing_new_is_refused(read, device):
    model = make_model("llama", device)
    cache = read(model, make_ids(TEXT, device))
    held = cache._engine.state.ids.text(cache.get_seq_length())
    for given in (held, held[:, :-3]):
        with pytest.raises(InvalidArgument, match="nothing is new"):
            generate(model, given, cache)


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("family", MODELS)
def test_a_continuation_is_taken(family, read, device):
    model = make_model(family, device)
    ids = make_ids(TEXT, device)
    cache = read(model, ids)
    held = cache._engine.state.ids.text(cache.get_seq_length())
    for seed in (1, 2):  # and one of what generate has added
        ids = torch.cat((held, make_ids(7, device, seed=seed)), dim=1)
        out = generate(model, ids, cache)
        assert_greedy(model, out, ids.shape[1])
        held = out[:, :-1]


def test_new_tokens_alone_with_a_mask_of_all_are_taken(device):
    model = make_model("llama", device)
    ids = make_ids(TEXT + 9, device)
    session = read_by_the_model(model, ids[:, :TEXT]).session()
    out = generate(model, ids[:, TEXT:], session, attention_mask=torch.ones_like(ids))
    assert_greedy(model, torch.cat((ids[:, :TEXT], out), dim=1), TEXT + 9)


def test_each_row_of_a_batch_is_looked_at(device):
    model = make_model("llama", device)
    text = make_ids(TEXT, device)
    session = read_by_the_model(model, text).session(batch=2)
    questions = make_ids(5, device, seed=1, rows=2)
    model(questions, past_key_values=session, use_cache=True)
    ids = torch.cat((text.expand(2, -1), questions, make_ids(2, device, rows=2)), dim=1)
    wrong = ids.flip(0)
    with pytest.raises(InvalidArgument, match=r"its token 4\d of row 0"):
        generate(model, wrong, session)
    session.reorder_cache(torch.tensor([1, 0]))
    assert_greedy(model, generate(model, wrong, session), ids.shape[1])


def test_tokens_taken_back_may_be_followed_by_others(device):
    model = make_model("gemma2", device)
    ids = make_ids(TEXT + 12, device)
    session = read_by_the_model(model, ids[:, :TEXT]).session()
    session.activate_past_recording()
    model(make_ids(5, device, seed=3), past_key_values=session, use_cache=True)
    session.crop(-5)
    assert_greedy(model, generate(model, ids, session), ids.shape[1])


def test_after_reset_any_text_is_taken(device):
    model = make_model("gemma2", device)
    cache = read_by_generate(model, make_ids(TEXT, device))
    cache.reset()
    ids = make_ids(TEXT, device, seed=5)
    assert_greedy(model, generate(model, ids, cache), TEXT)


def test_the_ids_of_embeddings_are_not_known_and_not_asked_for(device):
    model = make_model("llama", device)
    ids = make_ids(TEXT, device)
    cache = TopkCache(model.config, **ALL)
    embeddings = model.get_input_embeddings()(ids[:, :30])
    model(inputs_embeds=embeddings, past_key_values=cache, use_cache=True)
    assert_greedy(model, generate(model, ids, cache), TEXT)


def test_a_text_read_elsewhere_is_known_when_its_ids_are_given(device):
    model = make_model("llama", device)
    ids = make_ids(TEXT, device)
    context = read_and_frozen(model, ids).context
    ids = torch.cat((ids, make_ids(5, device, seed=1)), dim=1)
    other = make_ids(TEXT + 5, device, seed=9)
    for tokens in (ids[0, :TEXT], ids[:, :TEXT].cpu().numpy(), ids[0, :TEXT].tolist()):
        cache = TopkCache.from_context(model.config, context, tokens=tokens, **ALL)
        for of_it in (cache, cache.session()):
            with pytest.raises(InvalidArgument, match="holds another text: its token 0"):
                generate(model, other, of_it)
            assert_greedy(model, generate(model, ids, of_it), TEXT + 5)
    unknown = TopkCache.from_context(model.config, context, **ALL)
    assert_greedy(model, generate(model, ids, unknown), TEXT + 5)
    for wrong in (ids[0, : TEXT - 1], ["a"] * TEXT, [0.5] * TEXT, object()):
        with pytest.raises(InvalidArgument, match="tokens"):
            TopkCache.from_context(model.config, context, tokens=wrong, **ALL)


@pytest.mark.parametrize("family", MODELS)
def test_texts_packed_by_positions_are_refused(family, device):
    model = make_model(family, device)
    ids = make_ids(TEXT, device)
    cache = read_by_the_model(model, ids[:, :20])
    for part in (torch.arange(20, 26), torch.arange(0, 6)):
        packed = torch.cat((part, torch.arange(14)))[None].to(device)
        with pytest.raises(InvalidArgument, match=r"fall from 2?5 to 0 at its token 6"):
            model(ids[:, 20:], position_ids=packed, past_key_values=cache, use_cache=True)
        assert cache.get_seq_length() == 20
    ahead = torch.arange(20, TEXT, device=device)[None]
    model(ids[:, 20:], position_ids=ahead, past_key_values=cache, use_cache=True)
    ids = torch.cat((ids, make_ids(3, device, seed=1)), dim=1)
    assert_greedy(model, generate(model, ids, cache.session()), TEXT + 3)


def test_other_caches_are_given_what_they_were_given(device):
    model = make_model("llama", device)
    TopkCache(model.config)
    ids = make_ids(TEXT, device)
    cache = DynamicCache(config=model.config)
    first = generate(model, ids, cache)
    held = cache.get_seq_length()
    generate(model, make_ids(TEXT + 25, device, seed=9), cache)  # nonsense, as ever
    assert cache.get_seq_length() > held
    assert torch.equal(first, generate(model, ids, DynamicCache(config=model.config)))


def test_a_context_is_asked_for():
    with pytest.raises(InvalidArgument, match="context is a list; expected a topkv.Context"):
        TopkCache.from_context(make_config("llama"), [])
