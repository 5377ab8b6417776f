"""Partials and their merge, and attention over rows, against float64."""

import numpy as np
import pytest
from reference import attention

import topkv

EPS = 2.0**-23


def partial(q, keys, values, positions, **options):
    return topkv.attend_rows(q, keys, values, positions, q.shape[1] ** -0.5, **options)


def reference(q, keys, values, positions, softcap=0.0):
    visible = np.isin(np.arange(len(keys)), positions)[None].repeat(1, 0)
    out, lse = attention(q[None], keys[:, None], values[:, None], visible, softcap=softcap)
    return out[0], lse[0]


@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_attend_rows_gives_attention_over_the_chosen_rows(softcap, random):
    q, keys, values = random(6, 32), random(400, 32), random(400, 32)
    positions = np.array([3, 399, 17, 250, 4])
    got = partial(q, keys, values, positions, softcap=softcap)
    out, lse = reference(q, keys, values, positions, softcap)
    np.testing.assert_allclose(got.out, out, atol=64 * EPS)
    np.testing.assert_allclose(got.lse, lse, atol=64 * EPS)


def test_positions_may_be_any_ints(random):
    q, keys, values = random(2, 8), random(20, 8), random(20, 8)
    wanted = partial(q, keys, values, np.array([1, 5, 7])).out
    for positions in ([1, 5, 7], (1, 5, 7), np.array([1, 5, 7], np.int32), np.arange(1, 8)[[0, 4, 6]]):
        np.testing.assert_array_equal(partial(q, keys, values, positions).out, wanted)


def test_rows_of_bf16_views_are_read_as_bf16(random):
    keys = random(30, 16)
    bf16 = (keys.view(np.uint32) >> 16).astype(np.uint16)
    values = (bf16.astype(np.uint32) << 16).view(np.float32)
    q = random(2, 16)
    got = partial(q, bf16, bf16, np.arange(30))
    out, lse = reference(q, values, values, np.arange(30))
    np.testing.assert_allclose(got.out, out, atol=64 * EPS)
    np.testing.assert_allclose(got.lse, lse, atol=64 * EPS)


def test_merge_of_disjoint_sets_is_the_partial_over_their_union(random):
    q, keys, values = random(4, 16), random(90, 16), random(90, 16)
    parts = [partial(q, keys, values, np.arange(start, 90, 3)) for start in range(3)]
    whole = partial(q, keys, values, np.arange(90))
    left = topkv.merge(topkv.merge(parts[0], parts[1]), parts[2])
    right = topkv.merge(parts[0], topkv.merge(parts[2], parts[1]))
    for merged in (left, right):
        np.testing.assert_allclose(merged.out, whole.out, atol=32 * EPS)
        np.testing.assert_allclose(merged.lse, whole.lse, atol=32 * EPS)


def test_the_empty_partial_is_the_identity_of_merge(random):
    q, keys, values = random(4, 16), random(9, 16), random(9, 16)
    part = partial(q, keys, values, np.arange(9))
    empty = topkv.Partial.empty(4, 16)
    assert (empty.lse == topkv.empty_lse).all() and (empty.out == 0).all()
    for merged in (topkv.merge(part, empty), topkv.merge(empty, part)):
        np.testing.assert_array_equal(merged.out, part.out)
        np.testing.assert_array_equal(merged.lse, part.lse)
    nothing = partial(q, keys, values, np.array([], np.int64))
    np.testing.assert_array_equal(nothing.lse, empty.lse)
    np.testing.assert_array_equal(nothing.out, empty.out)


def test_merge_makes_new_arrays_and_merge_into_writes_to_given_ones(random):
    a = topkv.Partial(random(3, 8), random(3))
    b = topkv.Partial(random(3, 8), random(3))
    before = a.out.copy()
    merged = topkv.merge(a, b)
    np.testing.assert_array_equal(a.out, before)
    out = a.out
    topkv.merge_into(a, b)
    assert a.out is out
    np.testing.assert_array_equal(out, merged.out)


def test_partials_of_many_tokens_merge_head_by_head(random):
    a = topkv.Partial(random(5, 3, 8), random(5, 3))
    b = topkv.Partial(random(5, 3, 8), random(5, 3))
    merged = topkv.merge(a, b)
    single = topkv.merge(topkv.Partial(a.out[2], a.lse[2]), topkv.Partial(b.out[2], b.lse[2]))
    assert merged.out.shape == (5, 3, 8)
    np.testing.assert_array_equal(merged.out[2], single.out)


def test_arrays_that_are_no_partial_are_refused(random):
    with pytest.raises(topkv.InvalidArgument, match=r"out \[3, 8\] and lse \[4\]; expected out"):
        topkv.Partial(random(3, 8), random(4))
    with pytest.raises(topkv.InvalidArgument, match="lse is f64"):
        topkv.Partial(random(3, 8), np.zeros(3))
    with pytest.raises(topkv.InvalidArgument, match="cannot merge a partial of 2 heads x 8"):
        topkv.merge(topkv.Partial.empty(3, 8), topkv.Partial.empty(2, 8))
    frozen = random(3, 8)
    frozen.flags.writeable = False
    readable = topkv.Partial(frozen, random(3))
    topkv.merge(topkv.Partial.empty(3, 8), readable)
    with pytest.raises(topkv.InvalidArgument, match="out is read-only"):
        topkv.merge_into(readable, topkv.Partial.empty(3, 8))


def test_rows_that_are_not_there_are_refused(random):
    q, rows = random(1, 8), random(10, 8)
    for position in (10, -1, 2**40):
        with pytest.raises(topkv.InvalidArgument, match=rf"{position} is not in \[0, 10\)"):
            partial(q, rows, rows, [position])
    with pytest.raises(topkv.InvalidArgument, match="values is f32 .9, 8."):
        partial(q, rows, rows[:9], [0])
    with pytest.raises(topkv.InvalidArgument, match="expected a sequence of ints"):
        partial(q, rows, rows, ["first"])
