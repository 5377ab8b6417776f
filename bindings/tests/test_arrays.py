"""What may be handed in as an array: protocols, dtypes, strides, devices, lifetimes."""

import sys

import numpy as np
import pytest
from capsules import DlpackOnly
from reference import best_rows

import topkv

SHAPE = topkv.AttentionShape(layers=1, q_heads=4, kv_heads=2, head_dim=8)


def frozen(keys, values, dtype="f32"):
    builder = topkv.ContextBuilder(SHAPE, len(keys), dtype=dtype)
    builder.append(0, keys, values)
    return builder.freeze()


def first_key(keys):
    """Position of the key that an index over these finds first for a query of ones."""
    index = topkv.KeyIndex("exact")
    index.add(keys)
    index.build()
    return index.search(np.ones((1, 8), np.float32), 1).positions(0)[0]


@pytest.mark.parametrize("version", [None, (1, 0), (1, 3)])
@pytest.mark.parametrize("strides", [True, False])
def test_dlpack_capsules_of_both_kinds_are_taken_in_place_and_given_back(version, strides, random):
    keys = random(10, 8)
    given = DlpackOnly(keys, version=version, strides=strides)
    wanted = best_rows(np.ones((1, 8)), keys, 1, [(0, 10)])[0][0]
    assert first_key(given) == wanted
    assert given.deleted == 1
    assert given.asked == ({"max_version": (1, 0)} if version else {})


def test_numpy_arrays_come_in_through_dlpack_too(random):
    class Wrapped:
        def __init__(self, array):
            self.__dlpack__ = array.__dlpack__
            self.__dlpack_device__ = array.__dlpack_device__

    keys = random(10, 8)
    assert first_key(Wrapped(keys)) == first_key(keys)


def test_bf16_of_dlpack_is_read_as_such(random):
    bf16 = (random(10, 8).view(np.uint32) >> 16).astype(np.uint16)
    assert first_key(DlpackOnly(bf16, code=4)) == first_key(bf16)


@pytest.mark.parametrize(
    "options, text",
    [
        (dict(version=(2, 0)), "DLPack version 2; expected 0 or 1"),
        (dict(device=(2, 3)), r"keys is f32 \[10, 8\] on cuda:3; expected .* on the host; move it"),
        (dict(device=(10, 0)), "on a device of DLPack type 10; expected the host or a CUDA device"),
        (dict(lanes=4), r"keys is f32 of 4 lanes \[10, 8\]"),
        (dict(code=0), r"keys is i32 \[10, 8\]"),
        (dict(code=5), r"keys is DLPack type 5 of 32 bits \[10, 8\]"),
    ],
)
def test_capsules_of_other_kinds_are_refused(options, text, random):
    given = DlpackOnly(random(10, 8), **options)
    with pytest.raises(topkv.InvalidArgument, match=text):
        topkv.KeyIndex("exact").add(given)


def test_cuda_arrays_are_asked_for_without_waiting(random):
    given = DlpackOnly(random(10, 8), device=(2, 0), version=(1, 0))
    with pytest.raises(topkv.InvalidArgument, match="on cuda:0"):
        topkv.KeyIndex("exact").add(given)
    assert given.asked == {"max_version": (1, 0), "stream": -1}


def test_read_only_capsules_are_not_written_to(random):
    a, b = topkv.Partial.empty(2, 8), topkv.Partial.empty(2, 8)
    read_only = topkv.Partial(DlpackOnly(a.out, version=(1, 0), flags=1), a.lse)
    assert topkv.merge(b, read_only).out.shape == (2, 8)
    read_only = topkv.Partial(DlpackOnly(a.out, version=(1, 0), flags=1), a.lse)
    with pytest.raises(topkv.InvalidArgument, match="out is read-only; expected an array to write"):
        topkv.merge_into(read_only, b)


def test_a_dlpack_that_raises_is_told_in_its_words():
    class Broken:
        def __dlpack_device__(self):
            raise BufferError("no memory of mine\nfor you")

        def __dlpack__(self, **_):
            raise AssertionError("not reached")

    with pytest.raises(topkv.InvalidArgument, match="^keys: no memory of mine$"):
        topkv.KeyIndex("exact").add(Broken())


def test_objects_that_are_no_arrays_are_refused():
    for thing, name in (([[1.0]], "list"), (None, "NoneType"), ("text", "str")):
        with pytest.raises(topkv.InvalidArgument, match=f"keys is a {name}; expected an array"):
            topkv.KeyIndex("exact").add(thing)
    with pytest.raises(topkv.InvalidArgument, match=r"keys is u8 \[3\]"):
        topkv.KeyIndex("exact").add(b"abc")


@pytest.mark.parametrize(
    "dtype, name",
    [("f8", "f64"), ("i2", "i16"), ("?", "bool"), ("u4", "u32"), (">f4", "elements of format '>f'")],
)
def test_dtypes_that_are_not_taken_are_named(dtype, name, random):
    with pytest.raises(topkv.InvalidArgument, match=rf"keys is {name} \[10, 8\] on the host"):
        topkv.KeyIndex("exact").add(random(10, 8).astype(dtype))


def test_read_only_arrays_are_fine_as_inputs(random):
    keys = random(10, 2, 8)
    keys.flags.writeable = False
    np.testing.assert_array_equal(frozen(keys, keys).keys(0, 1), keys[:, 1])


