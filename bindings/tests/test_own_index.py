"""Indices written in Python: results, tails, files, failures, threads."""

import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
from own_index import Flat, answers, make_context, registered, session

import topkv


@pytest.fixture(autouse=True)
def forget():
    """Whatever a test registered ends with it."""
    yield
    topkv.unregister_index("flat")


@pytest.fixture
def flat():
    topkv.register_index("flat", Flat, ranks_keys=True)


def with_flat(cls=Flat, **options):
    """A context with an index of this class, which is registered in place of an earlier one."""
    topkv.unregister_index("flat")
    topkv.register_index("flat", cls, **options)
    return make_context().with_index("flat")


def changed(**methods):
    """A class like Flat with some methods replaced."""
    return type("Changed", (Flat,), methods)


@pytest.mark.parametrize("options", [{}, {"select_by": "group"}, {"tail": "mean"}, {"tail": "flat"}])
def test_an_index_of_largest_products_has_the_bits_of_exact(options, flat):
    context = make_context().with_index("flat").with_index("mean")
    options = {"tail": "none"} | options
    np.testing.assert_array_equal(
        answers(context, index="flat", **options), answers(context, index="exact", **options)
    )


def test_all_keys_retrieved_equals_dense():
    context = with_flat()
    np.testing.assert_allclose(
        answers(context, index="flat", tail="none", k=1000),
        answers(context, dense_layers=2),
        atol=2e-6,
    )


@pytest.mark.parametrize("options", [{"index": "flat"}, {"index": "exact", "tail": "flat"}])
def test_a_tail_that_knows_all_rows_makes_attention_dense(options):
    context = with_flat()
    assert topkv.IndexSpec("flat").has_tail
    dense = answers(context, dense_layers=2)
    np.testing.assert_allclose(answers(context, k=3, **options), dense, atol=2e-6)
    assert abs(answers(context, k=3, index="flat", tail="none") - dense).max() > 1e-3


@pytest.mark.parametrize("step", [1, 5])
def test_own_tokens_of_a_session_leave_its_window(step):
    context = with_flat()
    options = {"steps": 20, "step": step, "tail": "none"}
    found = answers(context, index="flat", **options)
    np.testing.assert_array_equal(found, answers(context, index="exact", **options))
    context = context.with_index("none")
    assert abs(found - answers(context, index="none", **options)).max() > 1e-3


def test_a_fork_answers_as_its_session(flat):
    parent = session(make_context().with_index("flat"), index="flat")
    first = answers(parent)
    child = parent.fork()
    np.testing.assert_array_equal(answers(child), answers(parent))
    parent.truncate(0)
    np.testing.assert_array_equal(answers(parent), first)


def test_an_index_by_itself_takes_keys_after_build(random, flat):
    keys, queries = random(50, 16), random(3, 16)
    exact, own = topkv.KeyIndex("exact"), topkv.KeyIndex("flat")
    for index in (exact, own):
        index.build()
        index.add(keys[:20])
        index.add(keys[20:])
        assert index.size == 50
    allowed = np.array([[0, 50], [10, 12], [7, 7]])
    wanted, found = exact.search(queries, 4, allowed), own.search(queries, 4, allowed)
    for query in range(3):
        np.testing.assert_array_equal(found.positions(query), wanted.positions(query))
        np.testing.assert_array_equal(found.scores(query), wanted.scores(query))
    assert own.memory >= keys.nbytes


def test_queries_say_which_belong_together():
    seen = []

    def search(self, queries, k):
        seen.append(queries)
        assert queries.data.shape == (6, 16) and queries.data.dtype == np.float32
        np.testing.assert_array_equal(queries.allowed[:3], [[2, 285]] * 3)
        np.testing.assert_array_equal(queries.allowed[3:], [[2, 286]] * 3)
        return Flat.search(self, queries, k)

    context = with_flat(changed(search=search))
    answers(context, index="flat", tail="none", steps=2, step=2)
    assert len(seen) == 4
    assert {(q.group, q.tokens, q.scale) for q in seen} == {(3, 2, 0.25)}
    assert repr(seen[0]) == "<QueryBlock of 6 queries of dim 16>"


@pytest.mark.parametrize(
    "form",
    [
        lambda rows: rows.astype(np.int32),
        lambda rows: rows.astype(np.uint64),
        lambda rows: np.asfortranarray(rows),
        lambda rows: np.pad(rows, ((0, 0), (3, 20)), constant_values=-1),
        lambda rows: [row.tolist() for row in rows],
        lambda rows: tuple(rows),
        lambda rows: rows[:, ::-1],
    ],
)
def test_positions_may_have_many_forms(form):
    wanted = answers(with_flat(), index="flat", tail="none")
    topkv.unregister_index("flat")
    context = with_flat(changed(search=lambda self, queries, k: form(Flat.search(self, queries, k))))
    np.testing.assert_array_equal(answers(context, index="flat", tail="none"), wanted)


