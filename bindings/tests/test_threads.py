"""Long calls run without the GIL; callbacks, signals and misuse by two threads."""

import itertools
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from saved_contexts import large_context

import topkv

SHAPE = topkv.AttentionShape(layers=1, q_heads=2, kv_heads=1, head_dim=64)


@pytest.fixture(scope="module")
def context():
    rows = np.random.default_rng(1).standard_normal((60_000, 1, 64), dtype=np.float32)
    builder = topkv.ContextBuilder(SHAPE, len(rows))
    builder.append(0, rows, rows)
    return builder.freeze()


@pytest.fixture(scope="module")
def model(needle_14m):
    return topkv.Model.load(needle_14m)


def build_index(context):
    index = topkv.KeyIndex("hnsw:M=8,efc=40")
    index.add(context.keys(0, 0)[:10_000])
    index.build()


def search(context):
    queries = np.random.default_rng(2).standard_normal((2000, 64), dtype=np.float32)
    context.index("exact", 0, 0).search(queries, 100)


def attend(context):
    step = np.random.default_rng(2).standard_normal((600, 2, 64), dtype=np.float32)
    session = topkv.Session(context, dense_layers=1)
    session.attend(0, step, step[:, :1].copy(), step[:, :1].copy())


def prefill_rows(context):
    step = np.random.default_rng(2).standard_normal((6000, 2, 64), dtype=np.float32)
    builder = topkv.ContextBuilder(SHAPE, 6000)
    builder.attend(0, step, step[:, :1].copy(), step[:, :1].copy())


def append(context):
    rows = np.broadcast_to(np.ones((1, 1, 64), np.float32), (4_000_000, 1, 64))
    topkv.ContextBuilder(SHAPE, len(rows), dtype="bf16").append(0, rows, rows)


def with_index(context):
    context.with_index("hnsw:M=4,efc=16")


@pytest.mark.parametrize("call", [build_index, search, attend, prefill_rows, append, with_index])
def test_another_thread_runs_in_the_middle_of_a_long_call(call, context):
    assert_other_threads_run(lambda: call(context))


@pytest.mark.parametrize("call", ["prefill", "logits", "generate"])
def test_another_thread_runs_in_the_middle_of_a_model_call(call, model):
    tokens = np.arange(2000) % 1000 + 10
    if call == "generate":
        session = topkv.Session(model.prefill(tokens[:10]))
        assert_other_threads_run(lambda: model.generate(session, tokens, max_tokens=1))
    else:
        assert_other_threads_run(lambda: getattr(model, call)(tokens))


@pytest.mark.parametrize("call", ["save", "load", "verify"])
def test_another_thread_runs_while_a_context_goes_to_a_file_and_back(call, tmp_path):
    context, path = large_context(600_000), tmp_path / "text.topkv"
    context.save(path)
    calls = {"save": context.save, "load": topkv.load_context, "verify": topkv.verify_context}
    assert_other_threads_run(lambda: calls[call](path))


def assert_other_threads_run(call):
    """In one of ten calls at least: this process may be kept waiting within the others."""
    assert any(others_run_within(call) for _ in range(10))


def others_run_within(call):
    """Another thread notes the time until the call has ended; some notes lie well within it.

    In two of its parts: after a call that held the GIL the other thread may come first, once.
    """
    notes, done = [], threading.Event()

    def note():
        while not done.is_set():
            notes.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=note)
    thread.start()
    begin = time.perf_counter()
    call()
    end = time.perf_counter()
    done.set()
    thread.join()
    quarter, middle = (end - begin) / 4, (begin + end) / 2
    return any(begin + quarter < at < middle for at in notes) and any(
        middle < at < end - quarter for at in notes
    )


