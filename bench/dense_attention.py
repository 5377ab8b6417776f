#!/usr/bin/env python3
"""Dense decode attention on an NVIDIA GPU through PyTorch: what topkv is to be compared with.

Two ways of attending ALL rows of a context for one new token:
  hbm     every layer's rows lie in the GPU's memory; scaled_dot_product_attention with the cuDNN
          and the flash backend.
  stream  rows lie in page-locked host memory and pass through two buffers on the GPU at every
          step, copies beside attention; partials are merged by their log-sum-exp.

ONE layer is allocated and timed (for hbm, copies of it in turn, so that no cache helps); a token's
time is the layer's times the number of layers, and each line says so. Time is taken with CUDA
events: the median of --samples. Results are checked against float64 arithmetic on small cases
before anything is timed. Prints JSON lines; the whole run takes less than a minute.

Needs torch with CUDA (2.5 or later) and about 7 GB of GPU memory; nothing of topkv.
"""

import argparse
import json
import math
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

# name: layers, query heads, KV heads, head dim; contexts in Ki tokens.
SHAPES = {
    "llama3-8b": ((32, 32, 8, 128), (128, 256, 512)),
    "qwen2.5-7b-1m": ((28, 28, 4, 128), (128, 256, 512, 1024)),
}
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
COPIES = 3  # of a layer's rows: 1.5 GiB at least, far beyond any L2
PIECE_BYTES = 64 << 20  # of K and V that are streamed at a time
LAYERS_PER_SAMPLE = 3  # streamed one behind the other


def attend(backend, q, k, v):
    """q [1, q_heads, 1, d], k and v [1, kv_heads, n, d] -> [1, q_heads, 1, d]."""
    with sdpa_kernel(BACKENDS[backend]):
        return scaled_dot_product_attention(q, k, v, enable_gqa=True)


def attend_partial(q, k, v):
    """As attend, by flash attention, with the natural log-sum-exp [1, q_heads, 1]."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False)[:2]
    return out, lse


def merge(outs, lses):
    """Partials over disjoint keys -> attention over their union, float32 [1, q_heads, 1, d]."""
    weights = torch.softmax(torch.stack(lses).float(), dim=0)
    return (weights.unsqueeze(-1) * torch.stack(outs).float()).sum(dim=0)


def random_bf16(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


class Stream:
    """One layer's rows in page-locked host memory, as pieces of consecutive tokens."""

    def __init__(self, kv_heads, tokens, dim, piece_tokens):
        if tokens % piece_tokens:
            raise ValueError(f"{tokens} tokens are no multiple of a piece of {piece_tokens}")
        shape = (2, 1, kv_heads, piece_tokens, dim)  # K and V
        self.pieces = []
        for _ in range(tokens // piece_tokens):
            host = torch.empty(shape, dtype=torch.bfloat16, pin_memory=True)
            host.copy_(random_bf16(*shape))
            self.pieces.append(host)
        self.buffers = [torch.empty(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
        self.copied = [torch.cuda.Event() for _ in range(2)]
        self.free = [torch.cuda.Event() for _ in range(2)]
        self.copier = torch.cuda.Stream()
        for event in self.free:
            event.record()

    def attend(self, q):
        """Attention over all rows; on the current stream."""
        outs, lses = [], []
        current = torch.cuda.current_stream()
        for i, host in enumerate(self.pieces):
            slot = i % 2
            with torch.cuda.stream(self.copier):
                self.copier.wait_event(self.free[slot])
                self.buffers[slot].copy_(host, non_blocking=True)
                self.copied[slot].record(self.copier)
            current.wait_event(self.copied[slot])
            out, lse = attend_partial(q, self.buffers[slot][0], self.buffers[slot][1])
            self.free[slot].record(current)
            outs.append(out)
            lses.append(lse)
        return merge(outs, lses)


def reference_attention(q, k, v):
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), *(x.double().repeat_interleave(group, 1) for x in (k, v))
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1) @ v


def check(name, got, k, v, q):
    """Weights and the result are rounded to bf16 (2^-9 each), so the error is below 2^-8 max|v|."""
    error = (got.double() - reference_attention(q, k, v)).abs().max().item()
    bound = 2.0**-8 * v.abs().max().item()
    if not error <= bound:
        sys.exit(f"dense_attention: {name} is wrong by {error:g}; at most {bound:g} is rounding")


def check_all(shape):
    _, q_heads, kv_heads, dim = shape
    q = 4 * random_bf16(1, q_heads, 1, dim)  # sharp: some weights are large
    k, v = random_bf16(1, kv_heads, 4160, dim), random_bf16(1, kv_heads, 4160, dim)
    refused = {}
    for backend in BACKENDS:
        try:
            got = attend(backend, q, k, v)
        except RuntimeError as error:  # this build of torch lacks it
            refused[backend] = str(error).strip().splitlines()[0]
            continue
        check(backend, got, k, v, q)
    stream = Stream(kv_heads, 5 * 832, dim, 832)
    for _ in range(2):  # buffers are used again
        got = stream.attend(q)
    k, v = (torch.cat([piece[half] for piece in stream.pieces], dim=2).cuda() for half in (0, 1))
    check("stream", got, k, v, q)
    return refused


def median_ms(work, samples):
    """Median GPU milliseconds of work(i). The GPU is kept busy until the work is queued."""
    for i in range(3):
        work(i)
    torch.cuda.synchronize()
    times = []
    for i in range(samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)  # cycles: about 1 ms
        start.record()
        work(i)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def report(where, backend, name, shape, tokens, layer_ms, samples):
    layers, q_heads, kv_heads, dim = shape
    layer_bytes = 2 * 2 * kv_heads * dim * tokens
    print(json.dumps({
        "bench": "dense_attention", "where": where, "backend": backend, "shape": name,
        "layers": layers, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": dim,
        "context_tokens": tokens, "dtype": "bf16", "layer_ms": round(layer_ms, 4),
        "token_ms": round(layer_ms * layers, 3),
        "tokens_per_second": round(1e3 / layer_ms / layers, 3),
        "token_ms_is": "layer_ms of one layer that was timed, times layers", "samples": samples,
        "row_bytes_per_second": round(layer_bytes / layer_ms * 1e3),
        "all_layers_bytes": layer_bytes * layers, "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=15, help="timed runs, at least 10 [15]")
    samples = parser.parse_args().samples
    if samples < 10:
        parser.error("--samples: at least 10")
    if not torch.cuda.is_available():
        sys.exit("dense_attention: torch finds no CUDA device")
    torch.manual_seed(1)
    for name, (shape, contexts) in SHAPES.items():
        _, q_heads, kv_heads, dim = shape
        refused = check_all(shape)
        for backend, why in refused.items():
            print(f"dense_attention: {backend} is left out for {name}: {why}", file=sys.stderr)
        q = random_bf16(1, q_heads, 1, dim)
        for tokens in (1024 * context for context in contexts):
            rows = [random_bf16(2, 1, kv_heads, tokens, dim) for _ in range(COPIES)]
            for backend in (backend for backend in BACKENDS if backend not in refused):
                ms = median_ms(lambda i: attend(backend, q, *rows[i % COPIES]), samples)
                report("hbm", backend, name, shape, tokens, ms, samples)
            del rows
            stream = Stream(kv_heads, tokens, dim, PIECE_BYTES // (4 * kv_heads * dim))
            def layers_in_turn(_):
                for _ in range(LAYERS_PER_SAMPLE):
                    stream.attend(q)
            ms = median_ms(layers_in_turn, samples) / LAYERS_PER_SAMPLE
            report("stream", "flash", name, shape, tokens, ms, samples)
            del stream
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
