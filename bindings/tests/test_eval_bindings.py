"""The submodule that topkv.eval evaluates with, for a tokenizer of bytes."""

import json

import pytest

import topkv
from topkv._core import _eval


def encode(text):
    return list(text.encode())


def make(names, encode=encode, **sources):
    return _eval.make_tasks(names, encode, [256], **sources)


@pytest.fixture
def folder(tmp_path):
    configuration = {
        "model": "m", "tasks": ["passkey"], "lengths": [4096], "methods": ["dense"], "budgets": [],
        "samples": 1,
    }
    return lambda fresh=False: _eval.Directory(tmp_path / "out", json.dumps(configuration), fresh)


ANSWER = {
    "task": "passkey", "length": 4096, "sample": 0, "method": "dense", "budget": None,
    "question": "?", "references": ["1"], "answer": "1", "score": 1.0, "f1": None,
    "haystack": "noise", "context_tokens": 1, "question_tokens": 1, "answer_tokens": 1,
    "rows_per_head": 0.0, "bytes_read": 4096, "prefill_seconds": 0.0, "question_seconds": 0.0, "decode_seconds": 0.0,
    "decode_steps": 0, "seconds": 0.0, "index": "exact", "tail": "none", "window": 1024, "sinks": 4,
    "dense_layers": 8, "select": "query_head", "seed": 42, "device": "host", "version": "0",
}


def test_samples_follow_the_seed_and_fit_the_length():
    (task,) = make(["niah_single_1"])
    one, same, other = task.sample(4096, 0, 1), task.sample(4096, 0, 1), task.sample(4096, 0, 2)
    assert list(one.context) == list(same.context) != list(other.context)
    assert one.context[0] == 256
    assert len(one.context) + len(encode(one.question)) + one.predict <= 4096
    assert task.score(f"it is {one.references[0]}.", one.references) == 1
    assert task.score("nothing", one.references) == 0


def test_samples_that_cannot_be_made_are_refused():
    (task,) = make(["passkey"])
    with pytest.raises(topkv.InvalidArgument, match="a length of 10 tokens leaves none"):
        task.sample(10, 0, 1)
    with pytest.raises(topkv.InvalidArgument, match="sample -1 of task passkey"):
        task.sample(4096, -1, 1)
    with pytest.raises(topkv.InvalidArgument, match="'ruler' is several tasks"):
        make(["ruler"])
    with pytest.raises(topkv.InvalidArgument, match="'nosuch' is no task"):
        make(["nosuch"])
    with pytest.raises(topkv.InvalidArgument, match="references is empty; give at least one"):
        task.score("1", [])


def test_an_error_of_the_tokenizer_reaches_the_caller():
    def fails(text):
        raise KeyError("lost")

    (task,) = make(["passkey"], fails)
    with pytest.raises(KeyError, match="lost"):
        task.sample(4096, 0, 1)
    (task,) = make(["passkey"], lambda text: "no tokens")
    with pytest.raises(topkv.InvalidArgument, match="what encode returned"):
        task.sample(4096, 0, 1)


def test_methods_are_those_of_the_command():
    assert _eval.split_methods("dense;faiss:IVF8,SQ8;nprobe=2;quest@window=9") == [
        "dense", "faiss:IVF8,SQ8;nprobe=2", "quest@window=9"
    ]
    quest = _eval.parse_method("quest@window=9", head_dim=64, layers=8, sinks=2)
    assert quest.budgets and quest.indices() == ["quest:page=16"]
    options = quest.options(32)
    assert (options["k"], options["window"], options["sinks"], options["dense_layers"]) == (32, 9, 2, 2)
    streaming = _eval.parse_method("streaming", head_dim=64, layers=8)
    assert streaming.options(64)["window"] == 1024 + 64
    assert not _eval.parse_method("dense", head_dim=64, layers=8).budgets


def test_a_folder_keeps_answers_and_makes_the_tables_of_them(folder, tmp_path):
    out = folder()
    out.append(json.dumps(ANSWER))
    place = {name: ANSWER[name] for name in ("task", "length", "sample", "method", "budget")}
    assert out.has(**place) and not out.has(**place | {"sample": 1}) and len(out) == 1
    with pytest.raises(topkv.FileError, match="another topkv is writing there"):
        folder()
    table = out.write_scores("title", "subtitle")
    (row,) = table.rows
    assert (table.columns, row.method, row.budget, row.average) == (["passkey"], "dense", None, 100)
    low, high = row.scores[0].interval
    assert row.scores[0].mean == high == 100 and low == pytest.approx(20.65, abs=0.01)
    assert "dense,passkey,4096,,1,100.00" in (tmp_path / "out" / "scores.csv").read_text()
    del out
    assert len(folder()) == 1


def test_answers_and_configurations_that_are_none_are_refused(folder, tmp_path):
    out = folder()
    for text, says in (
        ("[]", "expected the text of a JSON object"),
        ("{", "expected the text of a JSON object"),
        (json.dumps(ANSWER | {"score": "good"}), "answer lacks a member, or one is of another type"),
        (json.dumps({"task": "passkey"}), "answer lacks a member"),
    ):
        with pytest.raises(topkv.InvalidArgument, match=says):
            out.append(text)
    with pytest.raises(topkv.InvalidArgument, match="configuration has no list 'tasks'"):
        _eval.Directory(tmp_path / "other", "{}")
