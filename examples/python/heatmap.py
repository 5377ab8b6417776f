"""Needles over context lengths and depths, through transformers and topkv.hf, as a heatmap.

    python examples/python/heatmap.py
    python examples/python/heatmap.py --lengths 128Ki,512Ki,1Mi --k 64 --window 1024

One text for each length holds the needles of all depths. It is read densely once and frozen; each
question is a session over it, which reads the question and answers with retrieval. Writes
heatmap.csv and heatmap.png into --output.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

import torch
from needles import NEEDLE_14M, load_tokenizer, make_needles, text_with
from transformers import AutoModelForCausalLM

import topkv.hf
import topkv.plot


def tokens_of(text: str) -> int:
    units = {"Ki": 2**10, "Mi": 2**20}
    return int(text[:-2]) * units[text[-2:]] if text[-2:] in units else int(text)


def read(model, text: torch.Tensor, chunk: int, options: dict) -> topkv.hf.TopkCache:
    cache = topkv.hf.TopkCache(model.config, max_cache_len=text.shape[1], **options)
    for begin in range(0, text.shape[1], chunk):
        model(text[:, begin : begin + chunk], past_key_values=cache, logits_to_keep=1)
    return cache.freeze()


def ask(model, tokenizer, cache, text: torch.Tensor, question: str) -> str:
    """The first line of the answer, from a session of its own."""
    asked = tokenizer.encode(question, add_special_tokens=False)
    ids = torch.cat((text, torch.tensor([asked], device=text.device)), dim=1)
    new = model.generate(
        ids, past_key_values=cache.session(), attention_mask=torch.ones_like(ids),
        max_new_tokens=12, do_sample=False, pad_token_id=0,
    )
    return tokenizer.decode(new[0, ids.shape[1] :]).split("\n")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=str(NEEDLE_14M))
    parser.add_argument("--lengths", default="1Ki,2Ki,4Ki")
    parser.add_argument("--depths", default="0,25,50,75,100", help="percent of the text")
    parser.add_argument("--index", help="such as exact [codes that suit the model's heads]")
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--chunk", type=int, default=8192, help="tokens read at a time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/heatmap"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(args.model)
    dtype = torch.float32 if args.device == "cpu" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).to(args.device).eval()
    options = {"index": args.index, "k": args.k, "window": args.window}

    depths = sorted(map(float, args.depths.split(",")))
    rows = []
    for seed, length in enumerate(map(tokens_of, args.lengths.split(","))):
        needles = make_needles(len(depths), seed)
        for needle, depth in zip(needles, depths):
            needle.depth = depth / 100
        text = torch.tensor([text_with(needles, length, tokenizer)], device=model.device)
        with torch.inference_mode():
            begin = time.perf_counter()
            cache = read(model, text, args.chunk, options)
            index = cache.context.indices()[-1]
            print(f"{length} tokens read in {time.perf_counter() - begin:.1f} s", flush=True)
            for needle in needles:
                begin = time.perf_counter()
                answer = ask(model, tokenizer, cache, text, needle.question)
                seconds = time.perf_counter() - begin
                rows.append({
                    "context_tokens": length, "depth": 100 * needle.depth, "index": index,
                    "found": needle.value in answer, "expected": needle.value,
                    "answer": answer.strip(), "seconds": round(seconds, 3),
                })
                print(", ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)

    with open(args.output / "heatmap.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    figure = topkv.plot.needle_heatmap(args.output / "heatmap.csv")
    figure.savefig(args.output / "heatmap.png", dpi=150)
    print(f"found {sum(row['found'] for row in rows)} of {len(rows)}; "
          f"{args.output / 'heatmap.csv'}, {args.output / 'heatmap.png'}")


if __name__ == "__main__":
    main()
