"""KeyIndex: searches against a float64 reference, ownership of the keys, refusals."""

import gc
import weakref

import numpy as np
import pytest
from reference import best_rows

import topkv


def built(spec, keys):
    index = topkv.KeyIndex(spec)
    index.add(keys)
    index.build()
    return index


def test_exact_search_finds_the_largest_inner_products(random):
    keys, queries = random(3000, 48), random(5, 48)
    result = built("exact", keys).search(queries, 20)
    assert len(result) == 5
    assert result.k == 20
    wanted = best_rows(queries, keys, 20, [(0, 3000)] * 5)
    for query in range(5):
        assert result.positions(query).dtype == np.int64
        np.testing.assert_array_equal(result.positions(query), wanted[query])
        scores = keys[wanted[query]].astype(np.float64) @ queries[query].astype(np.float64)
        np.testing.assert_allclose(result.scores(query), scores, atol=48 * 2**-23 * 16)


def test_each_query_finds_rows_of_its_own_range_alone(random):
    keys, queries = random(500, 16), random(3, 16)
    allowed = np.array([[0, 500], [100, 110], [499, 500]])
    result = built("exact", keys).search(queries, 25, allowed=allowed)
    wanted = best_rows(queries, keys, 25, allowed)
    for query in range(3):
        np.testing.assert_array_equal(result.positions(query), wanted[query])


@pytest.mark.parametrize("spec", ["hnsw:M=16,ef=200", "faiss:HNSW32"])
def test_graphs_find_most_of_the_exact_rows(spec, random):
    keys, queries = random(2000, 24), random(20, 24)
    result = built(spec, keys).search(queries, 10)
    wanted = best_rows(queries, keys, 10, [(0, 2000)] * 20)
    found = sum(len(set(result.positions(i)) & set(wanted[i])) for i in range(20))
    assert found >= 0.8 * 200


def test_half_precision_keys_score_as_their_own_values(random):
    keys = random(200, 32)
    f16 = keys.astype(np.float16)
    bf16 = keys.view(np.uint32) >> 16  # rounds towards zero; what counts is that both sides do
    query = random(1, 32)
    for given, values in (
        (f16, f16.astype(np.float64)),
        (bf16.astype(np.uint16), (bf16 << 16).view(np.float32).astype(np.float64)),
    ):
        result = built("exact", given).search(query, 3)
        wanted = best_rows(query, values, 3, [(0, 200)])[0]
        np.testing.assert_array_equal(result.positions(0), wanted)
        np.testing.assert_allclose(
            result.scores(0), values[wanted] @ query[0].astype(np.float64), rtol=1e-5
        )


def test_keys_are_read_where_they_lie_with_rows_apart(random):
    wide = random(300, 64)
    keys = wide[:, 8:40]
    query = random(1, 32)
    index = built("exact", keys)
    wanted = best_rows(query, keys, 5, [(0, 300)])[0]
    np.testing.assert_array_equal(index.search(query, 5).positions(0), wanted)


def test_successive_slices_of_one_array_are_numbered_on(random):
    keys = random(100, 8)
    index = topkv.KeyIndex("exact")
    index.add(keys[:60])
    index.build()
    index.add(keys[60:])
    assert index.size == len(index) == 100
    wanted = best_rows(keys[70:71], keys, 4, [(0, 100)])[0]
    np.testing.assert_array_equal(index.search(keys[70:71], 4).positions(0), wanted)


def test_the_index_keeps_its_keys_alive(random):
    keys = random(100, 8)
    watch = weakref.ref(keys)
    index = built("exact", keys)
    expected = index.search(np.ones((1, 8), np.float32), 3).positions(0)
    del keys
    gc.collect()
    assert watch() is not None
    np.testing.assert_array_equal(
        index.search(np.ones((1, 8), np.float32), 3).positions(0), expected
    )
    del index
    gc.collect()
    assert watch() is None


def test_keys_that_were_refused_are_not_kept(random):
    keys, other = random(10, 8), random(10, 8)
    index = topkv.KeyIndex("exact")
    index.add(keys)
    watch = weakref.ref(other)
    with pytest.raises(topkv.InvalidArgument, match="add the keys of one array, in order"):
        index.add(other)
    del other
    gc.collect()
    assert watch() is None


def test_attributes_say_what_the_index_is(random):
    index = built("hnsw:M=8", random(50, 8))
    assert index.spec.startswith("hnsw:M=8,")
    assert index.memory > 0
    assert repr(index) == f"<KeyIndex {index.spec} of 50 keys>"


