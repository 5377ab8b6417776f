#!/usr/bin/env python3
"""What rounding a model's weights to 8 and 4 bits does to it: KL divergence of the next token's
distribution from that of the weights as they are stored, error of the logits relative to their
size, how often the likeliest token is the same, and perplexity, over a text.

    python bench/rounded_weights.py -m models/needle-14m README.md docs/*.md
"""

import argparse
import pathlib
import time

import numpy as np

import topkv


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def surprise(logs, piece):
    """Sum of -log p of each token but the first."""
    return -float(logs[np.arange(len(piece) - 1), piece[1:]].sum())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", default="models/needle-14m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=16384, help="of the text, at most")
    parser.add_argument("--piece", type=int, default=512, help="tokens read at a time")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()

    model = topkv.Model.load(arguments.model, arguments.device)
    text = "".join(file.read_text() for file in arguments.files)
    tokens = model.tokenizer().encode(text)[: arguments.tokens]
    pieces = [tokens[i : i + arguments.piece] for i in range(0, len(tokens), arguments.piece)]
    wanted = [model.logits(piece) for piece in pieces]
    size = np.sqrt(sum(float((w.astype(np.float64) ** 2).sum()) for w in wanted))
    guessed = len(tokens) - len(pieces)  # the first of a piece is given
    plain = sum(surprise(log_softmax(w), p) for w, p in zip(wanted, pieces))
    print(
        f"{arguments.model}, {len(tokens)} tokens in pieces of {arguments.piece}:"
        f" perplexity {np.exp(plain / guessed):.4f}"
    )
    for weights in ("int8", "int4"):
        start = time.perf_counter()
        rounded = topkv.Model.load(arguments.model, arguments.device, weights=weights)
        loaded = time.perf_counter() - start
        plan = topkv.Model.plan(arguments.model, arguments.device, weights=weights)
        kl = same = off = told = 0.0
        for piece, want in zip(pieces, wanted):
            got = rounded.logits(piece)
            p, q = log_softmax(want), log_softmax(got)
            kl += float((np.exp(p) * (p - q)).sum())
            told += surprise(q, piece)
            same += float((want.argmax(axis=1) == got.argmax(axis=1)).sum())
            off += float(((want.astype(np.float64) - got) ** 2).sum())
        print(
            f"{weights}  {plan.weights_bytes / 2**20:.1f} MiB, loaded in {loaded:.2f} s:"
            f"  KL {kl / len(tokens):.5f}  error of logits {np.sqrt(off) / size:.4f}"
            f"  same token {100 * same / len(tokens):.1f} %"
            f"  perplexity {np.exp(told / guessed):.4f}"
        )


if __name__ == "__main__":
    main()
