"""PyTorch tensors on the CPU, and PyTorch and topkv in one process."""

import subprocess
import sys

import numpy as np
import pytest

import topkv

torch = pytest.importorskip("torch", reason="tests with tensors need PyTorch")

SHAPE = topkv.AttentionShape(layers=1, q_heads=4, kv_heads=2, head_dim=8)

TOGETHER = """
import numpy, topkv
from reference import attention
random = numpy.random.default_rng(1)
keys = random.standard_normal((5000, 32), dtype=numpy.float32)
index = topkv.KeyIndex("faiss:IVF32,SQ8")
index.add(keys)
index.build()
assert (index.search(keys[:50], 1).positions(0) == [0]).all()
a = torch.randn(400, 400, dtype=torch.float64)
b = (a @ torch.linalg.inv(a)).numpy()
numpy.testing.assert_allclose(b, numpy.eye(400), atol=1e-6)
model = topkv.Model.load(directory)
numpy.save(logits, model.logits(range(20, 60)))
"""


@pytest.mark.parametrize("first, second", [("torch", "topkv"), ("topkv", "torch")])
def test_both_work_in_one_process_in_either_order(first, second, repository, needle_14m, tmp_path):
    """Each brings an OpenMP runtime and a BLAS of its own."""
    logits = str(tmp_path / "logits.npy")
    program = f"import {first}\nimport {second}\ndirectory, logits = {str(needle_14m)!r}, {logits!r}\n" + TOGETHER
    tests = repository / "bindings" / "tests"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=tests)
    assert result.returncode == 0, result.stderr.decode()
    alone = topkv.Model.load(needle_14m).logits(range(20, 60))
    np.testing.assert_array_equal(np.load(logits), alone)


def test_tensors_are_taken_in_place_and_out_is_written(random):
    arrays = random(5, 4, 8), random(5, 2, 8), random(5, 2, 8)
    wanted = topkv.ContextBuilder(SHAPE, 10).attend(0, *arrays)
    out, lse = torch.empty(5, 4, 8), torch.empty(5, 4)
    tensors = map(torch.from_numpy, arrays)
    assert topkv.ContextBuilder(SHAPE, 10).attend(0, *tensors, out=out, lse=lse) is out
    np.testing.assert_array_equal(out.numpy(), wanted)
    assert torch.isfinite(lse).all()


def test_caches_of_transformers_are_appended_as_they_lie(random):
    cache = torch.from_numpy(random(1, 2, 30, 8)).bfloat16()  # [batch, heads, tokens, head_dim]
    builder = topkv.ContextBuilder(SHAPE, 30)
    rows = cache[0].transpose(0, 1)
    builder.append(0, rows, rows)
    context = builder.freeze()
    assert context.dtype == "bf16"
    wanted = cache[0, 1].view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(context.keys(0, 1), wanted)


def test_tensors_with_a_gradient_are_refused_with_the_remedy():
    q = torch.zeros(1, 4, 8, requires_grad=True)
    k = torch.zeros(1, 2, 8)
    with pytest.raises(topkv.InvalidArgument, match="q: the tensor requires grad; pass x.detach()"):
        topkv.ContextBuilder(SHAPE, 10).attend(0, q, k, k)


def test_tokens_may_be_a_tensor(needle_14m):
    model = topkv.Model.load(needle_14m)
    np.testing.assert_array_equal(model.logits(torch.arange(20, 25)), model.logits(range(20, 25)))


def test_pytorch_keeps_its_threads(random):
    """Both may use one OpenMP runtime, and topkv holds it to one thread while it works."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        builder = topkv.ContextBuilder(SHAPE, 3000)
        builder.attend(0, random(3000, 4, 8), random(3000, 2, 8), random(3000, 2, 8))
        session = topkv.Session(builder.freeze().with_index("faiss:IVF16,SQ8"))
        session.attend(0, random(1, 4, 8), random(1, 2, 8), random(1, 2, 8))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