def test_a_spec_is_a_value():
    spec = topkv.IndexSpec("hnsw")
    assert spec == topkv.IndexSpec("hnsw:ef=0,M=16") != topkv.IndexSpec("hnsw:M=8")
    assert spec != "hnsw"
    assert len({spec, topkv.IndexSpec("hnsw:M=16"), topkv.IndexSpec("exact")}) == 2
    assert str(spec) == spec.text == "hnsw:M=16,efc=100,ef=0"
    assert repr(spec) == f"<IndexSpec {spec.text}>"
    assert spec.grows and not topkv.IndexSpec("faiss:IVF").grows
    spec.check(64, 1 << 20)
    with pytest.raises(topkv.InvalidArgument, match="dim 64 cannot be cut into 7 equal parts"):
        topkv.IndexSpec("faiss:PQ7").check(64, 0)
    with pytest.raises(topkv.InvalidArgument, match="no index is named"):
        topkv.IndexSpec("hsnw")


def test_k_above_the_keys_gives_them_all(random):
    result = built("exact", random(7, 8)).search(random(1, 8), 2**40)
    assert sorted(result.positions(0)) == list(range(7))


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda index, a: index.search(a(1, 8), 1), "searched before build; call build first"),
        (lambda index, a: index.add(a(4, 9)), "dim 9"),
        (lambda index, a: index.add(a(4, 8)[:, ::2]), "the elements of a row next to each other"),
        (lambda index, a: index.add(a(4, 8)[::-1]), "rows in rising order"),
        (lambda index, a: index.add(a(4)), r"keys is f32 \[4\] on the host; expected \[n, dim\]"),
        (lambda index, a: index.add(a(4, 8).astype(int)), "keys is i64 .4, 8. on the host; expected f32, f16 or bf16"),
    ],
)
def test_refusals_say_what_was_found(call, text, random):
    index = topkv.KeyIndex("exact")
    index.add(random(5, 8))
    with pytest.raises(topkv.InvalidArgument, match=text):
        call(index, random)


def test_searches_that_cannot_be_are_refused(random):
    index = built("exact", random(20, 8))
    with pytest.raises(topkv.InvalidArgument, match="k is 0; it must be at least 1"):
        index.search(random(1, 8), 0)
    with pytest.raises(topkv.InvalidArgument, match="queries of dim 9"):
        index.search(random(1, 9), 1)
    with pytest.raises(topkv.InvalidArgument, match="one range for each of 2 queries"):
        index.search(random(2, 8), 1, allowed=np.array([[0, 20]]))
    with pytest.raises(topkv.InvalidArgument, match=r"expected i64 \[n, 2\]"):
        index.search(random(1, 8), 1, allowed=np.array([[0.0, 20.0]]))
    with pytest.raises(IndexError):
        index.search(random(1, 8), 1).positions(1)


@pytest.mark.parametrize("spec", ["exact", "hnsw", "faiss:Flat", "faiss:HNSW16", "faiss:IVF,SQ8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_queries_that_are_not_finite_are_refused_by_number(spec, bad, random):
    index = built(spec, random(600, 8))
    queries = random(3, 8)
    queries[1, 5] = bad
    with pytest.raises(topkv.InvalidArgument, match="query 1 is not finite: element 5 is "):
        index.search(queries, 2)


@pytest.mark.parametrize("spec", ["exact", "hnsw", "faiss:IVF,SQ8"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_keys_that_are_not_finite_are_refused_by_row(spec, dtype, random):
    keys = random(600, 8).astype(dtype)
    keys[77, 3] = np.nan
    index = topkv.KeyIndex(spec)
    with pytest.raises(topkv.InvalidArgument, match="keys: row 77 is not finite: element 3 is nan"):
        index.add(keys)
    assert index.size == 0


def test_keys_of_a_failed_add_are_not_kept_alive(random):
    index = topkv.KeyIndex("faiss:IVF64,SQ8")
    index.build()
    keys = random(10, 8)
    watch = weakref.ref(keys)
    with pytest.raises(topkv.InvalidArgument, match="64 lists need at least as many keys"):
        index.add(keys)
    assert index.size == 0
    del keys
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize("spec", ["faiss:NSG32", "faiss:LSH", "faiss:OPQ16,PQ16", "faiss:PQ16x4fs"])
def test_a_family_of_faiss_that_was_not_made_safe_is_refused(spec):
    with pytest.raises(topkv.InvalidArgument, match="not among the indices of FAISS that topkv takes"):
        topkv.KeyIndex(spec)


def test_an_unknown_spec_is_refused_by_name():
    with pytest.raises(topkv.InvalidArgument, match="nonsense"):
        topkv.KeyIndex("nonsense:M=16")