@pytest.mark.parametrize(
    "result, text",
    [
        (np.zeros((3, 8)), r"it returned float64 \[3, 8\], expected integer positions \[3, n\]"),
        (np.zeros((3, 8), bool), r"it returned bool \[3, 8\]"),
        (np.zeros(8, int), r"it returned int64 \[8\], expected integer positions \[3, n\]"),
        (np.zeros((2, 8), int), r"it returned int64 \[2, 8\], expected integer positions \[3, n\]"),
        ([[0], [1]], r"it returned list of length 2, .*a sequence of positions for each of 3 queries"),
        ([[5], [6], [0.5]], r"it returned float64 \[1\]"),
        ([5, 6, 7], r"it returned int64 \[\]"),
        (None, "it returned NoneType"),
        (np.arange(30).reshape(3, 10), "it returned 10 positions for query 0, expected at most k, which is 8"),
        ([[5], [6], [7, 9, 7]], "search returned position 7 twice for query 2, expected it once"),
        ([[5], [-2], [7]], "search returned position -2 for query 1, expected positions from 2 to 284"),
        ([[5], [6], [400]], "search returned position 400 for query 2, expected positions from 2 to 284"),
    ],
)
def test_a_wrong_result_says_what_was_found(result, text):
    context = with_flat(changed(search=lambda self, queries, k: result))
    reader = session(context, index="flat", tail="none")
    with pytest.raises(topkv.Error, match='^index "flat": .*' + text):
        answers(reader)
    assert reader.own_tokens == 0


@pytest.mark.parametrize(
    "result, text",
    [
        (None, r"it returned NoneType, expected a tuple \(out, lse\)"),
        (([0],), "it returned tuple of length 1"),
        ((np.zeros((3, 9)), np.zeros(3)), r"it returned float64 \[3, 9\] as out, expected float32 \[3, 16\]"),
        ((np.zeros((3, 16)), np.zeros(1)), r"it returned float64 \[1\] as lse, expected float32 \[3\]"),
        ((np.zeros((3, 16), "U1"), np.zeros(3)), r"it returned <U1 \[3, 16\] as out"),
        ((np.zeros((3, 16)), np.full(3, np.nan)), "estimate returned lse nan"),
        ((np.zeros((3, 16)), np.zeros(3), -np.ones(3)), "squared error -1 .* expected .* an error from 0"),
    ],
)
def test_a_wrong_estimate_says_what_was_found(result, text):
    context = with_flat(changed(tail=lambda *arguments: result))
    reader = session(context, index="flat")
    with pytest.raises(topkv.Error, match='^index "flat": .*' + text):
        answers(reader)
    assert reader.own_tokens == 0


def test_expected_errors_of_a_tail_reach_the_rule_and_the_figures():
    def tail(self, *arguments):
        out, lse = Flat.tail(self, *arguments)
        return out, lse, np.full(len(lse), 1e6)

    context = with_flat(changed(tail=tail))
    reader = session(context, index="flat", error=0.1)
    np.testing.assert_allclose(answers(reader), answers(context, dense_layers=2), atol=2e-6)
    assert reader.stats().went_dense == reader.stats().steps * 6
    exact = session(with_flat(), index="flat", error=0.1)  # its estimates have no error
    answers(exact)
    assert exact.stats().went_dense == 0


class Broken(Exception):
    pass


def raise_broken(*arguments):
    raise Broken("disk gone")


def assert_is_the_exception(info, what):
    """The application's own, with the frame that raised it and a note that names the index."""
    assert str(info.value) == "disk gone"
    assert "raise_broken" in [frame.name for frame in traceback.extract_tb(info.tb)]
    if sys.version_info >= (3, 11):
        assert info.value.__notes__ == [f'index "flat": {what} failed: Broken: disk gone']


@pytest.mark.parametrize("method, what", [("search", "search"), ("tail", "estimate")])
def test_an_exception_in_a_step_reaches_the_caller_and_rolls_the_step_back(method, what):
    cls = changed()
    context = with_flat(cls)
    wanted = answers(context, index="flat")
    reader = session(context, index="flat")
    setattr(cls, method, raise_broken)
    for _ in range(2):
        with pytest.raises(Broken) as info:
            answers(reader)
        assert_is_the_exception(info, what)
        assert reader.own_tokens == 0
    setattr(cls, method, getattr(Flat, method))
    np.testing.assert_array_equal(answers(reader), wanted)


