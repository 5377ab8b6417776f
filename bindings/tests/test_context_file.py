"""Contexts in files: what is loaded is what was saved, to the bit, and what is damaged is refused."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from saved_contexts import SHAPE, TOKENS, answers, large_context, make_context

import topkv

#: Indices of a context, and a session's index and tail over each.
INDICES = ["codes:k=32,v=8", "ivf:size=32,share=512", "mean"]
SESSIONS = [
    {"index": "exact"},
    {"index": "exact", "tail": "codes:k=32,v=8"},
    {"index": "codes:k=32,v=8"},
    {"index": "ivf:size=32,share=512"},
    {"index": "exact", "tail": "mean"},
]


@pytest.fixture(scope="module")
def context():
    return make_context("bf16", INDICES)


@pytest.fixture
def path(context, tmp_path):
    context.save(tmp_path / "text.topkv", tokens=np.arange(TOKENS) * 3)
    return tmp_path / "text.topkv"


def assert_same(a, b):
    """Rows and what indices answer, to the bit."""
    assert (a.tokens, a.dtype, a.indices()) == (b.tokens, b.dtype, b.indices())
    assert repr(a.shape) == repr(b.shape)
    for layer in range(SHAPE.layers):
        for head in range(SHAPE.kv_heads):
            for rows in (topkv.Context.keys, topkv.Context.values):
                x, y = rows(a, layer, head), rows(b, layer, head)
                assert x.dtype == y.dtype and x.tobytes() == y.tobytes()


@pytest.mark.parametrize("mapped", [False, True], ids=["in_memory", "mapped"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8", "q4", "q8/q4"])
def test_what_is_loaded_is_what_was_saved(dtype, mapped, tmp_path):
    context = make_context(dtype, INDICES)
    context.save(tmp_path / "text.topkv")
    loaded = topkv.load_context(tmp_path / "text.topkv", mapped=mapped).context
    assert_same(loaded, context)
    assert loaded.memory().queries_bytes == context.memory().queries_bytes > 0
    given = [answers(context, **options) for options in SESSIONS]
    for options, expected in zip(SESSIONS, given):
        np.testing.assert_array_equal(answers(loaded, **options), expected)
    # Else the sessions would tell nothing of their indices.
    assert len({x.tobytes() for x in given}) == len(SESSIONS)


CHILD = """
import sys, numpy as np, topkv
sys.path.insert(0, sys.argv[1])
from saved_contexts import answers
from test_context_file import SESSIONS
loaded = topkv.load_context(sys.argv[2], mapped=sys.argv[4] == "mapped")
assert list(loaded.tokens) == list(range(0, 9000, 3)), loaded.tokens
np.save(sys.argv[3], [answers(loaded.context, **options) for options in SESSIONS])
"""


@pytest.mark.parametrize("how", ["in memory", "mapped"])
def test_another_process_answers_as_this_one(how, context, path, tmp_path):
    out = tmp_path / "answers.npy"
    program = [sys.executable, "-c", CHILD, str(Path(__file__).parent), str(path), str(out), how]
    subprocess.run(program, check=True)
    expected = [answers(context, **options) for options in SESSIONS]
    np.testing.assert_array_equal(np.load(out), expected)


def test_how_a_prompt_goes_on_is_kept(context, tmp_path):
    path = tmp_path / "text.topkv"
    context.save(path, text_left=" fox", chat=True, system="Be brief.")
    loaded = topkv.load_context(path)
    assert (loaded.text_left, loaded.chat, loaded.system) == (" fox", True, "Be brief.")
    context.save(path)
    loaded = topkv.load_context(path)
    assert (loaded.text_left, loaded.chat, loaded.system) == ("", False, "")


def test_a_file_tells_where_its_rows_are_from(context, tmp_path):
    path = tmp_path / "text.topkv"
    ids = np.arange(TOKENS, dtype=np.int64)
    for tokens in (ids, ids.astype(np.int32), ids.tolist()):
        context.save(path, model="some-network 7", made_with="by hand,\nin two lines", tokens=tokens)
        loaded = topkv.load_context(str(path))
        assert loaded.model == "some-network 7"
        assert loaded.made_with == r"by hand,\x0ain two lines"
        assert loaded.tokens.dtype == np.int32
        np.testing.assert_array_equal(loaded.tokens, ids)
        loaded.tokens[0] = 5  # a copy
        assert loaded.tokens[0] == 0
    assert repr(loaded) == "<LoadedContext of 3000 tokens, model 'some-network 7', with token ids>"
    context.save(path)
    loaded = topkv.load_context(path)
    assert (loaded.model, loaded.made_with, loaded.tokens) == ("", "", None)
    assert repr(loaded) == "<LoadedContext of 3000 tokens, model '', without token ids>"


def test_a_file_tells_what_it_has(context, path):
    info = topkv.context_file_info(path)
    assert (info.tokens, info.dtype, info.indices) == (TOKENS, "bf16", context.indices())
    assert repr(info.shape) == repr(SHAPE)
    assert info.has_queries and info.has_token_ids
    assert info.writer == f"topkv {topkv.__version__}" and info.version >= 1
    rows = TOKENS + 8 + TOKENS  # the second layer has those of its window
    assert info.rows_bytes == rows * 2 * 2 * 64 * 2  # heads, K and V, dims, bf16
    assert info.index_bytes > 0 and info.queries_bytes > 0
    parts = info.rows_bytes + info.index_bytes + info.queries_bytes
    assert parts < info.file_bytes == path.stat().st_size
    assert info.unknown_indices == [] and info.length == 0 and info.tokens_before is None
    context.save(path, model="it's \x1b[31m", made_with="é", length=4096)
    assert topkv.load_context(path).length == 4096
    info = topkv.context_file_info(path)
    assert not info.has_token_ids
    assert repr(info) == (
        f"ContextFileInfo(tokens=3000, shape={SHAPE!r}, dtype='bf16', indices={info.indices!r}, "
        f"unknown_indices=[], has_queries=True, has_token_ids=False, model={info.model!r}, "
        f"made_with='é', length=4096, file_bytes={info.file_bytes}, rows_bytes={info.rows_bytes}, "
        f"index_bytes={info.index_bytes}, queries_bytes={info.queries_bytes}, states_bytes=0, "
        f"application_bytes=0, version={info.version}, writer='topkv {topkv.__version__}')"
    )
    assert "\x1b" not in repr(info)


@pytest.mark.parametrize("size", [300, 5_000_000])
def test_bytes_of_an_application_are_kept_and_checked(context, tmp_path, size):
    path = tmp_path / "c.tkv"
    data = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    context.save(path, application_data=data)
    assert topkv.context_file_info(path).application_bytes == size
    topkv.verify_context(path)
    assert topkv.load_context(path).application_data == data.tobytes()
    whole = bytearray(path.read_bytes())
    at = whole.index(data[-300:].tobytes())
    whole[at] ^= 1
    path.write_bytes(whole)
    with pytest.raises(topkv.FileError, match="the application's data: .*checksum"):
        topkv.load_context(path)
    context.save(path, application_data=b"")
    assert topkv.load_context(path).application_data == b""


def test_application_data_that_is_no_bytes_is_refused(context, tmp_path):
    with pytest.raises(topkv.InvalidArgument, match="application_data is no sequence of bytes"):
        context.save(tmp_path / "c.tkv", application_data=np.zeros(3, np.float32))


def test_tokens_that_are_not_those_of_the_text_are_refused(context, tmp_path):
    path = tmp_path / "text.topkv"
    for tokens, what in (
        (range(2999), "2999 token ids for a context of 3000 tokens"),
        ([], "tokens is empty for a context of 3000 tokens"),
        ([-1] * TOKENS, "-1 is not a token id"),
        ([2**31] * TOKENS, "2147483648 is not a token id"),
    ):
        with pytest.raises(topkv.InvalidArgument, match=what):
            context.save(path, tokens=tokens)
    with pytest.raises(topkv.InvalidArgument, match="tokens"):
        context.save(path, tokens=[0.5] * TOKENS)
    assert not path.exists()


@pytest.mark.parametrize("spec", ["faiss:IVF16,Flat", "faiss:IVF,SQ8", "faiss:PQ8x4", "faiss:HNSW8"])
@pytest.mark.parametrize("mapped", [False, True])
def test_indices_of_faiss_are_kept(spec, mapped, context, tmp_path):
    path = tmp_path / "faiss.topkv"
    built = context.with_index(spec)
    built.save(path)
    topkv.verify_context(path)
    loaded = topkv.load_context(path, mapped=mapped).context
    assert loaded.has_index(spec)
    assert np.array_equal(answers(loaded, index=spec), answers(built, index=spec))


def test_paths_that_lead_nowhere_are_named(context, tmp_path):
    for path in (tmp_path / "none" / "text.topkv", str(tmp_path / "none")):
        for call in (topkv.load_context, topkv.context_file_info, topkv.verify_context):
            with pytest.raises(topkv.FileError) as caught:
                call(path)
            assert str(caught.value).startswith(str(path))
    with pytest.raises(OSError, match="none"):
        context.save(tmp_path / "none" / "text.topkv")
    with pytest.raises(topkv.FileError):
        context.save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TypeError):
        topkv.load_context(5)


def test_a_file_that_is_cut_short_is_refused(path):
    whole = path.read_bytes()
    for length in (0, 7, 4096, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        calls = [
            topkv.load_context,
            lambda x: topkv.load_context(x, mapped=True),
            topkv.context_file_info,
            topkv.verify_context,
        ]
        for call in calls:
            with pytest.raises(topkv.FileError) as caught:
                call(path)
            assert str(caught.value).startswith(str(path))
    path.write_bytes(whole)
    topkv.verify_context(path)


def test_a_byte_that_changed_is_found(context, path):
    whole = bytearray(path.read_bytes())
    at = whole.index(context.keys(2, 1)[300].tobytes())
    whole[at] ^= 1
    path.write_bytes(whole)
    for call in (topkv.load_context, topkv.verify_context):
        with pytest.raises(topkv.FileError, match="K of layer 2, KV head 1: .* damaged"):
            call(path)
    # Mapped rows are read as they are needed: that is verify_context's to find.
    rows = topkv.load_context(path, mapped=True).context.keys(2, 1)
    assert (rows != context.keys(2, 1)).sum() == 1


def test_rows_that_do_not_fit_are_refused_before_they_are_read(path):
    with pytest.raises(topkv.OutOfMemory) as caught:
        topkv.load_context(path, memory_budget=4096)
    assert caught.value.available_bytes == 4096
    rows = topkv.context_file_info(path).rows_bytes
    assert caught.value.wanted_bytes >= rows
    assert topkv.load_context(path, memory_budget=4 * rows).context.tokens == TOKENS


def test_mapped_rows_outlive_their_name_and_their_context(context, path):
    loaded = topkv.load_context(path, mapped=True)
    rows = loaded.context.keys(1, 0)
    context.save(path)  # another file of this name
    path.unlink()
    np.testing.assert_array_equal(answers(loaded.context), answers(context))
    del loaded
    gc.collect()
    assert rows.tobytes() == context.keys(1, 0).tobytes()
    assert not rows.flags.writeable


def calls_on(path, context):
    return {
        "save": lambda progress: context.save(path, progress=progress),
        "load": lambda progress: topkv.load_context(path, progress=progress),
        "verify": lambda progress: topkv.verify_context(path, progress),
    }


@pytest.mark.parametrize("stage", ["save", "load", "verify"])
def test_progress_is_told_in_bytes_to_the_end(stage, context, path):
    seen = []
    calls_on(path, context)[stage](seen.append)
    assert {(x.stage, x.unit, x.total) for x in seen} == {(stage, "bytes", seen[0].total)}
    assert [x.done for x in seen] == sorted(x.done for x in seen)
    assert seen[-1].done == seen[-1].total > topkv.context_file_info(path).rows_bytes


# On one processor, of a file so large that saving is in its middle. (What is read may be there before
# the first report; that is then the last.) In one call of C from the list on: what it holds tells
# whether the call of topkv came to its end.
ENDED_EARLY = """
import functools, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started this may ignore it
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import topkv
stage, path, how = sys.argv[1:]
context = topkv.load_context(path, mapped=True).context
calls = {"save": context.save, "load": topkv.load_context, "verify": topkv.verify_context}
call, seen, done = calls[stage], [], []

