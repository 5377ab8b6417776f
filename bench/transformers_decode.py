"""Time per token and GPU memory of topkv.hf.TopkCache beside transformers' own caches, in one run.

    python bench/transformers_decode.py --model models/needle-14m --contexts 32Ki,128Ki,512Ki
    python bench/transformers_decode.py --shape qwen2.5-7b-1m --contexts 256Ki --random-rows
    python bench/transformers_decode.py --model models/needle-14m --contexts 128Ki,1Mi --needles
    python bench/transformers_decode.py --shape qwen2.5-7b-1m --weights int4 --random-rows --own-process

Without --needles: a context is read (or, with --random-rows, filled with random K and V: what
decoding costs does not depend on them being a text's), then tokens are decoded one by one with
greedy choice; times are medians. With --needles: a generated text is read through model.generate in
chunks and ten facts at ten depths are asked for, each in a session of its own.

A cache may name the attention kernels that PyTorch chooses from, as in dynamic:flash (default: all
that it has). cuDNN's make a plan for every new length, so each cache gets lengths that no other had.

GPU bytes are beyond those of the model: torch's peak while decoding plus what topkv took, and the
difference of what the driver says is free, which includes what the allocators keep. gpu_peak is all
that torch had allocated at most since the model was loaded, weights and all; host_peak the most of
the process, of each cache only with --own-process.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import topkv
from quantised_weights import quantise
from topkv import hf
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM, DynamicCache, Qwen2Config

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "examples" / "python"))
from needles import load_tokenizer, make_needles, text_with  # noqa: E402

SHAPES = {
    "qwen2.5-7b-1m": Qwen2Config(
        vocab_size=152064,
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        max_position_embeddings=1010000,
        rope_theta=1e7,
        use_sliding_window=False,
    ),
}
FILL = 16384  # tokens of random rows made at a time
QUESTION = 256  # tokens that a question and its answer may take of the context
KERNELS = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
WARM_UP = 4


def tokens_of(text: str) -> int:
    """"128Ki" -> 131072."""
    for unit, factor in (("Ki", 1024), ("Mi", 1024**2)):
        if text.endswith(unit):
            return round(float(text[: -len(unit)]) * factor)
    return int(text)


def load(args):
    """The model, and what its weights are."""
    if args.model:
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
        model = model.to(args.device)
    else:
        with torch.device(args.device):
            model = AutoModelForCausalLM.from_config(SHAPES[args.shape], dtype=torch.bfloat16)
    return model.eval(), quantise(model, args.weights)


class Memory:
    """GPU bytes since it was made; zeros on a CPU."""

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.synchronize()
            self.allocated = torch.cuda.memory_allocated()
            self.free = torch.cuda.mem_get_info()[0]
            torch.cuda.reset_peak_memory_stats()
        self.earlier = 0  # peak of the phases before this one

    def peak(self) -> int:
        """All that torch had allocated at most, in any phase."""
        return max(self.earlier, torch.cuda.max_memory_allocated()) if self.cuda else 0

    def torch_peak(self) -> int:
        return torch.cuda.max_memory_allocated() - self.allocated if self.cuda else 0

    def begin_phase(self) -> None:
        if self.cuda:
            self.earlier = self.peak()
            torch.cuda.reset_peak_memory_stats()

    def taken(self) -> int:
        return self.free - torch.cuda.mem_get_info()[0] if self.cuda else 0


def host_peak() -> int:
    """The most memory this process had: bytes, of kibibytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def device_bytes(cache) -> int:
    """What topkv took of the GPU, its share of CUDA's libraries included."""
    device = getattr(cache, "device", None)
    if device is None or not device.is_cuda:
        return 0
    memory = device.memory()
    return memory.used


def topk_options(args) -> dict:
    return {
        "index": None if args.index == "default" else args.index,
        "k": args.k,
        "window": args.window,
        "sinks": args.sinks,
        "prefill": args.prefill,
        "dense_layers": args.dense_layers,
        "device_memory": args.device_memory,
    }