@pytest.mark.parametrize(
    "method, what",
    [("__init__", "make"), ("build", "build"), ("build_tail", "make_tail")],
)
def test_an_exception_while_a_context_is_indexed_leaves_it_as_it_was(method, what):
    context = make_context()
    topkv.register_index("flat", changed(**{method: raise_broken}))
    with pytest.raises(Broken) as info:
        context.with_index("flat")
    assert_is_the_exception(info, what)
    assert context.indices() == ["exact"]


def test_an_exception_of_a_progress_callback_ends_the_work_between_heads():
    built = []

    def build(self, keys):
        built.append(keys)
        time.sleep(0.2)  # past the first report

    topkv.register_index("flat", changed(build=build))
    with pytest.raises(Broken):
        make_context(layers=150).with_index("flat", progress=raise_broken)
    assert 0 < len(built) < 300  # heads, which are more than a machine has cores


def test_exceptions_that_are_no_exception_reach_the_caller():
    def interrupt(*arguments):
        raise KeyboardInterrupt

    context = with_flat(changed(search=interrupt))
    with pytest.raises(KeyboardInterrupt):
        answers(context, index="flat")


def test_parameters_are_checked_when_a_spec_is_parsed():
    class Lists(Flat):
        def __init__(self, params):
            lists = int(params or 8)  # a ValueError for a text that is no number
            self.spec = f"own:{lists}"

    with registered("own", Lists):
        assert topkv.IndexSpec("own").text == "own:8"
        assert topkv.IndexSpec("own") == topkv.IndexSpec("own:8") != topkv.IndexSpec("own:9")
        context = make_context().with_index("own")
        assert context.has_index("own:8") and not context.has_index("own:9")
        for parse in (topkv.IndexSpec, topkv.KeyIndex, context.with_index, context.has_index):
            with pytest.raises(ValueError, match="invalid literal for int.*'x'"):
                parse("own:x")
        with pytest.raises(topkv.InvalidArgument, match="parameters are missing after the colon"):
            topkv.IndexSpec("own:")
    with registered("own", changed(spec=7)):
        with pytest.raises(topkv.Error, match="spec is int, expected a str"):
            topkv.IndexSpec("own")


def test_the_index_of_the_page_has_the_bits_of_exact(repository):
    page = (repository / "docs" / "howto-index.md").read_text()
    program = page.split("```python\n")[1].split("```")[0]
    defined = {}
    exec(program.split("topkv.register_index")[0], defined)
    context = with_flat(defined["Flat"], ranks_keys=True)
    np.testing.assert_array_equal(answers(context, index="flat"), answers(context, index="exact"))
    assert context.index("flat", 0, 0).memory >= 300 * 16 * 4


def test_a_factory_makes_objects_of_the_class():
    made = []

    def factory(params):
        made.append(params)
        return Flat(params)

    context = with_flat(factory=factory)
    assert made and set(made) == {""}
    answers(context, index="flat")
    with pytest.raises(
        topkv.Error, match="the factory returned Flat, expected an object of the class Changed"
    ):
        with_flat(changed(), factory=Flat)


@pytest.mark.parametrize(
    "name, cls, text",
    [
        ("own", Flat("").search, "cls is method, expected a class; give a function .* as factory"),
        ("own", type("A", (), {"build": print}), "class A has no method search; an index needs build and search"),
        ("own", changed(tail=None), "class Changed has no method tail; expected both build_tail and tail"),
        ("own", changed(load=None), "load is empty; expected both save and load"),
        ("exact", Flat, "exact"),
        ("1", Flat, "name"),
    ],
)
def test_classes_and_names_that_cannot_be_registered(name, cls, text):
    with pytest.raises(topkv.InvalidArgument, match=text):
        topkv.register_index(name, cls)
    assert not topkv.unregister_index(name)


def test_a_name_is_registered_once_and_forgotten_once(flat):
    with pytest.raises(topkv.InvalidArgument, match="registered already; .* unregister_index first"):
        topkv.register_index("flat", Flat)
    assert topkv.unregister_index("flat")
    assert not topkv.unregister_index("flat")
    with pytest.raises(topkv.InvalidArgument, match="no index is named"):
        topkv.IndexSpec("flat")


def test_contexts_and_sessions_keep_an_index_whose_name_is_forgotten():
    context = with_flat()
    reader = session(context, index="flat", tail="none")
    assert topkv.unregister_index("flat")
    assert context.indices() == ["exact", "flat"]
    np.testing.assert_array_equal(answers(reader), answers(context, index="exact"))
    with pytest.raises(topkv.InvalidArgument, match="no index is named"):
        session(context, index="flat")


def test_memory_is_counted_with_the_tail():
    context = make_context()
    indexed = with_flat()
    arrays = 2 * 4 * 300 * 16 * 4  # keys and values of 4 KV heads in float32
    assert arrays <= indexed.memory().index_bytes - context.memory().index_bytes < 1.1 * arrays
    indexed = with_flat(changed(memory=lambda self: 7))
    with pytest.raises(topkv.Error, match="memory failed: it is method, expected a number of bytes"):
        indexed.memory()


