"""Models with recurrences or convolutions: transformers keeps their states, and topkv the full layers."""

import re

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import safetensors.torch
import topkv
from small_models import (
    RECURRENT,
    RESTARTING,
    after,
    agree,
    dynamic_logits,
    logits_by_pieces,
    make_config,
    make_ids,
    make_model,
    step,
)
from topkv import FileError, InvalidArgument, Unsupported, hf
from topkv.hf import TopkCache, kept
from transformers import DynamicCache

CPU = torch.device("cpu")
ALL = {"k": 10_000, "window": 8, "sinks": 2}
SPARSE = {"k": 4, "window": 8, "sinks": 2, "tail": "none"}

PIECES = {
    "prompt then tokens": [60] + [1] * 12,
    "chunks": [25, 25, 10] + [1] * 12,
    "prompt of one token": [1] * 24,
    "question after freezing": [50, 1, 1, 12] + [1] * 8,
}
# One of each kind: states beside attention, in its layers, and convolutions alone.
KINDS = ["qwen3_5_text", "nemotron_h", "zamba2", "lfm2"]
WITH_STATES = [x for x in KINDS if x != "lfm2"]


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
@pytest.mark.parametrize("family", RECURRENT)
def test_logits_equal_those_of_dynamic_cache(family, pieces, models):
    model, pieces = models(family), PIECES[pieces]
    ids = make_ids(sum(pieces), CPU)
    cache = TopkCache(model.config, **ALL)
    found = logits_by_pieces(model, cache, ids, pieces)
    assert cache.context is not None and cache.memory().states > 0
    agree(found, dynamic_logits(model, ids, pieces))


@pytest.mark.parametrize("family", [*RECURRENT, *RESTARTING])
def test_greedy_tokens_equal_those_of_dynamic_cache(family, models):
    model, ids = models(family), make_ids(69, CPU)
    chunks = [None] if family in RESTARTING else [None, 17]
    for chunk in chunks:
        how = {"max_new_tokens": 16, "do_sample": False, "prefill_chunk_size": chunk}
        expected = model.generate(ids, past_key_values=DynamicCache(config=model.config), **how)
        found = model.generate(ids, past_key_values=TopkCache(model.config, **ALL), **how)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("family", RECURRENT)
def test_the_models_of_this_file_are_named(family):
    config = make_config(family)
    assert config.model_type in hf.FAMILIES
    layers = TopkCache(config).layers
    assert any(map(kept.is_recurrent, layers))
    assert any(isinstance(layer, hf.TopkLayer) for layer in layers)


@pytest.mark.parametrize("family", RESTARTING)
def test_a_recurrence_that_begins_anew_in_each_call_is_refused_several_tokens(family, models):
    model, ids = models(family), make_ids(40, CPU)
    whole = model(ids, use_cache=False).logits
    wrong = dynamic_logits(model, ids, [20, 20])
    assert (wrong - whole).abs().max() > 1e-2 * whole.abs().max()  # why it is refused
    cache = read(model, ids[:, :20])
    with pytest.raises(Unsupported, match="MambaMixer of this model begins its recurrence anew .* holds 20"):
        step(model, cache, ids[:, 20:])
    agree(logits_by_pieces(model, cache, ids[:, 20:], [1] * 20), whole[:, 20:])


# ---- states and what is retrieved ----


@pytest.mark.parametrize("family", ["qwen3_5_text", "nemotron_h", "lfm2"])
def test_sparse_retrieval_does_not_disturb_the_states(family, models):
    """The layers before the first full layer know nothing of it: their states are equal to the bit. Later
    ones follow the hidden states of the sparse attention, as a model that attends those rows does."""
    model, ids = models(family), make_ids(200, CPU)
    pieces = [180] + [1] * 20
    cache, dynamic = TopkCache(model.config, **SPARSE), DynamicCache(config=model.config)
    found = logits_by_pieces(model, cache, ids, pieces)
    expected = logits_by_pieces(model, dynamic, ids, pieces)
    assert (found - expected)[:, 180:].abs().max() > 1e-3  # it was sparse
    assert torch.equal(found[:, :180].argmax(-1), expected[:, :180].argmax(-1))
    first = min(i for i, x in enumerate(cache.layers) if isinstance(x, hf.TopkLayer))
    assert first > 0
    pairs = list(zip(cache.layers[:first], dynamic.layers[:first]))
    for mine, theirs in (x for x in pairs if kept.is_recurrent(x[0])):
        for name in ("conv_states", "recurrent_states"):
            a, b = getattr(mine, name)[0], getattr(theirs, name)[0]
            assert (a is None and b is None) or torch.equal(a, b)


# ---- sessions ----