def random_topk(model, tokens: int, args) -> hf.TopkCache:
    config = model.config
    heads, dim = config.num_key_value_heads, config_head_dim(config)
    shape = topkv.AttentionShape(
        layers=config.num_hidden_layers,
        q_heads=config.num_attention_heads,
        kv_heads=heads,
        head_dim=dim,
    )
    builder = topkv.ContextBuilder(shape, capacity=tokens, dtype="bf16")
    for first in range(0, tokens, FILL):
        count = min(FILL, tokens - first)
        for layer in range(config.num_hidden_layers):
            rows = torch.randn(2, count, heads, dim, device=args.device, dtype=torch.bfloat16)
            builder.append(layer, *rows.cpu())
    return hf.TopkCache.from_context(config, builder.freeze(), **topk_options(args))


def config_head_dim(config) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def random_dynamic(model, tokens: int, args, offloading: bool) -> DynamicCache:
    config = model.config
    cache = DynamicCache(config=config, offloading=offloading)
    size = (1, config.num_key_value_heads, tokens, config_head_dim(config))
    for layer in range(config.num_hidden_layers):
        keys, values = (
            torch.randn(size, device=args.device, dtype=torch.bfloat16) for _ in range(2)
        )
        cache.update(keys, values, layer)
        del keys, values
    return cache


def read(model, cache, tokens: int, chunk: int) -> None:
    """Prefill of random token ids, in chunks."""
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(2, model.config.vocab_size, (1, tokens), generator=generator)
    for part in torch.split(ids.to(model.device), chunk, dim=1):
        model(part, past_key_values=cache, use_cache=True, logits_to_keep=1)


def make_filled(kind: str, model, tokens: int, args):
    if kind == "topkv":
        if args.random_rows:
            return random_topk(model, tokens, args)
        cache = hf.TopkCache(model.config, max_cache_len=tokens, **topk_options(args))
    elif args.random_rows:
        return random_dynamic(model, tokens, args, offloading=kind == "offloaded")
    else:
        cache = DynamicCache(config=model.config, offloading=kind == "offloaded")
    read(model, cache, tokens, args.chunk)
    return cache


def measure_decode(name: str, model, tokens: int, args) -> dict:
    kind, _, kernel = name.partition(":")

    def kernels():
        return sdpa_kernel([KERNELS[kernel], SDPBackend.MATH]) if kernel else nullcontext()

    device = model.device
    memory = Memory(device)
    start = time.perf_counter()
    cache = make_filled(kind, model, tokens, args)
    wait(device)
    filled = time.perf_counter() - start
    prefill_peak = memory.torch_peak()
    if kind == "topkv":
        start = time.perf_counter()
        cache.freeze()
        indexed = time.perf_counter() - start
    token = torch.zeros((1, 1), dtype=torch.long, device=device)
    times = []
    for step in range(WARM_UP + args.tokens):
        if step == WARM_UP:
            memory.begin_phase()
        wait(device)
        start = time.perf_counter()
        with kernels():
            logits = model(token, past_key_values=cache, use_cache=True).logits
        token = logits[:, -1:].argmax(-1)
        wait(device)
        times.append(time.perf_counter() - start)
    result = {
        "cache": name,
        "context": tokens,
        "fill_seconds": filled,
        "ms_per_token": 1e3 * statistics.median(times[WARM_UP:]),
        "ms_slowest": 1e3 * max(times[WARM_UP:]),
        "tokens_per_second": 1 / statistics.median(times[WARM_UP:]),
        "torch_peak_prefill": prefill_peak,
        "torch_peak_decode": memory.torch_peak(),
        "topkv_bytes": device_bytes(cache),
        "driver_bytes": memory.taken(),
        "weights_bytes": memory.allocated if memory.cuda else 0,
        "gpu_peak": memory.peak(),
        "host_peak": host_peak(),
    }
    if kind == "topkv":
        stats = cache.stats()[0]
        held = cache.memory()
        result |= {
            "index_seconds": indexed,
            "host_rows": held.rows,
            "host_index": held.index,
            "rows_per_step": stats.rows_retrieved / max(stats.steps, 1),
            "search_ms": 1e3 * stats.search_seconds / len(times),
            "attend_ms": 1e3 * stats.attend_seconds / len(times),
        }
    del cache
    return result