def test_an_exception_of_a_progress_callback_ends_the_work(context, model):
    class Enough(Exception):
        pass

    reports = []

    def stop(progress):
        if progress.stage == "prefill" and progress.done == 0:
            return  # told while the first chunk is read, if that takes long
        reports.append(progress)
        raise Enough

    with pytest.raises(Enough):
        context.with_index("hnsw:M=4,efc=16", progress=stop)
    with pytest.raises(Enough):
        model.prefill(range(10, 500), chunk=100, progress=stop)
    assert [report.stage for report in reports] == ["index", "prefill"]
    assert repr(reports[1]) == "Progress(prefill: 100 of 490 tokens)"


def test_an_exception_of_on_token_ends_the_generation_and_the_session_goes_on(model):
    session = topkv.Session(model.prefill(range(10, 30)))
    with pytest.raises(ZeroDivisionError):
        model.generate(session, [50, 51], max_tokens=20, on_token=lambda token: 1 // 0)
    seen = []
    result = model.generate(session, [52], max_tokens=3, on_token=seen.append)
    assert seen == result.tokens


def test_an_exception_of_a_prompt_s_progress_leaves_the_session_as_it_was(model):
    session = topkv.Session(model.prefill(range(10, 30)))
    reports = []

    def stop(progress):
        reports.append(progress)
        if progress.done == 512:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        model.generate(session, [50] * 600, max_tokens=2, progress=stop)
    assert session.tokens == 20
    assert {report.stage for report in reports} == {"prompt"} and reports[-1].total == 600
    assert model.generate(session, [52], max_tokens=3).steps == 2


def test_on_token_stops_by_returning_false(model):
    session = topkv.Session(model.prefill(range(10, 30)))
    numbers = itertools.count(1)
    result = model.generate(session, [50], max_tokens=20, on_token=lambda token: next(numbers) < 4)
    assert len(result.tokens) == 4


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers here")
@pytest.mark.parametrize("call", ["prefill", "watched prefill", "prompt", "logits"])
def test_a_signal_ends_a_long_call(call, model):
    class Interrupt(BaseException):
        pass

    def interrupt(*_):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            if call == "prompt":
                model.generate(topkv.Session(model.prefill([20]), capacity=32_000),
                               np.full(30_000, 20))
            elif call == "logits":
                model.logits(np.full(20_000, 20))
            else:
                model.prefill(np.full(400_000, 20), "window", chunk=128,
                              progress=(lambda progress: None) if "watched" in call else None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers here")
def test_a_signal_ends_the_adding_of_keys_and_none_are_added():
    class Interrupt(BaseException):
        pass

    def interrupt(*_):
        raise Interrupt

    index = topkv.KeyIndex("exact")
    keys = np.zeros((10**8, 4), np.float16)  # so many that looking at them takes a second or more
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            index.add(keys)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert index.size == 0
    index.add(np.eye(64, dtype=np.float32))
    index.build()
    assert index.search(np.eye(64, dtype=np.float32)[7:8], 1).positions(0) == [7]


@pytest.mark.parametrize("spec", ["hnsw:M=16,efc=400", "faiss:HNSW32;efc=400"])
def test_an_exception_of_a_progress_callback_ends_a_build_within_a_head(spec, context):
    class Enough(Exception):
        pass

    seen = []

    def stop(progress):
        seen.append(progress)
        raise Enough

    with pytest.raises(Enough):
        context.with_index(spec, progress=stop)
    assert len(seen) == 1 and seen[0].done < seen[0].total == 60_000
    assert context.indices() == ["exact"]


# Builds that would take minutes; what they leave behind must work.
INTERRUPTED = """
import signal
import numpy as np, topkv

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started this may ignore it
keys = np.random.default_rng(1).standard_normal((200_000, 1, 64), dtype=np.float32)
queries = keys[:3, 0]
if {whole_context}:
    builder = topkv.ContextBuilder(topkv.AttentionShape(1, 2, 1, 64), len(keys))
    builder.append(0, keys, keys)
    context = builder.freeze()
    build = lambda: context.with_index({spec!r})
else:
    index = topkv.KeyIndex({spec!r})
    index.add(keys[:, 0])
    build = index.build
try:
    print("building", flush=True)
    build()
except KeyboardInterrupt:
    print("interrupted", flush=True)
if {whole_context}:
    assert context.indices() == ["exact"]
    assert len(context.index("exact", 0, 0).search(queries, 5).positions(2)) == 5
else:
    try:
        index.search(queries, 5)
    except topkv.InvalidArgument as refusal:
        assert "call build first" in str(refusal)
    assert index.size == len(keys)
print("done", flush=True)
"""


@pytest.mark.parametrize("whole_context", [True, False], ids=["with_index", "KeyIndex"])
@pytest.mark.parametrize(
    "spec", ["hnsw:M=64,efc=2000", "faiss:HNSW64;efc=2000", "faiss:IVF65536,Flat"]
)
def test_ctrl_c_ends_the_build_of_an_index(spec, whole_context):
    program = INTERRUPTED.format(spec=spec, whole_context=whole_context)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        try:
            assert child.stdout.readline() == "building\n"
            time.sleep(0.5)  # into the build; any moment of it will do
            child.send_signal(signal.SIGINT)
            # Far more than it takes, and far less than the build does.
            output, _ = child.communicate(timeout=60)
        finally:
            child.kill()
    assert output == "interrupted\ndone\n"
    assert child.returncode == 0


def test_a_second_thread_in_one_session_is_refused(model):
    session = topkv.Session(model.prefill(range(10, 30)))
    inside, go_on = threading.Event(), threading.Event()

    def wait(token):
        inside.set()
        go_on.wait()

    thread = threading.Thread(
        target=model.generate, args=(session, [50]), kwargs={"max_tokens": 2, "on_token": wait}
    )
    thread.start()
    inside.wait()
    try:
        for use in (lambda: session.truncate(0), session.fork, lambda: model.logits(session, [1])):
            with pytest.raises(topkv.InvalidArgument, match="the session is in use by another thread"):
                use()
        assert session.tokens >= 20  # what a session is may be read
    finally:
        go_on.set()
        thread.join()
    session.truncate(0)


def test_a_callback_cannot_use_the_session_that_calls_it(model):
    session = topkv.Session(model.prefill(range(10, 30)))
    with pytest.raises(topkv.InvalidArgument, match="by the call that runs this callback"):
        model.generate(session, [50], on_token=lambda token: session.truncate(0))


def test_sessions_of_one_context_run_in_threads_of_their_own(context):
    steps = np.random.default_rng(3).standard_normal((4, 1, 2, 64), dtype=np.float32)
    rows = steps[:, :, :1].copy()

    def run(number):
        session = topkv.Session(context, k=50, window=10)
        return session.attend(0, steps[number], rows[number], rows[number])

    alone = [run(number) for number in range(4)]
    together = [None] * 4

    def keep(number):
        together[number] = run(number)

    threads = [threading.Thread(target=keep, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(together, alone)


def test_one_index_is_searched_from_many_threads(context):
    index = context.index("exact", 0, 0)
    queries = np.random.default_rng(4).standard_normal((8, 64), dtype=np.float32)
    alone = index.search(queries, 5).positions(3)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(index.search(queries, 5).positions(3)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(found, [alone] * 4)


AT_EXIT = """
import threading
import numpy as np, topkv

builder = topkv.ContextBuilder(topkv.AttentionShape(1, 2, 1, 64), 300)
rows = np.ones((300, 1, 64), np.float32)
builder.append(0, rows, rows)
context = builder.freeze()
begun = threading.Event()

def work():
    while True:
        session = topkv.Session(context, k=8, window=16)
        session.attend(0, np.ones((1, 2, 64), np.float32), rows[:1], rows[:1])
        begun.set()

for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
print("done", flush=True)
"""


def test_the_interpreter_ends_while_daemon_threads_are_in_calls():
    result = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


def test_importing_topkv_imports_neither_torch_nor_matplotlib():
    program = "import sys, topkv; print(sorted({'torch', 'transformers', 'matplotlib'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