@pytest.mark.parametrize("family", KINDS)
def test_sessions_over_one_text_have_states_of_their_own(family, models):
    model, text = models(family), make_ids(50, CPU)
    questions = [make_ids(9, CPU, seed=s) for s in (1, 2)]
    cache = read(model, text)
    sessions = [cache.session(), cache.session()]
    for at in range(9):  # in turns
        for session, question in zip(sessions, questions):
            found = step(model, session, question[:, at : at + 1])
            if at == 8:
                ids = torch.cat((text, question), dim=1)
                agree(found, dynamic_logits(model, ids, [50] + [1] * 9)[:, -1:])
    # The text itself was not changed by its sessions.
    agree(step(model, cache, questions[0]), after(model, text, questions[0]))


@pytest.mark.parametrize("family", KINDS)
def test_a_batch_of_questions_continues_one_text(family, models):
    model, text = models(family), make_ids(50, CPU)
    questions = make_ids(7, CPU, seed=3, rows=3)
    session = read(model, text).session(batch=3)
    found = step(model, session, questions)
    expected = torch.cat([after(model, text, question[None]) for question in questions])
    agree(found, expected)


@pytest.mark.parametrize("family", KINDS)
def test_a_text_read_in_inference_mode_continues_without_it(family, models):
    model, text, question = models(family), make_ids(50, CPU), make_ids(7, CPU, seed=1)
    cache = read(model, text)  # the fixture's inference mode
    with torch.inference_mode(False), torch.no_grad():
        found = logits_by_pieces(model, cache.session(), question.clone(), [3, 1, 1, 1, 1])
    ids = torch.cat((text, question), dim=1)
    agree(found, dynamic_logits(model, ids, [50, 3, 1, 1, 1, 1])[:, 50:])


@pytest.mark.parametrize("family", KINDS)
def test_beams(family, models):
    model, ids = models(family), make_ids(40, CPU)
    how = {"num_beams": 3, "max_new_tokens": 8, "do_sample": False}
    expected = model.generate(ids, **how)
    found = model.generate(ids, past_key_values=TopkCache(model.config, **ALL), **how)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("family", KINDS)
def test_texts_padded_on_the_left(family, models):
    model, ids = models(family), make_ids(40, CPU, rows=2)
    mask = torch.ones_like(ids)
    mask[1, :11] = 0
    how = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(ids, **how)
    cache = TopkCache(model.config, **ALL)
    assert torch.equal(model.generate(ids, past_key_values=cache, **how), expected)
    cache.batch_select_indices(torch.tensor([1]))
    question = make_ids(5, CPU, seed=1)
    held = cache.get_seq_length()
    whole = torch.cat((mask[1:], torch.ones(1, held - 40 + 5, dtype=mask.dtype)), dim=1)
    found = model(
        question,
        past_key_values=cache,
        attention_mask=whole,
        position_ids=torch.arange(held - 11, held - 6)[None],
        use_cache=True,
    ).logits
    tokens = torch.cat((ids[1:, 11:], expected[1:, 40:held], question), dim=1)
    pieces = [29] + [1] * (held - 40) + [5]
    agree(found, dynamic_logits(model, tokens, pieces)[:, -5:])


def test_questions_padded_after_a_text_are_refused(models):
    model, text = models("qwen3_5_text"), make_ids(30, CPU)
    session = read(model, text).session(batch=2)
    mask = torch.ones(2, 35, dtype=torch.long)
    mask[0, 30:32] = 0
    with pytest.raises(Unsupported, match="padding after a text would change the states"):
        model(make_ids(5, CPU, rows=2), past_key_values=session, attention_mask=mask, use_cache=True)


@pytest.mark.parametrize("family", KINDS)
def test_reset_takes_a_batch_of_another_size(family, models):
    model, ids = models(family), make_ids(30, CPU, rows=2)
    cache = read(model, make_ids(50, CPU))
    cache.reset()
    agree(step(model, cache, ids), dynamic_logits(model, ids, [30]))


# ---- calls that fail ----


@pytest.mark.parametrize("tokens", [1, 6])
@pytest.mark.parametrize("family", KINDS)
def test_a_call_that_fails_leaves_every_state_as_it_was(family, tokens, models):
    model, text = models(family), make_ids(50, CPU)
    layers = model.model.layers if hasattr(model.model, "layers") else model.model.decoder.layers
    for fails_in in (0, len(layers) - 1):
        for frozen in (True, False):
            cache = read(model, text)
            if frozen:
                cache.freeze()

            def fail(*_):
                raise RuntimeError("no more")

            handle = layers[fails_in].register_forward_hook(fail)
            try:
                with pytest.raises(RuntimeError, match="no more"):
                    step(model, cache, make_ids(tokens, CPU, seed=9))
            finally:
                handle.remove()
            assert cache.get_seq_length() == 50
            question = make_ids(tokens, CPU, seed=1)
            agree(step(model, cache, question), after(model, text, question))