class Clock:
    """A stopping criterion that never stops and notes when each token was there."""

    def __init__(self):
        self.times = []

    def __call__(self, input_ids, scores, **_):
        wait(input_ids.device)
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def measure_needles(model, tokenizer, tokens: int, seed: int, args) -> dict:
    device = model.device
    memory = Memory(device)
    needles = make_needles(10, seed=seed)
    text = text_with(needles, tokens - QUESTION, tokenizer)
    ids = torch.tensor([text], device=device)
    cache = hf.TopkCache(model.config, max_cache_len=len(text), **topk_options(args))
    greedy = {"do_sample": False, "past_key_values": cache}
    start = time.perf_counter()
    model.generate(ids, max_new_tokens=1, prefill_chunk_size=args.chunk, **greedy)
    wait(device)
    prefill = time.perf_counter() - start
    prefill_peak = memory.torch_peak()
    start = time.perf_counter()
    cache.freeze()
    indexed = time.perf_counter() - start
    memory.begin_phase()
    found, times, misses = 0, [], []
    topkv_bytes = 0
    for needle in needles:
        question = tokenizer.encode(needle.question, add_special_tokens=False)
        asked = torch.tensor([text + question], device=device)
        clock = Clock()
        session = cache.session()
        greedy["past_key_values"] = session
        out = model.generate(asked, max_new_tokens=12, stopping_criteria=[clock], **greedy)
        answer = tokenizer.decode(out[0, asked.shape[1] :])
        found += needle.value in answer
        if needle.value not in answer:
            misses.append([round(needle.depth, 2), needle.value, answer])
        times += [b - a for a, b in zip(clock.times, clock.times[1:])]
        topkv_bytes = max(topkv_bytes, device_bytes(session))
    held = cache.memory()
    return {
        "cache": "topkv",
        "context": len(text),
        "seed": seed,
        "found": found,
        "of": len(needles),
        "misses": misses,
        "fill_seconds": prefill,
        "index_seconds": indexed,
        "ms_per_token": 1e3 * statistics.median(times),
        "torch_peak_prefill": prefill_peak,
        "torch_peak_decode": memory.torch_peak(),
        "topkv_bytes": topkv_bytes,
        "driver_bytes": memory.taken(),
        "host_rows": held.rows,
        "host_index": held.index,
    }