def stop(progress):
    seen.append(progress)
    raise KeyboardInterrupt

if how == "callback":
    call = functools.partial(call, progress=stop)
try:
    print("begins", flush=True)
    done.extend(map(call, [path]))
except KeyboardInterrupt:
    pass
early = not done and len(seen) == (how == "callback")
if stage == "save":
    early = early and all(x.done < x.total for x in seen)
print("ended early" if early else (done, seen))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Rows alone, 922 MB."""
    path = tmp_path_factory.mktemp("large") / "large.topkv"
    large_context(3_600_000).save(path, model="as it was")
    yield path
    path.unlink()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cannot be made slow here")
@pytest.mark.parametrize("how", ["callback", "ctrl_c"])
@pytest.mark.parametrize("stage", ["save", "load", "verify"])
def test_an_exception_of_a_callback_and_ctrl_c_end_a_call(stage, how, large):
    program = [sys.executable, "-c", ENDED_EARLY, stage, str(large), how]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "begins\n"
            if how == "ctrl_c":
                time.sleep(0.02)  # into the call
                child.send_signal(signal.SIGINT)
            output, _ = child.communicate(timeout=60)
        finally:
            child.kill()
    assert output == "ended early\n"
    assert list(large.parent.iterdir()) == [large]
    assert topkv.context_file_info(large).model == "as it was"


def test_the_indices_that_are_wanted_are_loaded_and_no_others(context, tmp_path):
    path = tmp_path / "text.topkv"
    context.with_index("quest:page=16").with_index("hnsw:M=8").save(path)
    everything = topkv.load_context(path).context.indices()
    assert "quest:page=16" in everything and "hnsw:M=8,efc=100,ef=0" in everything
    for mapped in (False, True):
        some = topkv.load_context(path, mapped=mapped, indices=["hnsw:M=8", "lowrank:r=8"]).context
        assert some.indices() == ["exact", "hnsw:M=8,efc=100,ef=0"]
        assert topkv.load_context(path, mapped=mapped, indices=[]).context.indices() == ["exact"]
    with pytest.raises(topkv.InvalidArgument, match="nothing"):
        topkv.load_context(path, indices=["nothing"])
    loaded = topkv.load_context(path, device=topkv.Device()).context
    assert loaded.indices() == everything