def test_tokens_and_heads_may_stride_freely_in_append(random):
    rows = random(30, 2, 8)
    heads_first = np.ascontiguousarray(rows.transpose(1, 0, 2))
    wide = np.zeros((60, 4, 12), np.float32)
    wide[::2, 1:3, 2:10] = rows
    backwards = np.ascontiguousarray(rows[::-1])
    for given in (heads_first.transpose(1, 0, 2), wide[::2, 1:3, 2:10], backwards[::-1]):
        context = frozen(given, rows)
        for head in range(2):
            np.testing.assert_array_equal(context.keys(0, head), rows[:, head])
            np.testing.assert_array_equal(context.values(0, head), rows[:, head])
    same = frozen(np.broadcast_to(rows[:1], (30, 2, 8)), rows)
    np.testing.assert_array_equal(same.keys(0, 0), np.repeat(rows[:1, 0], 30, axis=0))


def test_keys_and_values_of_any_dtype_are_stored_in_the_dtype_of_the_context(random):
    rows = (random(20, 2, 8).view(np.uint32) & 0xFFFF0000).view(np.float32)  # exact in bf16
    bf16 = (rows.view(np.uint32) >> 16).astype(np.uint16)
    f16 = rows.astype(np.float16)
    np.testing.assert_array_equal(frozen(bf16, f16).keys(0, 0), rows[:, 0])
    np.testing.assert_array_equal(frozen(bf16, f16).values(0, 0), f16[:, 0].astype(np.float32))
    stored = frozen(rows, rows, dtype="bf16").keys(0, 1)
    assert stored.dtype == np.uint16
    np.testing.assert_array_equal(stored, bf16[:, 1])
    assert frozen(rows, rows, dtype="f16").keys(0, 1).dtype == np.float16


def test_append_refuses_what_does_not_fit(random):
    builder = topkv.ContextBuilder(SHAPE, 100, dtype="f32")
    good = random(5, 2, 8)
    for bad, text in (
        (random(5, 3, 8), r"keys is f32 \[5, 3, 8\] on the host; expected \[tokens, heads 2, head_dim 8\]"),
        (random(5, 16), r"keys is f32 \[5, 16\]"),
        (random(5, 2, 16)[:, :, ::2], "the elements of a head next to each other"),
        (good.astype(np.float64), "keys is f64"),
    ):
        with pytest.raises(topkv.InvalidArgument, match=text):
            builder.append(0, bad, good)
    with pytest.raises(topkv.InvalidArgument, match="5 and 4|4 and 5|tokens"):
        builder.append(0, good, good[:4])
    assert builder.tokens(0) == 0


def test_attend_takes_contiguous_float32_of_the_right_shape_alone(random):
    builder = topkv.ContextBuilder(SHAPE, 100, dtype="f32")
    q, k, v = random(5, 4, 8), random(5, 2, 8), random(5, 2, 8)
    odd = np.frombuffer(bytearray(5 * 4 * 8 * 4 + 1), np.uint8)[1:].view(np.float32)
    for name, bad, text in (
        ("q", q.astype(np.float16), "q is f16 .* convert it"),
        ("q", q[:, :, ::-1], r"q is f32 \[5, 4, 8\] with strides \[32, 8, -1\] .* contiguous"),
        ("q", odd.reshape(5, 4, 8), "not aligned"),
        ("q", q[:, :3], "q_heads 4"),
        ("k", k[:4], "kv_tokens 5"),
        ("v", v[None], "kv_heads 2"),
        ("k", None, "k and v may be None only together and with kv_tokens=0"),
    ):
        with pytest.raises(topkv.InvalidArgument, match=text):
            builder.attend(0, **{"q": q, "k": k, "v": v, name: bad})
    for name, bad, text in (
        ("out", np.zeros((5, 4, 8)), "out is f64"),
        ("out", np.zeros((4, 4, 8), np.float32), "tokens 5"),
        ("lse", np.zeros((5, 4, 1), np.float32), "lse is f32"),
    ):
        with pytest.raises(topkv.InvalidArgument, match=text):
            builder.attend(0, q, k, v, **{name: bad})
    assert builder.tokens(0) == 0


def test_out_and_lse_are_written_in_place_and_out_is_returned(random):
    q, k, v = random(5, 4, 8), random(5, 2, 8), random(5, 2, 8)
    builder = topkv.ContextBuilder(SHAPE, 100, dtype="f32")
    wanted = builder.attend(0, q, k, v)
    builder = topkv.ContextBuilder(SHAPE, 100, dtype="f32")
    out, lse = np.full((5, 4, 8), np.nan, np.float32), np.full((5, 4), np.nan, np.float32)
    assert builder.attend(0, q, k, v, out=out, lse=lse) is out
    np.testing.assert_array_equal(out, wanted)
    assert np.isfinite(lse).all()


def test_calls_leave_no_reference_behind(random):
    q, k, v = random(1, 4, 8), random(1, 2, 8), random(1, 2, 8)
    out, lse = random(1, 4, 8), random(1, 4)
    builder = topkv.ContextBuilder(SHAPE, 100, dtype="f32")
    before = [sys.getrefcount(x) for x in (q, k, v, out, lse)]
    for _ in range(3):
        builder.attend(0, q, k, v, out=out, lse=lse)
        with pytest.raises(topkv.InvalidArgument):
            builder.attend(0, q, k, v, out=out, lse=lse[0])
    assert [sys.getrefcount(x) for x in (q, k, v, out, lse)] == before
