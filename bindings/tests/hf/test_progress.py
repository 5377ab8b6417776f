"""Long reading and long builds say on stderr how far they are; short ones say nothing."""

import io
import re
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import topkv
from small_models import make_ids, make_model
from topkv.hf import TopkCache, install, progress
from transformers.utils import logging


@pytest.fixture(scope="module")
def model():
    return make_model("gemma2", torch.device("cpu"))  # four layers


@pytest.fixture(autouse=True)
def slow(monkeypatch):
    """A second goes by whenever one looks at the clock."""
    seconds = iter(range(1_000_000))
    monkeypatch.setattr(progress, "clock", lambda: float(next(seconds)))


@pytest.fixture
def bars():
    """transformers' switch."""
    was = logging.is_progress_bar_enabled()
    logging.enable_progress_bar()
    yield
    (logging.enable_progress_bar if was else logging.disable_progress_bar)()


def read(model, tokens=60, chunk=10, **options):
    cache = TopkCache(model.config, k=1000, **options)
    for part in make_ids(tokens, model.device).split(chunk, dim=1):
        model(part, past_key_values=cache, use_cache=True)
    return cache


@pytest.fixture
def terminal(monkeypatch):
    """What is written to one of 60 columns."""

    class Terminal(io.StringIO):
        columns = 60

        def isatty(self):
            return True

        def fileno(self):
            return 2

    made = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=made))
    monkeypatch.setattr(progress.os, "get_terminal_size", lambda *_: made)
    return made


def test_a_pipe_is_given_a_line_now_and_then(model, bars, capfd):
    read(model, tokens=300)
    lines = capfd.readouterr().err.splitlines()
    assert 3 < len(lines) < 60
    form = r"topkv: reading, \d+ of \d+ or more tokens, \d+ tokens/s, \d+ s left"
    assert all(re.fullmatch(form, line) for line in lines), lines


def test_a_total_that_is_known_is_told(model, bars, capfd):
    read(model, tokens=300, max_cache_len=300)
    lines = capfd.readouterr().err.splitlines()
    assert lines and all("of 300 tokens" in line and "or more" not in line for line in lines)


def test_generate_knows_how_long_its_prompt_is(model, bars, capfd):
    cache = TopkCache(model.config, k=1000)
    how = {"max_new_tokens": 2, "prefill_chunk_size": 16, "do_sample": False}
    model.generate(make_ids(300, model.device), past_key_values=cache, **how)
    assert "of 300 tokens" in capfd.readouterr().err


def test_a_terminal_has_one_line_that_is_cleared_in_the_end(model, bars, terminal):
    read(model, tokens=300, max_cache_len=300)
    written = terminal.getvalue()
    assert "\n" not in written
    lines = written.split("\r\x1b[K")
    assert len(lines) > 10 and lines[-1] == ""
    assert max(map(len, lines)) < 60


def test_a_dumb_terminal_is_given_lines(model, bars, terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    read(model, tokens=300)
    written = terminal.getvalue()
    assert "\x1b" not in written and "\r" not in written and written.endswith("left\n")


def test_short_reading_says_nothing(model, bars, capfd, monkeypatch):
    monkeypatch.setattr(progress, "clock", lambda: 0.0)
    read(model)
    assert capfd.readouterr().err == ""


def test_it_can_be_switched_off_and_on(model, bars, capfd):
    read(model, tokens=300, progress=False)
    assert capfd.readouterr().err == ""
    logging.disable_progress_bar()
    read(model, tokens=300)
    assert capfd.readouterr().err == ""
    read(model, tokens=300, progress=True)
    assert capfd.readouterr().err != ""


def test_install_passes_the_switch_on(bars, capfd):
    model = make_model("llama", torch.device("cpu"))
    install(model, k=8, progress=False, prefill_chunk_size=16)
    model.generate(make_ids(300, model.device), max_new_tokens=2)
    assert capfd.readouterr().err == ""


def test_the_build_of_an_index_is_told_in_heads(model, bars, capfd, monkeypatch):
    cache = read(model, progress=True)
    capfd.readouterr()

    class Report:
        stage, done, total, unit = "index", 1, 4, "heads"

    whole = topkv.Context.ready_for

    def ready_for(self, index, tail, report, device):
        for _ in range(5):
            report(Report)
        return whole(self, index, tail, report, device)

    monkeypatch.setattr(topkv.Context, "ready_for", ready_for)
    cache.freeze("hnsw:M=8")
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "topkv: building hnsw:M=8, 1 of 4 heads, 9 s left"


@pytest.mark.parametrize(
    "seconds, words", [(0.2, "0 s"), (59.4, "59 s"), (61, "1 min 1 s"), (7300, "2 h 1 min")]
)
def test_spans_of_time_are_short(seconds, words):
    assert progress.span(seconds) == words
