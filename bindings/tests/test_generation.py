"""Generation's options, streams of text, several sessions together, and sessions that go on later."""

import asyncio
import contextlib
import threading

import numpy as np
import pytest

import topkv


@pytest.fixture(scope="module")
def model(needle_14m):
    return topkv.Model.load(needle_14m)


@pytest.fixture(scope="module")
def context(model):
    text = "The grass is green. The sky is blue. The sun is yellow. " * 4
    return model.prefill(model.tokenizer().encode(text), kv_dtype="f32")


@pytest.fixture
def ask(model, context):
    """Generates from the same prompt in a new session."""

    def call(prompt=" The sun is", max_tokens=16, **options):
        return model.generate(topkv.Session(context), model.tokenizer().encode(prompt), max_tokens, **options)

    return call


def answers():
    return [thread for thread in threading.enumerate() if thread.name == "topkv answer"]


def test_an_answer_ends_before_a_stop_text_and_says_so(ask):
    told = []
    whole = ask(on_text=told.append)
    assert "".join(told) == whole.text and whole.finish == "length" and len(whole.tokens) == 16
    stop = whole.text[6:9]
    cut = ask(stop=["not there", stop])
    assert (cut.text, cut.finish) == (whole.text[: whole.text.index(stop)], "stop_text")
    assert ask(on_text=lambda piece: False).finish == "caller"
    assert ask().text == "" and ask().logprobs == []
    with pytest.raises(topkv.InvalidArgument, match="stop text is empty"):
        ask(stop=[""])


def test_drafts_change_no_answer(model, context, ask):
    assert context.knows_tokens
    wanted = ask(max_tokens=60, draft="none")
    assert (wanted.drafted, wanted.accepted) == (0, 0)
    told = []
    drafting = ask(max_tokens=60, on_token=told.append)
    assert drafting.tokens == wanted.tokens == told and drafting.steps == wanted.steps == 59
    assert drafting.accepted <= drafting.drafted
    sampled = {"temperature": 1.5, "seed": 3, "max_tokens": 60}
    assert ask(**sampled).tokens == ask(draft="none", **sampled).tokens
    # Tokens that a context is said to have: the answer itself.
    prompt = model.tokenizer().encode(" The sun is")
    said = ([*prompt, *wanted.tokens] * context.tokens)[: context.tokens]
    other = context.with_tokens(said)
    assert model.generate(topkv.Session(other), prompt, 60).tokens == wanted.tokens
    with pytest.raises(topkv.InvalidArgument, match="give all of them"):
        context.with_tokens(said[1:])
    with pytest.raises(topkv.InvalidArgument, match="expected auto, none or lookup"):
        ask(draft="some")


def test_a_draft_model_changes_no_answer(model, context, ask, repository):
    drafts = topkv.DraftModel(model, model, window=64, kv_dtype="f32")
    assert drafts.window == 64 and drafts.session_bytes > 0
    assert repr(drafts) == "<DraftModel of llama, window 64>"
    wanted = ask(max_tokens=40, draft="none")
    got = ask(max_tokens=40, draft_model=drafts)
    assert got.tokens == wanted.tokens and got.steps == wanted.steps
    assert 0 <= got.model_accepted <= got.model_drafted <= got.drafted
    assert ask(max_tokens=40, draft="none", draft_model=drafts).drafted == 0
    with pytest.raises(topkv.InvalidArgument, match="window of 8 tokens; expected from 32"):
        topkv.DraftModel(model, model, window=8)
    other = topkv.Model.load(repository / "tests" / "fixtures" / "parity" / "llama3")
    with pytest.raises(topkv.InvalidArgument, match="has no tokenizer"):
        topkv.DraftModel(other, model)


def test_logprobs_are_of_the_models_distribution(model, context, ask):
    result = ask(logprobs=3, temperature=1.3, top_k=5, seed=4, repetition_penalty=1.2)
    prompt = model.tokenizer().encode(" The sun is")
    logits = model.logits(topkv.Session(context), [*prompt, *result.tokens]).astype(np.float64)
    wanted = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for row, token, got in zip(wanted[len(prompt) - 1 :], result.tokens, result.logprobs, strict=False):
        assert got.token == token and abs(got.logprob - row[token]) < 1e-3
        np.testing.assert_allclose([p for _, p in got.top], np.sort(row)[::-1][:3], atol=1e-3)
    assert len(result.logprobs) == len(result.tokens)
    with pytest.raises(topkv.InvalidArgument, match="from 0 to 20"):
        ask(logprobs=21)


