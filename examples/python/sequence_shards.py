"""Asks ten questions about one text whose rows are spread over the hosts of a cluster.

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-id text --rdzv-backend c10d \\
        --rdzv-endpoint HOST:29400 examples/python/sequence_shards.py

is started on two hosts; HOST is one of them. Each process has the model and a part of the rows, and
every process computes the same answers. Without torchrun one process has all rows.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
import topkv.hf
from needles import NEEDLE_14M, load_tokenizer, make_needles, text_with
from transformers import AutoModelForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(NEEDLE_14M), help="directory of a checkpoint")
    parser.add_argument("--tokens", type=int, default=16384, help="length of the text")
    parser.add_argument("--k", type=int, default=64, help="rows that a process retrieves")
    parser.add_argument("--window", type=int, default=1024, help="last tokens of each process")
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    device, rank, ranks = torch.device(args.device), 0, 1
    if "RANK" in os.environ:  # torchrun sets it
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        rank, ranks = dist.get_rank(), dist.get_world_size()

    tokenizer = load_tokenizer(args.model)
    dtype = torch.float32 if device.type == "cpu" else "auto"
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).to(device).eval()
    needles = make_needles(10)
    text = text_with(needles, args.tokens, tokenizer)

    start = time.perf_counter()
    cache = topkv.hf.TopkCache(
        model.config,
        k=args.k,
        window=args.window,
        max_cache_len=len(text),
        shard="sequence" if ranks > 1 else None,
        progress=False,
    )
    for first in range(0, len(text), args.chunk):
        part = torch.tensor([text[first : first + args.chunk]], device=device)
        model(part, past_key_values=cache, use_cache=True, logits_to_keep=1)
    cache.freeze()
    seconds = time.perf_counter() - start
    part = f"{cache.context.tokens} of {len(text)} tokens, {cache.memory().rows / 2**20:.1f} MiB"
    print(f"rank {rank} of {ranks} has {part}, read in {seconds:.1f} s", flush=True)

    right = 0
    for needle in needles:
        question = tokenizer.encode(needle.question, add_special_tokens=False)
        ids = torch.tensor([text + question], device=device)
        out = model.generate(
            ids, past_key_values=cache.session(), max_new_tokens=12, do_sample=False
        )
        answer = tokenizer.decode(out[0, ids.shape[1] :]).strip().splitlines()[0]
        right += needle.value in answer
        asked = f"depth {needle.depth:4.0%}: {answer!r}, expected {needle.value}"
        print(f"rank {rank}, {asked}", flush=True)
    print(f"rank {rank}: {right} of {len(needles)} right", flush=True)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    with torch.inference_mode():
        main()
