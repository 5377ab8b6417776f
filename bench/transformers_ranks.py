"""One context over several processes: transformers' tensor parallelism, or sharded by sequence.

    python bench/transformers_ranks.py --context 128Ki --save tokens.json
    torchrun --nproc_per_node 2 bench/transformers_ranks.py --how tensor --expect tokens.json
    torchrun --nproc_per_node 2 bench/transformers_ranks.py --how sequence --expect tokens.json

Reads a text with ten facts, asks for each in a session of its own, and prints per rank the rows it
holds, its memory, and times. --expect: the tokens must be those that one process saved.
--interface: counts the bytes that a network interface of this host sends for a token. A token counts
if it is fed while a question is asked: the question's tokens, and the answer's without the last.
Tensor parallelism needs accelerate.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from topkv import hf
from transformers import AutoModelForCausalLM
from transformers_decode import (
    REPOSITORY,
    Clock,
    Memory,
    device_bytes,
    load_tokenizer,
    make_needles,
    text_with,
    tokens_of,
    wait,
)


def load(args, device: torch.device):
    kwargs = {"dtype": torch.bfloat16 if device.type == "cuda" else torch.float32}
    if args.how == "tensor":
        from transformers.distributed import DistributedConfig

        kwargs["distributed_config"] = DistributedConfig(tp_plan="auto")
    return AutoModelForCausalLM.from_pretrained(args.model, **kwargs).to(device).eval()


def bytes_sent(interface: str | None) -> int:
    """By all programs of this host, since it started."""
    if interface is None:
        return 0
    return int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


def run(args, device: torch.device) -> dict:
    tokenizer = load_tokenizer(args.model)
    model = load(args, device)
    needles = make_needles(10)
    text = text_with(needles, args.context, tokenizer)
    memory = Memory(device)
    cache = hf.TopkCache(
        model.config,
        index=args.index,
        k=args.k,
        window=args.window,
        max_cache_len=len(text),
        prefill=args.prefill,
        shard="sequence" if args.how == "sequence" else None,
    )
    start = time.perf_counter()
    ids = torch.tensor([text], device=device)
    how = {"do_sample": False, "prefill_chunk_size": args.chunk, "max_new_tokens": 1}
    model.generate(ids, past_key_values=cache, **how)
    wait(device)
    prefill = time.perf_counter() - start
    cache.freeze()
    answers, times, found, sent, cpu = [], [], 0, [], []
    session_bytes = 0
    for needle in needles:
        question = tokenizer.encode(needle.question, add_special_tokens=False)
        asked = torch.tensor([text + question], device=device)
        clock, session = Clock(), cache.session()
        before = bytes_sent(args.interface), time.process_time()
        out = model.generate(
            asked,
            past_key_values=session,
            max_new_tokens=12,
            do_sample=False,
            stopping_criteria=[clock],
        )
        fed = out.shape[1] - len(text) - 1
        sent.append((bytes_sent(args.interface) - before[0]) / fed)
        cpu.append((time.process_time() - before[1]) / fed)
        answers.append(out[0, asked.shape[1] :].tolist())
        found += needle.value in tokenizer.decode(answers[-1])
        times += [b - a for a, b in zip(clock.times, clock.times[1:])]
        session_bytes = max(session_bytes, device_bytes(session))
    shape = cache.context.shape
    return {
        "how": args.how,
        "rank": int(os.environ.get("RANK", 0)),
        "context": len(text),
        "tokens_here": cache.context.tokens,
        "kv_heads_here": shape.kv_heads,
        "host_rows": cache.memory().rows,
        "host_index": cache.memory().index,
        "host_peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "topkv_bytes": session_bytes,
        "driver_bytes": memory.taken(),
        "prefill_seconds": prefill,
        "ms_per_token": 1e3 * statistics.median(times),
        "cpu_ms_per_token": 1e3 * statistics.median(cpu),
        "sent_bytes_per_token": statistics.median(sent),
        "found": found,
        "answers": answers,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", choices=["single", "tensor", "sequence"], default="single")
    parser.add_argument("--model", default=str(REPOSITORY / "models" / "needle-14m"))
    parser.add_argument("--context", type=tokens_of, default=tokens_of("8Ki"))
    parser.add_argument("--prefill", default="auto", help="auto, dense or window; by sequence only dense")
    parser.add_argument("--interface", help="such as eth0")
    parser.add_argument("--chunk", type=int, default=8192)
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--index", default="exact")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--save", help="write the answers' tokens there")
    parser.add_argument("--expect", help="answers' tokens to compare with")
    args = parser.parse_args()

    device = torch.device(args.device)
    if args.how != "single":
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    with torch.inference_mode():
        result = run(args, device)
    answers = result.pop("answers")
    if args.expect:
        expected = json.loads(Path(args.expect).read_text())
        result["answers_equal"] = sum(a == b for a, b in zip(answers, expected, strict=True))
    if args.save:
        Path(args.save).write_text(json.dumps(answers))
    print(json.dumps(result), flush=True)
    if args.how != "single":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
