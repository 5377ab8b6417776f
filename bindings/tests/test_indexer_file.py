"""Indexers in files beside a checkpoint, through Model.load(indexer=)."""

import subprocess
import sys

import numpy as np
import pytest

import topkv

TOKENS = list(range(3, 203))
EVERY = 2**40


@pytest.fixture
def make(repository, tmp_path):
    """make(KEY=VALUE, …): the path of an indexer for needle-14m."""

    def make(*metadata):
        path = tmp_path / "indexer.safetensors"
        script = repository / "tests" / "cli" / "make_indexer.py"
        subprocess.run([sys.executable, script, path, "8", *metadata], check=True)
        return path

    return make


def test_a_choice_of_every_token_is_dense_attention(needle_14m, make):
    plain = topkv.Model.load(needle_14m, "cpu")
    model = topkv.Model.load(needle_14m, "cpu", indexer=make())
    shape = model.config.attention
    assert (shape.indexer.top, shape.indexer.local_blocks, shape.indexer.choices) == (64, 16, 2)
    assert plain.config.attention.indexer is None
    np.testing.assert_array_equal(model.logits(TOKENS[:40]), plain.logits(TOKENS[:40]))
    context = model.prefill(TOKENS[:160], kv_dtype="f32", indexer_top=EVERY)
    dense = topkv.Session(plain.prefill(TOKENS[:160], kv_dtype="f32"), "cpu", dense_layers=8)
    want = plain.logits(dense, TOKENS[160:])
    every = topkv.Session(context, "cpu", indexer_top=EVERY)
    np.testing.assert_allclose(model.logits(every, TOKENS[160:]), want, atol=2e-4)
    few = topkv.Session(context, "cpu", indexer_top=4, indexer_local_blocks=1)
    assert np.abs(model.logits(few, TOKENS[160:]) - want).max() > 1e-2
    assert few.stats().rows_retrieved == 8 * 6 * 4 * 40


def test_a_prefill_attends_the_choice_of_the_file(needle_14m, make):
    model = topkv.Model.load(needle_14m, "cpu", indexer=make("top=4", "local=1"))
    context = model.prefill(TOKENS[:160], kv_dtype="f32")
    assert context.shape.indexer.top == 4
    with pytest.raises(topkv.InvalidArgument, match="indexer_top is 0"):
        topkv.Session(context, "cpu", indexer_top=0)


def test_a_damaged_file_is_refused(needle_14m, make):
    with pytest.raises(topkv.FileError, match=r"wq.weight has shape \[64, 384\]"):
        topkv.Model.load(needle_14m, "cpu", indexer=make("heads=8"))