def slope(results: list[dict], what) -> float:
    """GPU bytes per token of context, by least squares."""
    x = [r["context"] for r in results]
    y = [what(r) for r in results]
    mean_x, mean_y = statistics.mean(x), statistics.mean(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / spread


def show(results: list[dict]) -> None:
    head = ("cache", "context", "fill s", "index s", "ms/token", "GPU MiB", "driver MiB", "found")
    print(("{:>16}" + "{:>11}" * (len(head) - 1)).format(*head))
    for r in results:
        if "error" in r:
            print(f"{r['cache']:>16}{r['context']:>11}  {r['error']}")
            continue
        gpu = r["torch_peak_decode"] + r["topkv_bytes"]
        found = f"{r['found']}/{r['of']}" if "found" in r else ""
        index = f"{r['index_seconds']:.1f}" if "index_seconds" in r else ""
        print(
            f"{r['cache']:>16}{r['context']:>11}{r['fill_seconds']:>11.1f}{index:>11}"
            f"{r['ms_per_token']:>11.2f}{gpu / 2**20:>11.0f}{r['driver_bytes'] / 2**20:>11.0f}"
            f"{found:>11}"
        )
    for kind in dict.fromkeys(r["cache"] for r in results):
        mine = [r for r in results if r["cache"] == kind and "error" not in r]
        if len({r["context"] for r in mine}) > 1:
            decode = slope(mine, lambda r: r["torch_peak_decode"] + r["topkv_bytes"])
            print(f"{kind}: {decode:.1f} GPU bytes per token of context")


def main() -> None:
    # --own-process is taken out of the arguments by its whole name.
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--model", default=None, help="directory of a checkpoint")
    source.add_argument("--shape", choices=SHAPES, help="random bf16 weights of this shape")
    parser.add_argument(
        "--weights", default="bf16", choices=["bf16", "int8", "int4"], help="by torchao or bitsandbytes"
    )
    parser.add_argument("--own-process", action="store_true", help="for every cache")
    parser.add_argument("--contexts", default="4Ki", help="such as 32Ki,128Ki,1Mi")
    parser.add_argument(
        "--caches", default="topkv,dynamic,dynamic:flash,offloaded,offloaded:flash"
    )
    parser.add_argument("--random-rows", action="store_true", help="K and V of no text")
    parser.add_argument("--needles", action="store_true", help="ask for ten facts")
    parser.add_argument("--texts", type=int, default=1, help="with --needles: texts per context")
    parser.add_argument("--tokens", type=int, default=32, help="tokens timed")
    parser.add_argument("--chunk", type=int, default=8192, help="prefill_chunk_size")
    parser.add_argument("--k", default="256")
    parser.add_argument("--index", default="exact", help='a spec, or "default": TopkCache\'s own')
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--sinks", type=int, default=4)
    parser.add_argument("--dense-layers", type=int, default=0)
    parser.add_argument("--prefill", default="dense", choices=["dense", "window"])
    parser.add_argument("--device-memory", type=int, default=0, help="bytes; 0: what is free")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", help="write the results there")
    args = parser.parse_args()
    if not args.shape and not args.model:
        args.model = str(REPOSITORY / "models" / "needle-14m")

    if args.own_process and args.needles:
        parser.error("--own-process is of --caches, and --needles asks topkv alone: leave one out")

    results = in_own_processes(args) if args.own_process else measure(args)
    show(results)
    if args.json:
        Path(args.json).write_text(json.dumps({"arguments": vars(args), "results": results}))


def in_own_processes(args) -> list[dict]:
    """Each cache and context in a process that had no other."""
    results = []
    own = [x for x in sys.argv[1:] if x != "--own-process"]
    for tokens in args.contexts.split(","):
        for kind in args.caches.split(","):
            command = [sys.executable, __file__, *own, "--contexts", tokens, "--caches", kind]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            lines = [x for x in done.stdout.splitlines() if x.startswith("{")]
            if done.returncode:
                error = f"the process exited with {done.returncode}"
                lines = [json.dumps({"cache": kind, "context": tokens_of(tokens), "error": error})]
            print("\n".join(lines), flush=True)
            results += map(json.loads, lines)
    return results


def measure(args) -> list[dict]:
    results = []
    with torch.no_grad():  # packages replace parameters, which inference mode would freeze
        model, weights = load(args)
    with torch.inference_mode():
        for tokens in map(tokens_of, args.contexts.split(",")):
            caches = ["topkv"] * args.texts if args.needles else args.caches.split(",")
            for number, kind in enumerate(caches):
                if kind.startswith("offloaded") and model.device.type != "cuda":
                    print("offloaded: needs a CUDA device; left out")
                    continue
                try:
                    if args.needles:
                        tokenizer = load_tokenizer(args.model)
                        results.append(measure_needles(model, tokenizer, tokens, number, args))
                    else:
                        length = tokens - number * (WARM_UP + args.tokens)
                        results.append(measure_decode(kind, model, length, args))
                except (torch.OutOfMemoryError, topkv.OutOfMemory) as error:
                    text = str(error).splitlines()[0]
                    results.append({"cache": kind, "context": tokens, "error": text})
                results[-1]["weights"] = weights
                print(json.dumps(results[-1]), flush=True)
    return results


if __name__ == "__main__":
    main()
