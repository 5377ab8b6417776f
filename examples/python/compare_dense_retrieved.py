"""Generates from one prompt twice: every token attending everything, and attending k rows.

    python examples/python/compare_dense_retrieved.py
    python examples/python/compare_dense_retrieved.py --model DIR --tokens 32768 --k 128 --device cuda

Prints both answers, the time per token, and how far the retrieved logits are from the dense ones.
"""

from __future__ import annotations

import argparse
import time

import torch
import topkv.hf
from needles import NEEDLE_14M, load_tokenizer, make_needles, text_with
from transformers import AutoModelForCausalLM, DynamicCache


def generate(model, ids, cache, chunk):
    """Tokens, their logits, and seconds: of reading the prompt, and per token after that."""
    start = time.perf_counter()
    how = {"past_key_values": cache, "do_sample": False, "prefill_chunk_size": chunk}
    first = model.generate(ids, max_new_tokens=1, **how)
    read = time.perf_counter() - start
    start = time.perf_counter()
    how.pop("prefill_chunk_size")
    out = model.generate(
        first, max_new_tokens=15, output_logits=True, return_dict_in_generate=True, **how
    )
    seconds = (time.perf_counter() - start) / 15
    return out.sequences[0, ids.shape[1] :], torch.cat(out.logits).float(), read, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(NEEDLE_14M), help="directory of a checkpoint")
    parser.add_argument("--tokens", type=int, default=4096, help="length of the prompt")
    parser.add_argument("--k", type=int, default=64, help="rows retrieved per query head")
    parser.add_argument("--index", help="such as exact [codes that suit the model's heads]")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    tokenizer = load_tokenizer(args.model)
    dtype = torch.float32 if args.device == "cpu" else "auto"
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).to(args.device).eval()
    (needle,) = make_needles(1)
    ids = text_with([needle], args.tokens, tokenizer)
    ids += tokenizer.encode(needle.question, add_special_tokens=False)
    ids = torch.tensor([ids], device=args.device)
    print(f"{ids.shape[1]} tokens; the answer is {needle.value}\n")

    caches = {
        "dense": DynamicCache(config=model.config),
        f"k = {args.k}": topkv.hf.TopkCache(
            model.config, index=args.index, k=args.k, window=args.window
        ),
    }
    logits = []
    for name, cache in caches.items():
        tokens, these, read, seconds = generate(model, ids, cache, args.chunk)
        logits.append(these)
        print(f"{name}:{tokenizer.decode(tokens)!r}")
        print(f"  read in {read:.2f} s, {1e3 * seconds:.1f} ms per token")
    dense, retrieved = logits
    far = (dense - retrieved).abs().amax(-1) / dense.abs().amax(-1)
    print(f"\nlogits of the first token differ by {float(far[0]):.2e} of the largest")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