def test_logprobs_of_prompts_are_those_of_transformers(model, needle_14m):
    """In float32, of a prompt of several chunks behind a context of one token."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(needle_14m, dtype=torch.float32).eval()
    ids = model.tokenizer().encode("The grass is green. The sky is blue. The sun is yellow. " * 20)
    assert len(ids) > 300
    with torch.inference_mode():
        rows = torch.log_softmax(theirs(torch.tensor([ids])).logits[0].double(), -1)
    wanted = rows.gather(1, torch.tensor([*ids[1:], 0])[:, None])[1:-1, 0].numpy()
    session = topkv.Session(model.prefill(ids[:1], kv_dtype="f32"))
    told = model.generate(session, ids[1:], 0, prompt_logprobs=1).prompt_logprobs
    assert [one.token for one in told] == ids[2:]
    np.testing.assert_allclose([one.logprob for one in told], wanted, atol=2e-4)
    np.testing.assert_allclose([one.top[0][1] for one in told], rows[1:-1].max(-1).values, atol=2e-4)


def test_an_end_token_that_a_bias_chooses_has_its_logprob(model, ask):
    end = model.config.eos[0]
    result = ask(logprobs=0, logit_bias={end: 100})
    assert result.ended and not result.tokens and result.end_logprobs.token == end
    assert ask(logprobs=0).end_logprobs is None
    with pytest.raises(topkv.InvalidArgument, match="logit bias for token -1"):
        ask(logit_bias={-1: 1})


def test_several_together_answer_as_each_alone(model, context, ask):
    prompts = [" The sun is", " The sky", " The grass is green. The"]
    told = {0: "", 1: "", 2: ""}

    def on_text(session, piece):
        told[session] += piece

    sessions = [topkv.Session(context) for _ in prompts]
    ids = [model.tokenizer().encode(prompt) for prompt in prompts]
    got = model.generate_together(sessions, ids, 10, on_text=on_text, logprobs=0, repetition_penalty=1.1)
    for i, prompt in enumerate(prompts):
        want = ask(prompt, 10, repetition_penalty=1.1)
        assert got[i].tokens == want.tokens and got[i].text == told[i] != ""
        assert len(got[i].logprobs) == len(want.tokens)
    with pytest.raises(topkv.InvalidArgument, match="in use"):
        model.generate_together([sessions[0], sessions[0]], ids[:2], 1)
    seen = []
    model.generate_together(sessions[:2], ids[:2], 4, on_token=lambda i, token: seen.append(i) or i == 1)
    assert seen.count(0) == 1 and seen.count(1) == 4


def test_a_stream_gives_the_text_that_generate_gives(model, context, ask):
    whole = ask(on_text=lambda piece: None, temperature=1.0, seed=3)
    prompt = model.tokenizer().encode(" The sun is")

    def collected():
        pieces = []
        stream = model.stream(topkv.Session(context), prompt, 16, temperature=1.0, seed=3)
        while True:
            try:
                pieces.append(next(stream))
            except StopIteration as end:
                return pieces, end.value

    pieces, result = collected()
    assert "".join(pieces) == whole.text and len(pieces) > 3
    assert result.tokens == whole.tokens and not answers()

    async def gather():
        return [piece async for piece in model.astream(topkv.Session(context), prompt, 16, temperature=1.0, seed=3)]

    assert asyncio.run(gather()) == pieces and not answers()


def test_leaving_a_stream_ends_its_generation(model, context):
    prompt = model.tokenizer().encode(" The sun is")
    session = topkv.Session(context, capacity=1000)
    for piece in model.stream(session, prompt, 900):
        break
    assert piece and not answers()
    assert len(prompt) < session.own_tokens < 900

    other = topkv.Session(context, capacity=1000)

    async def leave():
        async with contextlib.aclosing(model.astream(other, prompt, 900)) as pieces:
            async for _ in pieces:
                break

    asyncio.run(leave())
    assert not answers() and other.own_tokens < 900

    async def cancelled():
        async def consume():
            async with contextlib.aclosing(model.astream(other, prompt, 900)) as pieces:
                async for _ in pieces:
                    begun.set()

        begun = asyncio.Event()
        task = asyncio.create_task(consume())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert not answers()


def test_what_a_stream_fails_of_reaches_who_waits_for_it(model, context):
    prompt = model.tokenizer().encode(" The sun is")

    def fails(_):
        raise KeyError("enough")

    session = topkv.Session(context)
    with pytest.raises(KeyError, match="enough"):
        list(model.stream(session, prompt, 8, on_token=fails))
    assert session.own_tokens == 0 and not answers()
    with pytest.raises(topkv.InvalidArgument, match="prompt is empty"):
        list(model.stream(session, [], 8))

    async def wait():
        return [piece async for piece in model.astream(session, prompt, 8, on_token=fails)]

    with pytest.raises(KeyError, match="enough"):
        asyncio.run(wait())
    assert session.own_tokens == 0 and not answers()


def test_a_session_goes_on_from_rows_that_were_kept(model, context, tmp_path):
    prompt = model.tokenizer().encode(" The sun is")
    session = topkv.Session(context, k=16, window=32)
    first = model.generate(session, prompt, 6)
    rows = session.own_rows()
    assert rows.tokens == session.own_tokens == len(prompt) + first.steps
    rows.save(tmp_path / "turns.tkv")
    wanted = model.generate(session.fork(), first.tokens[-1:], 6).tokens
    for kept in (rows, topkv.load_context(tmp_path / "turns.tkv").context):
        later = topkv.Session(context, k=16, window=32)
        later.resume(kept)
        assert model.generate(later, first.tokens[-1:], 6).tokens == wanted
    with pytest.raises(topkv.InvalidArgument, match="own"):
        later.resume(rows)


def transformers_distribution(logits, prompt, answer, how):
    """By transformers' own processors, in the order of its generate; frequency and presence by OpenAI's definition."""
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers").generation.logits_process
    ids = torch.tensor([[*prompt, *answer]])
    scores = torch.tensor([logits], dtype=torch.float32)
    if how.get("logit_bias"):
        biases = {(token,): bias for token, bias in how["logit_bias"].items()}
        scores = process.SequenceBiasLogitsProcessor(biases)(ids, scores)
    if how.get("repetition_penalty", 1) != 1:
        scores = process.RepetitionPenaltyLogitsProcessor(how["repetition_penalty"])(ids, scores)
    counts = np.bincount(answer, minlength=len(logits)) if answer else np.zeros(len(logits))
    scores = scores - torch.tensor(
        counts * how.get("frequency_penalty", 0) + (counts > 0) * how.get("presence_penalty", 0), dtype=torch.float32
    )
    scores = process.TemperatureLogitsWarper(float(how["temperature"]))(ids, scores)
    if how.get("top_k"):
        scores = process.TopKLogitsWarper(how["top_k"])(ids, scores)
    if how.get("top_p", 1) < 1:
        scores = process.TopPLogitsWarper(how["top_p"])(ids, scores)
    if how.get("min_p"):
        scores = process.MinPLogitsWarper(how["min_p"])(ids, scores)
    return torch.softmax(scores.double(), -1)[0].numpy()


@pytest.mark.parametrize(
    "how",
    [
        {"min_p": 0.05},
        {"min_p": 0.2, "top_k": 12, "top_p": 0.9, "temperature": 1.7},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.8, "temperature": 0.6, "top_k": 30},
        {"frequency_penalty": 0.7, "presence_penalty": -0.4, "top_p": 0.8},
        {"logit_bias": {3: 4.0, 70: -20.0, 199: 2.5}},
        {"logit_bias": {5: 3.0, 9: -2.0, 41: 6.0}, "repetition_penalty": 1.4, "frequency_penalty": 0.2, "min_p": 0.02},
        {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "min_p": 0.1, "top_p": 0.95, "temperature": 0.8},
    ],
    ids=str,
)
def test_distributions_are_those_of_transformers(how):
    how = {"temperature": 1.0, **how}
    for seed in range(5):
        random = np.random.default_rng(seed)
        logits = (random.standard_normal(200) * 3).astype(np.float32).tolist()
        prompt = random.integers(0, 200, 40).tolist()
        answer = random.integers(0, 60, 25).tolist()
        got = np.array(topkv._core._sampling_distribution(logits, prompt, answer, **how))
        want = transformers_distribution(logits, prompt, answer, how)
        assert ((got > 0) == (want > 0)).all()
        np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("penalty", [1.5, 2.0])
def test_greedy_answers_with_a_repetition_penalty_are_those_of_transformers(model, needle_14m, penalty):
    """Token by token, of a text whose beginning is a context; its ids are told with `before`."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(needle_14m, dtype=torch.float32).eval()
    text = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. The grass"
    ids, tokens = model.tokenizer().encode(text), 60
    with torch.inference_mode():
        out = theirs.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            max_new_tokens=tokens,
            do_sample=False,
            repetition_penalty=penalty,
            pad_token_id=0,
        )
    want = out[0, len(ids) :].tolist()
    want = want[: want.index(1)] if 1 in want else want

    def answer(read, before, **options):
        session = topkv.Session(model.prefill(ids[:read], kv_dtype="f32"), dense_layers=model.config.attention.layers)
        return model.generate(session, ids[read:], tokens, temperature=0, before=before, **options).tokens

    for read in (1, 12, len(ids) - 1):
        assert answer(read, ids[:read], repetition_penalty=penalty) == want
    assert answer(12, ids[:12]) != want  # it is the penalty
