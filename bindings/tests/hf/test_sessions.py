"""One text, many questions: freezing, sessions over one context, batches, taking tokens back."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import topkv
from small_models import (
    assert_greedy,
    assert_logits_agree,
    dtype_of,
    exact_logits,
    make_config,
    make_ids,
    tolerance,
)
from small_models import make_model as model_of
from topkv import InvalidArgument, Unsupported
from topkv.hf import TopkCache, compat
from transformers import DynamicCache

ALL = {"k": 10_000, "window": 8, "sinks": 2}
MODELS = ["llama", "gemma2"]  # full attention only, and with sliding-window layers
TEXT = 60


def read(model, text, **options) -> TopkCache:
    cache = TopkCache(model.config, **ALL | options)
    model(text, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache


def make_model(family, device):
    return model_of(family, device, dtype_of(device))


def answer(model, ids, cache, tokens=8):
    return model.generate(ids, past_key_values=cache, max_new_tokens=tokens, do_sample=False)


def with_question(text, seed, rows=1):
    question = make_ids(11, text.device, seed=seed, rows=rows)
    return torch.cat((text.expand(rows, -1), question), dim=1)


@pytest.mark.parametrize("family", MODELS)
def test_sessions_answer_different_questions_of_one_text(family, device):
    model = make_model(family, device)
    text = make_ids(TEXT, device)
    cache = read(model, text)
    for seed in (1, 2, 3):
        ids = with_question(text, seed)
        session = cache.session()
        assert_greedy(model, answer(model, ids, session), ids.shape[1])
        assert session.context.tokens == TEXT


@pytest.mark.parametrize("family", MODELS)
def test_sessions_used_in_turn_do_not_disturb_each_other(family, device):
    model = make_model(family, device)
    text = make_ids(TEXT, device)
    cache = read(model, text).freeze()
    questions = [make_ids(9, device, seed=seed) for seed in (1, 2)]
    sessions = [cache.session() for _ in questions]
    last = [[], []]
    for step in range(9):
        for i, session in enumerate(sessions):
            token = questions[i][:, step : step + 1]
            last[i] = model(token, past_key_values=session, use_cache=True).logits[:, -1]
    for i, question in enumerate(questions):
        ids = torch.cat((text, question), dim=1)
        assert_logits_agree(last[i][:, None], model, ids, first=TEXT + 8)


@pytest.mark.parametrize("family", MODELS)
def test_a_cache_goes_on_after_sessions_were_made_of_it(family, device):
    model = make_model(family, device)
    text = make_ids(TEXT, device)
    cache = read(model, text)
    cache.session()
    ids = with_question(text, 5)
    assert_greedy(model, answer(model, ids, cache), ids.shape[1])
    # And a session made after that starts at the end of the text again.
    assert_greedy(model, answer(model, ids, cache.session()), ids.shape[1])


@pytest.mark.parametrize("family", MODELS)
def test_a_batch_of_sessions_answers_as_many_questions(family, device):
    model = make_model(family, device)
    text = make_ids(TEXT, device)
    cache = read(model, text)
    ids = with_question(text, 7, rows=3)
    answers = answer(model, ids, cache.session(batch=3))
    assert answers.shape == (3, ids.shape[1] + 8)
    assert_greedy(model, answers, ids.shape[1])


@pytest.mark.parametrize("family", MODELS)
def test_beam_search_over_a_batch_of_sessions_equals_dynamic_cache(family, device):
    model = make_model(family, device)
    text = make_ids(TEXT, device)
    ids = with_question(text, 8)
    how = {"num_beams": 3, "max_new_tokens": 8, "do_sample": False}
    expected = model.generate(ids, past_key_values=DynamicCache(config=model.config), **how)
    found = model.generate(ids, past_key_values=read(model, text).session(batch=3), **how)
    if device.type == "cpu":
        assert torch.equal(found, expected)

    def score(sequence):
        logits = exact_logits(model, sequence)[:, ids.shape[1] - 1 : -1]
        return logits.log_softmax(-1).gather(-1, sequence[:, ids.shape[1] :, None]).sum()

    assert score(found) >= score(expected) - 8 * 2 * tolerance(model, found)


def test_a_batch_of_another_size_than_the_sessions_is_refused(device):
    model = make_model("llama", device)
    session = read(model, make_ids(TEXT, device)).session(batch=2)
    with pytest.raises(InvalidArgument, match="a batch of 3 for a cache of 2 rows"):
        model(make_ids(4, device, rows=3), past_key_values=session, use_cache=True)


def test_prefill_chunk_size_with_a_filled_cache_is_refused_or_reads_the_rest_only(device):
    model = make_model("llama", device)
    text = make_ids(TEXT, device)
    for chunk in (1, 4, 16):
        session, ids = read(model, text).session(), with_question(text, 1)
        how = {"max_new_tokens": 8, "do_sample": False, "prefill_chunk_size": chunk}
        if compat.version() >= (5, 21):
            found = model.generate(ids, past_key_values=session, **how)
            assert_greedy(model, found, ids.shape[1])
            continue
        with pytest.raises(InvalidArgument, match="no prefill_chunk_size"):
            model.generate(ids, past_key_values=session, **how)
        assert session.get_seq_length() == TEXT


@pytest.mark.parametrize("family", MODELS)
def test_tokens_taken_back_leave_no_trace(family, device):
    model = make_model(family, device)
    ids = make_ids(TEXT + 12, device)
    session = read(model, ids[:, :TEXT]).session()
    session.activate_past_recording()
    wrong = make_ids(5, device, seed=9)
    model(ids[:, TEXT : TEXT + 4], past_key_values=session, use_cache=True)
    session.crop(0)
    model(wrong, past_key_values=session, use_cache=True)
    session.crop(-5)
    assert session.get_seq_length() == TEXT + 4
    rest = model(ids[:, TEXT + 4 :], past_key_values=session, use_cache=True).logits
    assert_logits_agree(rest, model, ids, first=TEXT + 4)


def test_taking_back_tokens_of_the_frozen_text_is_refused(device):
    model = make_model("llama", device)
    session = read(model, make_ids(TEXT, device)).session()
    model(make_ids(3, device), past_key_values=session, use_cache=True)
    with pytest.raises(InvalidArgument, match="the last 3 can be removed"):
        session.crop(-4)


def test_taking_back_what_a_sliding_window_has_dropped_is_refused(device):
    model = make_model("gemma2", device)
    session = read(model, make_ids(TEXT, device)).session()
    model(make_ids(3, device), past_key_values=session, use_cache=True)
    with pytest.raises(InvalidArgument, match="activate_past_recording"):
        session.crop(-1)
    assert session.get_seq_length() == TEXT + 3


@pytest.mark.parametrize("family", MODELS)
def test_assisted_generation_gives_the_tokens_of_greedy_generation(family, device):
    model, assistant = make_model(family, device), make_model("llama", device)
    ids = make_ids(TEXT, device)
    how = {"max_new_tokens": 20, "do_sample": False}
    for helper in ({"assistant_model": assistant}, {"prompt_lookup_num_tokens": 4}):
        cache = TopkCache(model.config, **ALL)
        assert_greedy(model, model.generate(ids, past_key_values=cache, **how, **helper), TEXT)


def test_reset_forgets_the_text(device):
    model = make_model("gemma2", device)
    cache = read(model, make_ids(TEXT, device, seed=3)).freeze()
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.context is None
    ids = make_ids(TEXT, device)
    assert_greedy(model, answer(model, ids, cache), ids.shape[1])


def test_another_index_can_be_built_after_freezing(device):
    model = make_model("llama", device)
    text = make_ids(TEXT, device)
    cache = read(model, text)
    cache.freeze()
    assert cache.context.indices() == ["exact", "codes:k=32,v=8"]  # by default, for heads of 16
    cache.freeze("hnsw:M=16")
    assert cache.context.has_index("hnsw:M=16")
    ids = with_question(text, 1)
    for session in (cache.session(), cache.session(index="exact")):
        assert_greedy(model, answer(model, ids, session), ids.shape[1])


def test_unknown_session_options_are_refused(device):
    model = make_model("llama", device)
    cache = read(model, make_ids(TEXT, device))
    with pytest.raises(InvalidArgument, match="no option topk; its options are"):
        cache.session(topk=3)
    with pytest.raises(InvalidArgument, match="read nothing"):
        TopkCache(model.config).freeze()


@pytest.mark.parametrize(
    "option",
    [
        {"index": "hnws:M=16"},
        {"k": 0},
        {"window": 0},
        {"sinks": -1},
        {"select_by": "head"},
        {"prefill": "full"},
        {"kv_dtype": "f64"},
        {"kv_dtype": torch.float64},
        {"kv_dtype": 32},
        {"kv_dtype": []},
        {"session_capacity": 0},
        {"session_capacity": -1},
        {"session_capacity": 1.5},
        {"session_capacity": 2**70},
        {"max_cache_len": -1},
        {"max_cache_len": "64K"},
        {"device_memory": -1},
        {"device_memory": 1e9},
        {"index": 5},
        {"k": None},
        {"k": 2.5},
        {"k": True},
        {"k": [1, 2, 0]},
        {"k": [1, 2]},
        {"k": ["1", "2", "3"]},
        {"k": "uniform:x"},
        {"k": torch.tensor(2.5)},
        {"k": {}},
        {"window": None},
        {"window": "1K"},
        {"sinks": 0.5},
        {"dense_layers": -1},
        {"dense_layers": "all"},
        {"select_by": None},
        {"prefill": True},
        {"measure_recall": 1},
        {"mass": 0.9, "index": "exact"},  # without a tail
        {"mass": 1, "tail": "codes"},
        {"mass": "0.9", "tail": "codes"},
        {"error": 0.1, "index": "exact"},
        {"error": True, "tail": "codes"},
        {"error": float("nan"), "tail": "codes"},
        {"shard": 1},
        {"progress": "yes"},
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused_before_a_text_is_read(option):
    """By their name; and so they are for a session."""
    config = make_config("llama")
    before = config._attn_implementation
    name, *_ = option
    with pytest.raises(InvalidArgument, match=name if name != "index" else "index|spec"):
        TopkCache(config, **option)
    assert config._attn_implementation == before  # nor is the model changed
    if name in ("prefill", "kv_dtype", "max_cache_len", "device_memory", "shard", "progress"):
        return
    model = make_model("llama", torch.device("cpu"))
    cache = read(model, make_ids(TEXT, torch.device("cpu")))
    with pytest.raises(InvalidArgument, match=name if name != "index" else "index|spec"):
        cache.session(**option)


def test_options_of_every_kind_of_number_are_taken():
    config = make_config("llama")
    as_tensor = TopkCache(config, k=torch.tensor([1, 2, 3]), window=torch.tensor(7))
    assert as_tensor._engine.options.session["k"] == [1, 2, 3]


def test_the_capacity_of_a_session_has_one_name(device):
    model = make_model("llama", device)
    cache = read(model, make_ids(TEXT, device), session_capacity=5)
    for session, room in (
        (cache.session(), 5),
        (cache.session(session_capacity=7), 7),
        (cache.session(capacity=6), 6),  # as it was called before
    ):
        model(make_ids(room, device), past_key_values=session, use_cache=True)
        with pytest.raises(InvalidArgument, match=f"session_capacity is {room}; .* larger session_capacity"):
            model(make_ids(1, device), past_key_values=session, use_cache=True)
    with pytest.raises(InvalidArgument, match="earlier name"):
        cache.session(capacity=6, session_capacity=6)


@pytest.mark.parametrize("batch", [0, -1, 1.5, "2", None, True])
def test_a_session_of_no_batch_is_refused(batch):
    model = make_model("llama", torch.device("cpu"))
    cache = read(model, make_ids(TEXT, torch.device("cpu")))
    with pytest.raises(InvalidArgument, match="batch is"):
        cache.session(batch=batch)
    assert cache.context is None  # nor was the text ended


@pytest.mark.parametrize("argument", [1, 2.5, "3", None])
def test_crop_of_no_negative_number_is_refused(argument):
    model = make_model("llama", torch.device("cpu"))
    cache = read(model, make_ids(TEXT, torch.device("cpu")))
    with pytest.raises(InvalidArgument, match="crop|tokens_to_remove"):
        cache.crop(argument)
    with pytest.raises(InvalidArgument, match="index is 3; expected a str"):
        cache.freeze(3)
    assert cache.get_seq_length() == TEXT


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda x: x.__name__)
def test_copies_of_a_cache_are_refused_with_what_to_do(way):
    model = make_model("llama", torch.device("cpu"))
    cache = read(model, make_ids(TEXT, torch.device("cpu")))
    with pytest.raises(Unsupported, match=r"cache\.session\(\) gives another reader"):
        way(cache)


def test_a_cache_says_what_it_holds():
    model = make_model("gemma2", torch.device("cpu"))
    cache = read(model, make_ids(TEXT, torch.device("cpu")))
    assert repr(cache) == "<TopkCache of a gemma2 model: 60 tokens, a text being read>"
    session = cache.session(batch=2)
    model(make_ids(3, model.device, rows=2), past_key_values=session, use_cache=True)
    assert repr(session) == (
        "<TopkCache of a gemma2 model: 63 tokens, the text 60 of them, index codes:k=32,v=8, 2 rows>"
    )


@pytest.mark.parametrize("family", MODELS)
def test_taking_back_nothing_changes_nothing(family, device):
    model = make_model(family, device)
    ids = make_ids(TEXT + 6, device)
    session = read(model, ids[:, :TEXT]).session()
    session.crop(0)
    logits = model(ids[:, TEXT:], past_key_values=session, use_cache=True).logits
    assert_logits_agree(logits, model, ids, first=TEXT)


@pytest.mark.parametrize("family", MODELS)
def test_taking_back_more_than_was_recorded_is_refused(family, device):
    """Recorded too late, or taken back already: a window would go on with a hole in it."""
    model = make_model(family, device)
    ids = make_ids(TEXT + 6, device)
    session = read(model, ids[:, :TEXT]).session()
    model(ids[:, TEXT : TEXT + 3], past_key_values=session, use_cache=True)
    session.activate_past_recording()
    model(ids[:, TEXT + 3 :], past_key_values=session, use_cache=True)
    if family == "gemma2":
        with pytest.raises(InvalidArgument, match="activate_past_recording"):
            session.crop(-4)
    session.crop(-3)
    logits = model(ids[:, TEXT + 3 :], past_key_values=session, use_cache=True).logits
    assert_logits_agree(logits, model, ids, first=TEXT + 3)


def test_windows_that_record_their_past_give_what_their_masks_are_for(device):
    """Several calls without a crop between them, as an assistant makes them."""
    model = make_model("gemma2", device)
    ids = make_ids(TEXT + 6, device)
    session = read(model, ids[:, :TEXT]).session()
    session.activate_past_recording()
    logits = [
        model(part, past_key_values=session, use_cache=True).logits
        for part in ids[:, TEXT:].split([1, 2, 3], dim=1)
    ]
    assert_logits_agree(torch.cat(logits, dim=1), model, ids, first=TEXT)


def test_a_wrong_spec_of_an_index_leaves_the_cache_as_it_was(device):
    model = make_model("llama", device)
    ids = make_ids(50, device)
    cache = TopkCache(model.config, k=1000, window=8)
    model(ids[:, :40], past_key_values=cache, use_cache=True)
    with pytest.raises(InvalidArgument, match="whole number"):
        cache.freeze("hnsw:M=x")
    assert cache.get_seq_length() == 40 and cache.context is None
    logits = model(ids[:, 40:], past_key_values=cache.session(), use_cache=True).logits
    assert_logits_agree(logits, model, ids, first=40)
    with pytest.raises(InvalidArgument, match="cache.freeze"):
        cache.session(index="hnsw:M=16")


def test_a_cache_for_a_model_of_fewer_layers_is_refused(device):
    model = make_model("llama", device)
    TopkCache(model.config)  # turns the model to topkv's attention
    fewer = copy.deepcopy(model.config)
    fewer.num_hidden_layers -= 1
    ids = make_ids(40, device)
    with pytest.raises(InvalidArgument, match="model.config"):
        model(ids, past_key_values=TopkCache(fewer), use_cache=True)


def test_a_refused_call_leaves_the_length_as_it_was(device):
    model = make_model("llama", device)
    ids = make_ids(40, device)
    cache = TopkCache(model.config, k=1000, window=8)
    model(ids, past_key_values=cache, use_cache=True)
    with pytest.raises(InvalidArgument, match="the cache holds 40"):
        model(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, use_cache=True)
    assert cache.get_seq_length() == 40


def test_a_tail_brings_sessions_near_to_dense_attention_and_changes_no_other(device):
    model = make_model("llama", device)
    text = make_ids(300, device)
    cache = read(model, text, k=4, index="exact")
    ids = with_question(text, 5)
    wanted = exact_logits(model, ids)[:, text.shape[1] :].float()
    distances = {}
    for tail in ("", "codes:k=32,v=16"):
        session = cache.session(tail=tail)
        got = model(ids[:, text.shape[1] :], past_key_values=session, use_cache=True).logits.float()
        distances[tail] = torch.linalg.norm(got - wanted).item()
    # Little nearer: codes of values are good on average, and here are few, of random weights.
    assert 0 < distances["codes:k=32,v=16"] < 0.9 * distances[""]
    assert "tail codes:k=32,v=16" in repr(session.sessions[0])
    assert "index exact, tail none" in repr(self_session(model, ids, cache))
    assert "tail mean" in repr(session_of(cache.session(tail="mean"), model, ids))
    for tail in ("exact", "hnsw", "codes:v=0", "mean:k=16", "median", None):
        with pytest.raises(InvalidArgument, match="tail is"):
            cache.session(tail=tail)
    with pytest.raises(InvalidArgument, match="is a tail"):
        cache.session(index="mean")


def test_the_tail_codes_is_the_indexs_own_where_it_has_one(device):
    model = make_model("llama", device)
    text = make_ids(300, device)
    ids = with_question(text, 5)
    own = topkv.IndexSpec.default_for(model.config.head_dim).text
    for tail in ("", "codes"):
        cache = read(model, text, k=4, tail=tail).freeze()
        assert cache.context.indices() == ["exact", own]
    session = session_of(cache.session(tail="codes", index=None), model, ids)
    assert f"index {own}, tail {own}" in repr(session)
    assert cache.context.indices() == ["exact", own]
    # Beside an index that has none it means codes of 16 bytes, whatever was asked for before.
    other = topkv.IndexSpec("codes").text
    session = session_of(read(model, text, k=4, tail="codes").session(index="exact"), model, ids)
    assert f"index exact, tail {other}" in repr(session)
    cache = read(model, text, k=4, index="exact", tail="codes").freeze("codes:k=32,v=16")
    assert "index codes:k=32,v=16, tail codes:k=32,v=16" in repr(self_session(model, ids, cache))
    assert cache.context.indices() == ["exact", "codes:k=32,v=16"]


def test_rules_of_sessions_say_how_many_rows_are_enough(device):
    model = make_model("llama", device)
    text = make_ids(300, device)
    cache = read(model, text, k=4, tail="codes")
    ids = with_question(text, 5)
    wanted = exact_logits(model, ids)[:, text.shape[1] :].float()

    def far(**given):
        session = cache.session(**given)
        got = model(ids[:, text.shape[1] :], past_key_values=session, use_cache=True).logits.float()
        return torch.linalg.norm(got - wanted).item(), session.stats()[0]

    plain, stats = far()
    assert stats.retrieved_more == 0
    dense, stats = far(error=1e-9)
    assert dense < plain / 10
    assert stats.went_dense == stats.retrieved_more > 0
    _, stats = far(k=64, mass=0.5)
    assert stats.retrieved_more > stats.went_dense == 0


def test_a_guarantee_of_sessions_samples_rows(device):
    model = make_model("llama", device)
    text = make_ids(300, device)
    cache = read(model, text, k=4)
    ids = with_question(text, 5)
    wanted = exact_logits(model, ids)[:, text.shape[1] :].float()
    if device.type != "cpu":
        with pytest.raises(topkv.InvalidArgument, match="guarantee does not go with a CUDA device"):
            cache.session(guarantee=(0.1, 0.05))
        return

    def far(**given):
        session = cache.session(**given)
        got = model(ids[:, text.shape[1] :], past_key_values=session, use_cache=True).logits.float()
        return torch.linalg.norm(got - wanted).item(), session.stats()[0]

    plain, stats = far(tail="none")
    assert stats.rows_sampled == 0
    dense, stats = far(guarantee=(1e-9, 0.01))
    assert dense < plain / 10
    assert stats.went_dense > 0 and stats.rows_sampled > 0
    for bad in (0.1, (0.1,), (0, 0.1), (0.1, 1), "0.1,0.1"):
        with pytest.raises(topkv.InvalidArgument, match="expected two numbers between 0 and 1"):
            cache.session(guarantee=bad)
    with pytest.raises(topkv.InvalidArgument, match="guarantee does not go with tail 'codes:k=16,v=8'"):
        cache.session(guarantee=(0.1, 0.1), tail="codes:k=16,v=8")
    with pytest.raises(topkv.InvalidArgument, match="guarantee does not go with error"):
        cache.session(guarantee=(0.1, 0.1), error=0.1)


def self_session(model, ids, cache):
    """The session of a cache with the cache's own options."""
    return session_of(cache.session(), model, ids)


def session_of(cache, model, ids):
    """The first session of what cache.session() gave, once it has read the question."""
    model(ids[:, cache.context.tokens :], past_key_values=cache, use_cache=True)
    return cache.sessions[0]