def test_the_forward_method_alone_is_refused(models):
    model = models("qwen3_5_text")
    with pytest.raises(InvalidArgument, match="call the model itself"):
        model.model.forward(make_ids(5, CPU), past_key_values=TopkCache(model.config), use_cache=True)


def test_layers_that_reach_their_states_in_another_way_are_refused(models, monkeypatch):
    model = models("qwen3_5_text")
    cache = read(model, make_ids(20, CPU))
    monkeypatch.setattr(type(cache._engine), "reach", lambda *_: None)
    for held in (cache, TopkCache(model.config)):
        with pytest.raises(Unsupported, match="in a way that topkv does not know"):
            step(model, held, make_ids(5, CPU))


# ---- crop ----


@pytest.mark.parametrize("family", WITH_STATES)
def test_crop_goes_back_to_the_text_and_to_the_last_call(family, models):
    model, text = models(family), make_ids(50, CPU)
    a, b, c = (make_ids(n, CPU, seed=n) for n in (4, 6, 5))
    session = read(model, text).session()
    step(model, session, a)
    step(model, session, b)
    session.crop(-6)  # before the last call
    agree(step(model, session, c), after(model, text, a, c))
    with pytest.raises(InvalidArgument, match="known after 50 and 54 and 59 tokens only") as e:
        session.crop(-3)
    assert "crop to 56 tokens" in str(e.value)
    session.crop(0)
    agree(step(model, session, b), after(model, text, a, c, b))  # nothing was changed by the refusal
    session.crop(-15)  # to the end of the text
    assert session.get_seq_length() == 50
    agree(step(model, session, b), after(model, text, b))


@pytest.mark.parametrize("family", WITH_STATES)
def test_crop_of_a_text_being_read(family, models):
    model, text, more = models(family), make_ids(30, CPU), make_ids(20, CPU, seed=1)
    cache = read(model, text)
    step(model, cache, more)
    with pytest.raises(InvalidArgument, match="known after 0 and 30 and 50 tokens only"):
        cache.crop(-10)
    cache.crop(-20)
    agree(step(model, cache, more), after(model, text, more))
    cache.crop(-50)
    agree(step(model, cache, text), dynamic_logits(model, text, [30]))


def test_convolutions_that_record_their_past_go_back_to_any_token(models):
    model, text = models("lfm2"), make_ids(50, CPU)
    a, b = make_ids(6, CPU, seed=1), make_ids(5, CPU, seed=2)
    cache = read(model, text).session()
    cache.activate_past_recording()
    step(model, cache, a)
    cache.crop(-4)
    agree(step(model, cache, b), after(model, text, a[:, :2], b))
    cache.crop(0)
    with pytest.raises(InvalidArgument, match="known after 50 and 52 and 57 tokens only"):
        cache.crop(-3)  # what was recorded was let go of
    agree(step(model, cache, a), after(model, text, a[:, :2], b, a))


def test_speculative_decoding_of_convolutions(models):
    model = models("lfm2")
    ids = torch.cat([make_ids(12, CPU)] * 4, dim=1)
    how = {"max_new_tokens": 16, "do_sample": False}
    expected = model.generate(ids, **how)
    cache = TopkCache(model.config, **ALL)
    found = model.generate(ids, past_key_values=cache, prompt_lookup_num_tokens=3, **how)
    assert torch.equal(found, expected)


# ---- files ----


@pytest.mark.parametrize("family", [*RECURRENT, "gemma2", "gpt_oss", "gemma4_text"])
def test_a_text_from_a_file_answers_as_the_saved_one(family, models, tmp_path):
    """Recurrences, convolutions, and the windows of sliding-window layers."""
    model, text, question = models(family), make_ids(50, CPU), make_ids(7, CPU, seed=1)
    cache = read(model, text)
    cache.save(tmp_path / "c.tkv", model)
    assert topkv.context_file_info(tmp_path / "c.tkv").application_bytes > 0
    topkv.verify_context(tmp_path / "c.tkv")
    for mapped in (False, True):
        loaded = TopkCache.from_file(tmp_path / "c.tkv", model, mapped=mapped)
        assert loaded.memory().states == cache.memory().states
        assert loaded.memory().sliding <= cache.memory().sliding
        expected = logits_by_pieces(model, cache.session(), question, [4, 1, 1, 1])
        found = logits_by_pieces(model, loaded.session(batch=2), question.expand(2, -1), [4, 1, 1, 1])
        agree(found, expected.expand(2, -1, -1))
        assert torch.equal(logits_by_pieces(model, loaded.session(), question, [4, 1, 1, 1]), expected)
        agree(step(model, loaded, question), after(model, text, question))


