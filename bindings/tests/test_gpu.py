"""CUDA tensors of PyTorch: the same numbers as on the host, ordered by the stream."""

import sys

import numpy as np
import pytest
from reference import attention, causal

import topkv

torch = pytest.importorskip("torch", reason="tests with CUDA tensors need PyTorch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(not topkv.cuda_built, reason="topkv was built without CUDA"),
]

SHAPE = topkv.AttentionShape(layers=2, q_heads=8, kv_heads=2, head_dim=64)
BF16 = 2.0**-8  # operands and rows are rounded to bf16


@pytest.fixture(scope="module")
def device():
    if "topkv.hf" in sys.modules:  # which keeps the device open, with another ceiling
        topkv.hf.close_devices()
    return topkv.Device.open("cuda", 4 << 30)


def step(tokens, seed):
    """q, k, v on the GPU, exact in bf16."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(heads):
        x = torch.randn(tokens, heads, 64, generator=generator, device="cuda")
        return x.bfloat16().float()

    return normal(8), normal(2), normal(2)


def run(target, tokens, seeds, stream=None, lse=True):
    """Steps of both layers; outputs and log-sum-exps by step."""
    results = []
    for seed in seeds:
        for layer in range(2):
            q, k, v = step(tokens, seed)
            out, sums = torch.empty_like(q), torch.empty(tokens, 8, device="cuda")
            handle = (stream or torch.cuda.current_stream()).cuda_stream
            given = target.attend(layer, q, k, v, out=out, lse=sums, stream=handle)
            assert given is out
            results.append((out, sums))
    return results


def test_prefill_on_the_device_is_causal_attention(device):
    builder = topkv.ContextBuilder(SHAPE, 600, device=device)
    out = torch.cat([run(builder, 200, [seed])[0][0] for seed in range(3)]).cpu().numpy()
    q, k, v = (torch.cat(x).cpu().numpy() for x in zip(*(step(200, seed) for seed in range(3))))
    wanted, _ = attention(q, k, v, causal(600, 600, 0))
    np.testing.assert_allclose(out, wanted, atol=4 * BF16)
    assert builder.freeze().tokens == 600


def test_a_session_on_the_device_that_retrieves_all_is_dense_attention(device):
    builder = topkv.ContextBuilder(SHAPE, 600, device=device)
    run(builder, 600, [1])
    session = topkv.Session(builder.freeze(), device, k=600, window=32)
    (out, lse), _ = run(session, 1, [2])
    q, k, v = step(1, 2)
    _, k_old, v_old = step(600, 1)
    rows = [torch.cat(pair).cpu().numpy() for pair in ((k_old, k), (v_old, v))]
    wanted, wanted_lse = attention(q.cpu().numpy(), *rows, np.ones((1, 601), bool))
    np.testing.assert_allclose(out.cpu().numpy(), wanted, atol=4 * BF16)
    np.testing.assert_allclose(lse.cpu().numpy(), wanted_lse, atol=4 * BF16)


def test_work_is_ordered_with_a_stream_of_the_caller(device):
    builder = topkv.ContextBuilder(SHAPE, 400, device=device)
    (wanted, _), _ = run(builder, 200, [3])
    wanted = wanted.clone()
    builder = topkv.ContextBuilder(SHAPE, 400, device=device)
    stream = torch.cuda.Stream()
    slow = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(50):
            slow = slow @ slow * 1e-3  # q, k and v come late
        (out, _), _ = run(builder, 200, [3], stream)
        doubled = out * 2
    stream.synchronize()
    assert torch.equal(doubled, wanted * 2)


def test_arrays_on_the_wrong_device_are_refused(device):
    builder = topkv.ContextBuilder(SHAPE, 400, device=device)
    q, k, v = step(5, 4)
    with pytest.raises(topkv.InvalidArgument, match="out is None; on a CUDA device pass"):
        builder.attend(0, q, k, v)
    with pytest.raises(topkv.InvalidArgument, match="q is f32 .* on the host; .* on cuda:0"):
        builder.attend(0, q.cpu(), k, v, out=torch.empty_like(q))
    host = topkv.ContextBuilder(SHAPE, 400)
    with pytest.raises(topkv.InvalidArgument, match="on cuda:0; .* on the host; move it there"):
        host.attend(0, q, k, v)
    with pytest.raises(topkv.InvalidArgument, match="requires grad; pass x.detach"):
        builder.attend(0, q.requires_grad_(), k, v, out=torch.empty_like(q))


def test_the_account_of_device_memory(device):
    memory = device.memory()
    assert 0 < memory.used <= memory.peak <= memory.ceiling == 4 << 30
    assert memory.libraries + sum(size for _, size in memory.items) >= memory.libraries


def test_the_model_runner_gives_the_tokens_of_the_host(device, needle_14m):
    tokens = np.arange(3000) % 900 + 20
    results = []
    for where in (device, None):
        model = topkv.Model.load(needle_14m, where)
        context = model.prefill(tokens)
        logits = model.logits(topkv.Session(context, where, k=64, window=128), [30, 31])
        results.append(logits)
    np.testing.assert_allclose(*results, atol=0.05 * np.abs(results[1]).max())
