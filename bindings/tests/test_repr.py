"""Objects of the package print as a line that says what they are, not as an address."""

import re

import numpy as np
import pytest

import topkv
from topkv import _core


@pytest.fixture
def shape():
    return topkv.AttentionShape(layers=2, q_heads=4, kv_heads=2, head_dim=8)


@pytest.fixture
def builder(shape):
    return topkv.ContextBuilder(shape, capacity=8, dtype="f32")


@pytest.fixture
def context(builder, random):
    for layer in range(2):
        builder.append(layer, random(5, 2, 8), random(5, 2, 8))
    return builder.freeze()


def test_every_class_has_a_line_of_its_own():
    classes = [
        x
        for module in (_core, _core._eval)
        for x in vars(module).values()
        if isinstance(x, type) and not issubclass(x, Exception)
    ]
    assert len(classes) > 15
    assert [x.__name__ for x in classes if x.__repr__ is object.__repr__] == []
    assert [x.__name__ for x in classes if "__repr__" not in vars(x)] == []


def test_shapes_say_what_differs_from_the_usual(shape):
    assert repr(shape) == "AttentionShape(layers=2, q_heads=4, kv_heads=2, head_dim=8)"
    other = topkv.AttentionShape(2, 4, 2, 8, scale=0.5, softcap=30.0, sliding_window=[0, 16])
    assert repr(other) == (
        "AttentionShape(layers=2, q_heads=4, kv_heads=2, head_dim=8, scale=0.5, softcap=30, "
        "sliding_window=[0, 16])"
    )


def test_rows_and_their_readers(shape, builder, context, random):
    assert repr(topkv.ContextBuilder(shape, capacity=8)) == (
        "<ContextBuilder of 2 layers x 2 KV heads x 8, on host>"
    )
    assert repr(builder).startswith("<ContextBuilder of 2 layers")  # frozen
    session = topkv.Session(context)
    session.attend(0, random(1, 4, 8), random(1, 2, 8), random(1, 2, 8))
    assert re.fullmatch(
        r"<Session of 1 own tokens over 5 of the context, index exact, tail none, on host>", repr(session)
    )
    assert re.fullmatch(
        r"SessionStats\(steps=1, rows_retrieved=0, retrieved_more=0, went_dense=0, "
        r"search_seconds=[\d.e-]+, attend_seconds=[\d.e-]+, recall=None\)",
        repr(session.stats()),
    )
    times = repr(session.step_times()[0])
    assert re.fullmatch(r"StepTimes\(q_out=[\d.e-]+, .*, merge=[\d.e-]+\)", times)
    assert repr(context.memory()).startswith("ContextMemory(rows_bytes=")


def test_recall_is_a_share(context, random):
    session = topkv.Session(context, window=1, sinks=0, measure_recall=True)
    for layer in range(2):
        session.attend(layer, random(1, 4, 8), random(1, 2, 8), random(1, 2, 8))
    assert repr(session.stats()).endswith("recall=1.0000)")


def test_searches_partials_and_devices(random):
    index = topkv.KeyIndex("exact")
    index.add(random(9, 8))
    index.build()
    assert repr(index.search(random(3, 8), 4)) == (
        "<SearchResult of 3 queries, up to 4 positions each>"
    )
    assert repr(topkv.Partial.empty(4, 8)) == "<Partial of out [4, 8]>"
    assert repr(topkv.Partial(np.zeros((2, 3, 8), "f4"), np.zeros((2, 3), "f4"))) == (
        "<Partial of out [2, 3, 8]>"
    )
    assert repr(topkv.Device()) == "<Device host>"
    assert repr(topkv.Device().memory()) == (
        "DeviceMemory(ceiling=0, libraries=0, used=0, peak=0, driver=0)"
    )


def test_models_and_what_they_give(needle_14m):
    if not (needle_14m / "model.safetensors").exists():
        pytest.skip("models/needle-14m is not there")
    model = topkv.Model.load(needle_14m)
    assert re.fullmatch(r"<Model \w+ of \d+ layers, hidden size \d+, on .*>", repr(model))
    assert re.fullmatch(
        r"<ModelConfig of a \w+ model: \d+ layers, hidden size \d+, vocabulary \d+>",
        repr(model.config),
    )
    assert re.fullmatch(r"<Tokenizer of \d+ tokens>", repr(model.tokenizer()))
    result = model.generate(topkv.Session(model.prefill([1, 2, 3])), [4], max_tokens=2)
    assert re.fullmatch(
        r"<GenerateResult of \d tokens, finish: \w+, \d steps, prompt .* s, decode .* s>",
        repr(result),
    )
    assert repr(result.times).startswith("ForwardTimes(matmul=")
    assert repr(topkv.Model.plan(needle_14m)).startswith("DevicePlan(peak=")