@pytest.mark.parametrize("saves", [True, False], ids=["loaded", "built_again"])
def test_a_context_file_keeps_what_the_index_saved(saves, tmp_path):
    context = with_flat(Flat if saves else changed(save=None, load=None))
    context.save(tmp_path / "text.topkv")
    topkv.verify_context(tmp_path / "text.topkv")
    loaded = topkv.load_context(tmp_path / "text.topkv").context
    for options in ({"index": "flat"}, {"index": "flat", "tail": "none"}):
        np.testing.assert_array_equal(answers(loaded, **options), answers(context, **options))
    assert loaded.index("flat", 0, 0).memory > 0
    # The bytes of the same context again.
    loaded.save(tmp_path / "again.topkv")
    assert (tmp_path / "again.topkv").read_bytes() == (tmp_path / "text.topkv").read_bytes()


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np, topkv
from own_index import Flat, answers
try:
    topkv.load_context(sys.argv[2])
except topkv.Unsupported as error:
    assert "(flat); register an index of your own with register_index first" in str(error), error
else:
    raise SystemExit("loaded")
topkv.register_index("flat", Flat)
Flat.build = None  # a loaded index is not built
np.save(sys.argv[3], answers(topkv.load_context(sys.argv[2]).context, index="flat"))
"""


def test_another_process_loads_it_once_it_is_registered(tmp_path):
    context = with_flat()
    context.save(tmp_path / "text.topkv")
    here = str(Path(__file__).parent)
    program = [sys.executable, "-c", CHILD, here, tmp_path / "text.topkv", tmp_path / "out.npy"]
    subprocess.run(program, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), answers(context, index="flat"))


def test_bytes_that_load_refuses_name_the_file(tmp_path):
    path = tmp_path / "text.topkv"
    with_flat().save(path)
    topkv.unregister_index("flat")

    def refuse(*arguments):
        raise ValueError("keys of another fit")

    with registered("flat", changed(load=refuse)):
        with pytest.raises(topkv.FileError, match="text.topkv: .*keys of another fit") as info:
            topkv.load_context(path)
        assert isinstance(info.value.__cause__, ValueError)
        assert str(info.value.__cause__) == "keys of another fit"
    with registered("flat", changed(save=lambda self: "text")):
        context = topkv.load_context(path).context
        with pytest.raises(topkv.Error, match="save failed: it returned str of length 4, expected bytes"):
            context.save(tmp_path / "other.topkv")


def test_sessions_search_one_index_in_many_threads():
    context = with_flat()
    wanted = answers(context, index="flat")
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(answers(context, index="flat")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(found, [wanted] * 4)


def test_methods_may_hold_locks_and_call_topkv(random):
    """Neither the GIL nor the search of another head may be waited for in such a call."""
    lock = threading.Lock()
    many = topkv.KeyIndex("exact")
    many.add(random(50_000, 16))
    many.build()

    def search(self, queries, k):
        with lock:
            many.search(queries.data, 1)  # on several threads
            return Flat.search(self, queries, k)

    topkv.register_index("flat", changed(search=search))
    rows = random(100, 16, 16)
    builder = topkv.ContextBuilder(topkv.AttentionShape(1, 16, 16, 16), len(rows))
    builder.append(0, rows, rows)
    reader = session(builder.freeze().with_index("flat"), index="flat", tail="none")
    for token in range(5):
        reader.attend(0, *[rows[token : token + 1]] * 3)


def test_a_method_cannot_use_the_session_that_calls_it():
    cls = changed(search=lambda self, queries, k: reader.truncate(0))
    reader = session(with_flat(cls), index="flat")
    with pytest.raises(topkv.InvalidArgument, match="in use .* by the call that runs this callback"):
        answers(reader)


AT_EXIT = """
import sys
sys.path.insert(0, sys.argv[1])
import threading, topkv
from own_index import Flat, answers, make_context, session
topkv.register_index("flat", Flat)
context = make_context().with_index("flat")
reader = session(context, index="flat")
class Holder: held = [context, reader]
sys.held = Holder  # until the interpreter itself ends
holder = Holder(); holder.me, holder.context = holder, context.with_index("mean")
{more}
print("done", flush=True)
"""

DAEMON = """
begun = threading.Event()
def work():
    while True:
        answers(context, index="flat")
        begun.set()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


@pytest.mark.parametrize("more", ["", DAEMON], ids=["contexts", "threads"])
def test_the_interpreter_ends_while_indices_are_there(more):
    here = str(Path(__file__).parent)
    program = AT_EXIT.format(more=more)
    result = subprocess.run([sys.executable, "-c", program, here], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")