@pytest.mark.parametrize("family", ["qwen3_5_text", "lfm2", "gemma2"])
def test_a_text_saved_from_a_padded_batch(family, models, tmp_path):
    model, ids = models(family), make_ids(22, CPU, rows=2)
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    cache = TopkCache(model.config, **ALL)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    how = {"attention_mask": mask, "position_ids": positions, "use_cache": True}
    model(ids, past_key_values=cache, **how)
    cache.batch_select_indices(torch.tensor([1]))
    cache.save(tmp_path / "c.tkv", model)
    loaded = TopkCache.from_file(tmp_path / "c.tkv", model)
    assert loaded.get_seq_length() == 13
    question = make_ids(5, CPU, seed=1)
    agree(step(model, loaded, question), after(model, ids[1:, 9:], question))


def damaged(data, change):
    tensors = safetensors.torch.load(data)
    change(tensors)
    return safetensors.torch.save(tensors)


DAMAGES = {
    "no safetensors": (lambda _: b"x" * 64, "they are no safetensors"),
    "nothing": (lambda _: b"", "they are no safetensors"),
    "a state is missing": (
        lambda data: damaged(data, lambda x: x.pop("0.recurrent_states.0")),
        "0.recurrent_states.0 is missing",
    ),
    "a convolution is missing": (
        lambda data: damaged(data, lambda x: x.pop("0.conv_states.0")),
        "0.conv_states.0 is missing",
    ),
    "flags are missing": (
        lambda data: damaged(data, lambda x: x.pop("2.has_previous_state")),
        "2.has_previous_state is missing",
    ),
    "flags are no flags": (
        lambda data: damaged(data, lambda x: x.update({"2.has_previous_state": torch.tensor([2])})),
        "2.has_previous_state is missing or does not have 1 values of 0 or 1",
    ),
    "a value is not finite": (
        lambda data: damaged(data, lambda x: x["0.conv_states.0"].fill_(torch.nan)),
        "0.conv_states.0 has values that are not finite",
    ),
    "whole numbers": (
        lambda data: damaged(
            data, lambda x: x.update({"0.conv_states.0": x["0.conv_states.0"].long()})
        ),
        "0.conv_states.0 has values that are not finite",
    ),
    "two rows": (
        lambda data: damaged(
            data, lambda x: x.update({"0.conv_states.0": x["0.conv_states.0"].repeat(2, 1, 1)})
        ),
        r"0.conv_states.0 has the shape \[2, ",
    ),
    "of another layer": (
        lambda data: damaged(data, lambda x: x.update({"1.keys": torch.zeros(1, 1, 1, 1)})),
        "'1.keys' is of no layer of this model",
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_states_that_are_none_are_refused(what, models, tmp_path):
    change, message = DAMAGES[what]
    model = models("qwen3_5_text")
    cache = read(model, make_ids(30, CPU))
    cache.save(tmp_path / "c.tkv", model)
    whole = topkv.load_context(tmp_path / "c.tkv")
    whole.context.save(
        tmp_path / "d.tkv",
        model=whole.model,
        made_with=whole.made_with,
        application_data=change(whole.application_data),
    )
    path = str(tmp_path / "d.tkv")
    with pytest.raises(FileError, match=message) as e:
        TopkCache.from_file(path, model)
    assert str(e.value).startswith(f"{path}: the states of its layers: ")
    assert "\n" not in str(e.value)


def test_windows_of_another_length_are_refused(models, tmp_path):
    model = models("gemma2")
    cache = read(model, make_ids(40, CPU))
    cache.save(tmp_path / "c.tkv", model)
    whole = topkv.load_context(tmp_path / "c.tkv")

    def shorten(tensors):
        tensors["0.keys"] = tensors["0.keys"][:, :, 1:].contiguous()

    data = damaged(whole.application_data, shorten)
    whole.context.save(
        tmp_path / "d.tkv", model=whole.model, made_with=whole.made_with, application_data=data
    )
    with pytest.raises(FileError, match=re.escape("expected 23 tokens")):
        TopkCache.from_file(tmp_path / "d.tkv", model)


def test_a_context_without_states_is_refused(models):
    model = models("qwen3_5_text")
    context = read(model, make_ids(30, CPU)).freeze().context
    with pytest.raises(Unsupported, match="a context does not have the state of other layers"):
        TopkCache.from_context(model.config, context)


@pytest.mark.parametrize("family", KINDS)
def test_self_check(family, models):
    assert hf.self_check(models(family), tokens=64).difference < 1e-4
