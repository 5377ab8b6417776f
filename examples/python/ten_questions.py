"""Reads one long text once and asks it ten questions, each in a session of its own.

    python examples/python/ten_questions.py
    python examples/python/ten_questions.py --tokens 131072 --device cuda

The sessions share the text's rows; only the question and the answer are run.
"""

from __future__ import annotations

import argparse
import time

import torch
import topkv.hf
from needles import NEEDLE_14M, load_tokenizer, make_needles, text_with
from transformers import AutoModelForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(NEEDLE_14M), help="directory of a checkpoint")
    parser.add_argument("--tokens", type=int, default=16384, help="length of the text")
    parser.add_argument("--k", type=int, default=64, help="rows retrieved per query head")
    parser.add_argument("--index", help="such as exact [codes that suit the model's heads]")
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    tokenizer = load_tokenizer(args.model)
    dtype = torch.float32 if args.device == "cpu" else "auto"
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).to(args.device).eval()
    needles = make_needles(10)
    text = text_with(needles, args.tokens, tokenizer)

    start = time.perf_counter()
    cache = topkv.hf.TopkCache(model.config, index=args.index, k=args.k)
    for first in range(0, len(text), args.chunk):
        part = torch.tensor([text[first : first + args.chunk]], device=args.device)
        model(part, past_key_values=cache, use_cache=True, logits_to_keep=1)
    cache.freeze()
    print(f"read {len(text)} tokens in {time.perf_counter() - start:.1f} s", end="; ")
    print(f"rows take {cache.memory().rows / 2**20:.0f} MiB of host memory\n")

    right = 0
    for needle in needles:
        start = time.perf_counter()
        question = tokenizer.encode(needle.question, add_special_tokens=False)
        ids = torch.tensor([text + question], device=args.device)
        out = model.generate(
            ids, past_key_values=cache.session(), max_new_tokens=12, do_sample=False
        )
        answer = tokenizer.decode(out[0, ids.shape[1] :]).strip().splitlines()[0]
        right += needle.value in answer
        seconds = time.perf_counter() - start
        print(f"depth {needle.depth:4.0%}: {answer!r}, expected {needle.value}, {seconds:.2f} s")
    print(f"\n{right} of {len(needles)} right")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
