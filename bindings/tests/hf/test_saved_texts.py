"""Texts in files: a cache that is loaded answers as the one that was saved, to the bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import topkv
from small_models import dtype_of, make_ids, other_llamas
from small_models import make_model as model_of
from topkv import FileError, InvalidArgument, Unsupported
from topkv.hf import Method, TopkCache, fingerprint, progress

TEXT = 300
FEW = {"k": 6, "window": 16, "sinks": 2}
OPTIONS = {
    "codes": {},
    "codes of few bytes": {"index": "codes:k=8,v=4", "k": [3, 4, 5]},
    "exact": {"index": "exact"},
    "exact with a tail": {"index": "exact", "tail": "codes:k=16,v=8"},
    "exact with the mean": {"index": "exact", "tail": "mean", "select_by": "group"},
    "ivf": {"index": "ivf", "dense_layers": 1},
    "a rule": {"error": 0.01, "measure_recall": True},
}


def make_model(device, family="llama"):
    return model_of(family, device, dtype_of(device))


def read(model, tokens=TEXT, **options):
    cache = TopkCache(model.config, **FEW | options)
    ids = make_ids(tokens, model.device)
    for part in ids.split(100, dim=1):
        model(part, past_key_values=cache, use_cache=True)
    return cache


def questions_of(model, cache):
    """Logits of questions about the text, each in a session of its own, several tokens and then
    single ones."""
    logits = []
    for seed in (11, 12):
        session = cache.session()
        for part in make_ids(9, model.device, seed).split([6, 1, 1, 1], dim=1):
            logits.append(model(part, past_key_values=session, use_cache=True).logits)
    return torch.cat(logits, dim=1).cpu()


@pytest.fixture
def model(device):
    return make_model(device)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "text.topkv"


@pytest.mark.parametrize("mapped", [False, True], ids=["in_memory", "mapped"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_what_is_loaded_answers_as_what_was_saved(options, mapped, model, path):
    cache = read(model, **options)
    cache.save(path, model)
    of_memory = questions_of(model, cache)
    other = make_model(model.device)  # of the same weights
    loaded = TopkCache.from_file(path, other, mapped=mapped)
    assert torch.equal(questions_of(other, loaded), of_memory)
    assert loaded._engine.options.session == cache._engine.options.session
    assert loaded.context.indices() == cache.context.indices()
    assert loaded.get_seq_length() == TEXT
    assert torch.equal(loaded.text_ids, make_ids(TEXT, model.device))
    # Rows not found are not all there is: else the options would tell nothing.
    assert not torch.equal(questions_of(model, cache.session(k=5000)), of_memory)


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "bf16", "q8", "q8/q4"])
def test_rows_of_every_dtype_are_kept(kv_dtype, path):
    model = make_model(torch.device("cpu"))
    cache = read(model, kv_dtype=kv_dtype, prefill="window")
    cache.save(path, model)
    loaded = TopkCache.from_file(path, model)
    assert loaded.context.dtype == kv_dtype
    assert torch.equal(questions_of(model, loaded), questions_of(model, cache))
    assert loaded._engine.options.kv_dtype == kv_dtype  # of the next text
    assert loaded._engine.options.prefill == cache._engine.options.prefill


def test_another_process_answers_as_this_one(path, tmp_path):
    model = make_model(torch.device("cpu"))
    cache = read(model)
    cache.save(path, model)
    child = Path(__file__).parent / "saved_child.py"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    out = str(tmp_path / "answers.pt")
    subprocess.run([sys.executable, child, path, out], check=True, env=environment)
    ids, in_memory, mapped = torch.load(out)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the child has it
    try:
        expected = questions_of(model, cache)
        assert torch.equal(in_memory, expected) and torch.equal(mapped, expected)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(ids, make_ids(TEXT, model.device))


def test_generate_goes_on_after_a_loaded_text(model, path):
    cache = read(model)
    cache.save(path, model)
    loaded = TopkCache.from_file(path, model)
    ids = torch.cat((loaded.text_ids, make_ids(5, model.device, seed=3)), dim=1)
    how = {"max_new_tokens": 12, "do_sample": False}
    expected = model.generate(ids, past_key_values=cache.session(), **how)
    assert torch.equal(model.generate(ids, past_key_values=loaded.session(), **how), expected)
    other = make_ids(TEXT + 5, model.device, seed=4)
    with pytest.raises(InvalidArgument, match="holds another text: its token 0"):
        model.generate(other, past_key_values=loaded.session(), **how)
    assert torch.equal(model.generate(ids, past_key_values=loaded, **how), expected)
    loaded.reset()  # and reads another
    model.generate(other, past_key_values=loaded, **how)
    assert loaded.context.tokens == TEXT + 5


def test_options_given_are_taken_for_those_of_the_file(model, path):
    read(model, index="exact").save(path, model)
    loaded = TopkCache.from_file(path, model, index="codes:k=8,v=4", k=9, session_capacity=77)
    assert loaded.context.indices() == ["exact", topkv.IndexSpec("codes:k=8,v=4").text]
    session = loaded._engine.options.session
    assert (session["k"], session["window"], session["sinks"]) == (9, 16, 2)
    assert session["capacity"] == 77
    with pytest.raises(InvalidArgument, match="k is 0"):
        TopkCache.from_file(path, model, k=0)


def test_of_several_indices_the_one_that_is_searched_is_loaded(model, path):
    cache = read(model)
    cache.freeze()
    cache.context.with_index("ivf").save(path, model=fingerprint.fingerprint(model))
    loaded = TopkCache.from_file(path, model, **FEW)
    assert loaded.context.indices() == cache.context.indices()
    assert torch.equal(questions_of(model, loaded), questions_of(model, cache))


def test_saving_ends_the_text_and_the_cache_goes_on(model, path):
    ids = make_ids(TEXT + 3, model.device)
    cache, undisturbed = read(model), read(model)
    assert cache.text_ids is None
    cache.save(path, model)
    assert cache.context.tokens == TEXT
    undisturbed.freeze()
    logits = [
        model(ids[:, TEXT:], past_key_values=c, use_cache=True).logits for c in (cache, undisturbed)
    ]
    assert torch.equal(*logits)


def test_tokens_after_the_text_are_not_lost_without_a_word(model, path):
    cache = read(model)
    cache.save(path, model)
    question = make_ids(4, model.device, seed=6)
    model(question, past_key_values=cache, use_cache=True)
    session = cache.session()
    session.save(path, model)  # has none
    model(question[:, :3], past_key_values=session, use_cache=True)
    before = path.read_bytes()
    for of_it, own in ((cache, 4), (session, 3)):
        with pytest.raises(InvalidArgument, match=rf"^{own} tokens follow the text of {TEXT}.*text_only"):
            of_it.save(path, model)
    assert path.read_bytes() == before
    session.save(path, model, text_only=True)
    loaded = TopkCache.from_file(path, model)
    assert loaded.get_seq_length() == TEXT
    assert torch.equal(questions_of(model, loaded), questions_of(model, cache))
    cache.crop(-4)
    cache.save(path, model)
    with pytest.raises(InvalidArgument, match="text_only is 1; expected True or False"):
        cache.save(path, model, text_only=1)


def test_ids_that_are_not_all_known_are_not_kept(model, path):
    cache = TopkCache(model.config, **FEW)
    ids = make_ids(60, model.device)
    embeddings = model.get_input_embeddings()(ids[:, :30])
    model(inputs_embeds=embeddings, past_key_values=cache, use_cache=True)
    model(ids[:, 30:], past_key_values=cache, use_cache=True)
    cache.save(path, model)
    assert cache.text_ids is None and not topkv.context_file_info(path).has_token_ids
    loaded = TopkCache.from_file(path, model)
    assert loaded.text_ids is None and loaded.context.tokens == 60
    assert torch.equal(questions_of(model, loaded), questions_of(model, cache))


# ---- which model ----


def refusal_of(path, model, **options):
    with pytest.raises(InvalidArgument) as caught:
        TopkCache.from_file(path, model, **options)
    return str(caught.value)


def test_another_model_is_refused_and_both_are_named(model, path, monkeypatch):
    read(model).save(path, model)
    mine = fingerprint.fingerprint(model)
    info = topkv.context_file_info(path)
    assert info.model == mine
    seen = {mine}
    with monkeypatch.context() as patch:
        patch.setattr(topkv, "load_context", None)  # it is refused before rows are read
        for _, other in other_llamas(model.device):
            text = refusal_of(path, other)
            theirs = fingerprint.fingerprint(other)
            assert text.startswith(f"{path}: ") and "check_model=False" in text
            assert repr(mine) in text and repr(theirs) in text
            seen.add(theirs)
    assert len(seen) == 6  # no two look the same
    tuned = next(other for what, other in other_llamas(model.device) if what == "weights")
    loaded = TopkCache.from_file(path, tuned, check_model=False)
    assert loaded.context.tokens == TEXT
    with pytest.raises(InvalidArgument, match="check_model is 0"):
        TopkCache.from_file(path, tuned, check_model=0)


def test_a_file_that_does_not_say_its_model_is_refused_unless_asked_for(model, path):
    cache = read(model)
    cache.freeze()
    cache.context.save(path)  # of nothing but rows
    assert "it does not name the model of its rows" in refusal_of(path, model)
    loaded = TopkCache.from_file(path, model, check_model=False, **FEW)
    assert loaded.text_ids is None
    assert torch.equal(questions_of(model, loaded), questions_of(model, cache))
    small = model_of("llama", model.device)
    small.config.num_hidden_layers = 2
    with pytest.raises(InvalidArgument, match="the context has 3 layers, and the model has 2"):
        TopkCache.from_file(path, small, check_model=False)


def test_a_model_that_did_not_read_the_text_cannot_save_it(model, path):
    cache = read(model)
    for other in (make_model(model.device), model.config, None):
        with pytest.raises(InvalidArgument, match="another config than the cache was made with"):
            cache.save(path, other)
    assert not path.exists() and cache.context is None


@pytest.mark.parametrize("index", ["hnsw:M=8", "faiss:HNSW8", "faiss:IVF,SQ8"])
def test_graphs_and_lists_are_kept(index, model, path):
    cache = read(model, index=index)
    cache.save(path, model)
    loaded = TopkCache.from_file(path, model)
    assert loaded.context.has_index(index)
    assert torch.equal(questions_of(model, loaded), questions_of(model, cache))


# ---- what no file holds ----


def test_a_file_without_the_windows_of_sliding_layers_is_refused(device, path):
    model = make_model(device, "gemma2")
    context = read(model).freeze().context
    context.save(path)
    with pytest.raises(FileError, match="the states of its layers: they are no safetensors"):
        TopkCache.from_file(path, model, check_model=False)
    with pytest.raises(Unsupported, match="from_context .* the state of other layers"):
        TopkCache.from_context(model.config, context)


def test_a_method_in_python_is_refused(path):
    class Last(Method):
        def select(self, layer, queries, k):
            return torch.arange(k).expand(queries.shape[0], k)

    model = make_model(torch.device("cpu"))
    cache = read(model, index="exact")
    session = cache.session(method=cache.prepare(Last))
    with pytest.raises(Unsupported, match="a method written in Python"):
        session.save(path, model)
    cache.save(path, model)


def test_files_that_are_not_whole_are_refused(model, path, tmp_path):
    with pytest.raises(FileError, match=str(tmp_path)):
        TopkCache.from_file(tmp_path / "none", model)
    read(model).save(path, model)
    whole = path.read_bytes()
    for length in (0, 5000, len(whole) - 1):
        path.write_bytes(whole[:length])
        for mapped in (False, True):
            with pytest.raises(FileError, match=str(path)):
                TopkCache.from_file(path, model, mapped=mapped)
    path.write_bytes(whole)
    with pytest.raises(topkv.OutOfMemory):
        TopkCache.from_file(path, model, memory_budget=4096)
    with pytest.raises(InvalidArgument, match="mapped is 1"):
        TopkCache.from_file(path, model, mapped=1)


@pytest.mark.parametrize(
    "options, error, text",
    [
        ('{"k": 5, "later": 1}', FileError, r"has options \['later'\] of a TopkCache, which topkv"),
        ("[1, 2]", FileError, "has options"),
        ("3", FileError, "has options"),
        ("{", FileError, "are not JSON"),
        ("[" * 100_000, FileError, "are not JSON"),
        ('{"k": -5}', InvalidArgument, "k is -5"),
        ('{"index": 5}', InvalidArgument, "index is 5; expected a str"),
        ('{"kv_dtype": ["f32"]}', InvalidArgument, "kv_dtype is"),
    ],
)
def test_options_that_a_file_should_not_have_are_refused(options, error, text, model, path):
    cache = read(model, index="exact")
    cache.freeze()
    of_model = fingerprint.fingerprint(model)
    cache.context.save(path, model=of_model, made_with=f"topkv.hf.TopkCache {options}")
    with pytest.raises(error, match=text):
        TopkCache.from_file(path, model)


# ---- long work ----


class Report:
    done, total = 2**29, 2**31


@pytest.mark.parametrize("doing", ["saving", "loading"])
def test_long_saving_and_loading_say_how_far_they_are(doing, model, path, monkeypatch, capfd):
    seconds = iter(range(1_000_000))
    monkeypatch.setattr(progress, "clock", lambda: float(next(seconds)))
    owner, name = {"saving": (topkv.Context, "save"), "loading": (topkv, "load_context")}[doing]
    whole = getattr(owner, name)

    def slow(*args, progress, **kwargs):
        for _ in range(5):
            progress(Report)
        return whole(*args, progress=progress, **kwargs)

    cache = read(model, progress=True)
    cache.freeze()
    cache.save(path, model)
    monkeypatch.setattr(owner, name, slow)
    capfd.readouterr()
    cache.save(path, model)
    TopkCache.from_file(path, model, progress=True)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == f"topkv: {doing} the text, 0.5 of 2.0 GiB, 9 s left"
    monkeypatch.setattr(progress, "PATIENCE", 1e9)
    cache.save(path, model)
    assert capfd.readouterr().err == ""


def test_saving_that_fails_or_is_interrupted_leaves_the_cache_and_the_file(model, path, monkeypatch):
    cache = read(model)
    cache.save(path, model)
    before, expected = path.read_bytes(), questions_of(model, cache)
    with pytest.raises(FileError):
        cache.save(path / "in" / "a file", model)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(progress._Line, "say", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.save(path, model)
    with pytest.raises(KeyboardInterrupt):
        TopkCache.from_file(path, model)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert torch.equal(questions_of(model, cache), expected)
    assert torch.equal(questions_of(model, TopkCache.from_file(path, model)), expected)
