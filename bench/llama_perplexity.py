#!/usr/bin/env python3
"""Compares topkv with llama-perplexity of llama.cpp, over its files of log probabilities.

    llama-perplexity -m MODEL.gguf -f TEXT -c 512 --kl-divergence-base base.kld
    python bench/llama_perplexity.py save -m MODEL.gguf base.kld topkv.kld --kv-dtype q8
    python bench/llama_perplexity.py compare base.kld topkv.kld

`compare` prints the statistics of `llama-perplexity --kl-divergence`, computed in float64 from two
files: how predictions of the second differ from those of the first. `save` lets topkv score the
tokens of a file that llama-perplexity wrote, and writes a file of the same format. A context is read
densely, up to the first token that is scored. The other tokens are fed to a session one by one, as in
`topkv perplexity`. llama-perplexity reads such a file, too: with --kl-divergence it prints how its own
predictions differ from topkv's.

A file has the tokens of all chunks, and for the second half of each chunk a log probability of every
token of the vocabulary, as a multiple of a scale above a least value, in 16 bits. The least value is
16 nats below the most likely token; less likely tokens get it, too. As llama-perplexity does, `compare`
leaves out tokens whose log probability is -16 or less in the first file.
"""

import argparse
import struct

import numpy as np

MAGIC = b"_logits_"
LEAST = 16.0  # nats


class Chunks:
    """A file of log probabilities."""

    def __init__(self, path):
        with open(path, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise SystemExit(f"{path}: not a file of llama-perplexity --kl-divergence-base")
            self.length, self.vocabulary, self.count = struct.unpack("<3i", file.read(12))
            self.tokens = np.fromfile(file, "<i4", self.count * self.length).reshape(self.count, self.length)
            at = file.tell()
        self.scored = self.length - 1 - self.length // 2  # the last tokens of a chunk
        shape = (self.count, self.scored, row_words(self.vocabulary))
        self.rows = np.memmap(path, "<u2", "r", at, shape)

    def log_probabilities(self, chunk):
        """float64 [scored, vocabulary]"""
        rows = np.ascontiguousarray(self.rows[chunk])
        scale, least = rows[:, :4].copy().view("<f4").astype(np.float64).T
        return scale[:, None] * rows[:, 4 : 4 + self.vocabulary] + least[:, None]


def row_words(vocabulary):
    """16-bit words of a token: scale and least value in float32, then an even number of multiples."""
    return 4 + 2 * ((vocabulary + 1) // 2)


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def packed(log_p):
    """The rows of a file, from float64 [scored, vocabulary]."""
    high = log_p.max(axis=1)
    least = np.maximum(log_p.min(axis=1), high - LEAST).astype(np.float32)
    scale = ((high - least) / 65535).astype(np.float32)
    rows = np.zeros((len(log_p), row_words(log_p.shape[1])), "<u2")
    rows[:, :4] = np.stack([scale, least], axis=1).astype("<f4").view("<u2")
    multiples = np.divide(log_p - least[:, None], scale[:, None], out=np.zeros_like(log_p), where=scale[:, None] > 0)
    rows[:, 4 : 4 + log_p.shape[1]] = np.clip(np.rint(multiples), 0, 65535)
    return rows


def save(options):
    import topkv  # here, because `compare` does not need it

    base = Chunks(options.base)
    model = topkv.Model.load(options.model, options.device)
    first = [int(token) for token in model.tokenizer().encode("", True)]  # begins a text
    if len(first) > 1:
        raise SystemExit(f"{options.model}: {len(first)} tokens begin a text; expected one at most")
    retrieval = {"dense_layers": model.config.attention.layers}
    if options.kv_topk:
        retrieval = {"index": options.kv_index, "k": options.kv_topk, "window": options.kv_window}
    read = base.length - base.scored - 1
    with open(options.to, "wb") as file:
        file.write(MAGIC + struct.pack("<3i", base.length, base.vocabulary, base.count))
        file.write(base.tokens.astype("<i4").tobytes())
        for chunk in base.tokens:
            tokens = [int(token) for token in chunk]
            tokens[: len(first)] = first  # as llama-perplexity does
            context = model.prefill(tokens[:read], "dense", kv_dtype=options.kv_dtype)
            if options.kv_topk:
                context = context.with_index(options.kv_index)
            session = topkv.Session(context, model.device, capacity=base.scored + 1, **retrieval)
            logits = np.concatenate([model.logits(session, [token]) for token in tokens[read:-1]])
            file.write(packed(log_softmax(logits)).tobytes())


def percentile(ordered, share):
    return float(np.quantile(ordered, share, method="linear"))


def mean_and_error(values):
    """The mean and its standard error, of values that are taken as independent."""
    return values.mean(), np.sqrt((np.mean(values**2) - values.mean() ** 2) / (len(values) - 1))


def compare(options):
    base, other = Chunks(options.base), Chunks(options.other)
    if not np.array_equal(base.tokens, other.tokens) or base.vocabulary != other.vocabulary:
        raise SystemExit(f"{options.base} and {options.other}: of other tokens or another vocabulary")
    kl, nats, nats_base, same = [], [], [], 0
    for chunk in range(base.count):
        p, q = base.log_probabilities(chunk), other.log_probabilities(chunk)
        weights = np.where(p > -LEAST, np.exp(p), 0)
        kl.append((weights * (p - q)).sum(axis=1))
        same += int((p.argmax(axis=1) == q.argmax(axis=1)).sum())
        at = np.arange(base.scored), base.tokens[chunk, -base.scored :]
        nats_base.append(-p[at])
        nats.append(-q[at])
    kl, nats, nats_base = (np.concatenate(parts) for parts in (kl, nats, nats_base))
    delta_p = np.exp(-nats) - np.exp(-nats_base)

    print(f"{len(kl)} tokens, {base.count} chunks of {base.length}")
    for name, values in (("PPL(Q)   ", nats), ("PPL(base)", nats_base)):
        mean, error = mean_and_error(values)
        print(f"Mean {name}            : {np.exp(mean):10.6f} ± {np.exp(mean) * error:10.6f}")
    print(f"Cor(ln(PPL(Q)), ln(PPL(base))): {100 * np.corrcoef(nats, nats_base)[0, 1]:6.2f}%")
    mean, error = mean_and_error(nats - nats_base)
    print(f"Mean ln(PPL(Q)/PPL(base)): {mean:10.6f} ± {error:10.6f}")
    mean, error = mean_and_error(kl)
    print(f"Mean    KLD: {mean:10.6f} ± {error:10.6f}")
    kl.sort()
    print(f"Maximum KLD: {kl[-1]:10.6f}")
    for share in (0.999, 0.99, 0.95, 0.9, 0.5, 0.1, 0.05, 0.01, 0.001):
        label = "Median " if share == 0.5 else f"{100 * share:4.1f}%  "
        print(f"{label} KLD: {percentile(kl, share):10.6f}")
    print(f"Minimum KLD: {kl[0]:10.6f}")
    mean, error = mean_and_error(delta_p)
    print(f"Mean    Δp: {100 * mean:6.3f} ± {100 * error:5.3f} %")
    delta_p.sort()
    print(f"Maximum Δp: {100 * delta_p[-1]:6.3f}%")
    for share in (0.999, 0.99, 0.95, 0.9, 0.75, 0.5, 0.25, 0.1, 0.05, 0.01, 0.001):
        label = "Median " if share == 0.5 else f"{100 * share:4.1f}%  "
        print(f"{label} Δp: {100 * percentile(delta_p, share):6.3f}%")
    print(f"Minimum Δp: {100 * delta_p[0]:6.3f}%")
    mean, error = mean_and_error(delta_p**2)
    print(f"RMS Δp    : {100 * np.sqrt(mean):6.3f} ± {100 * error / 2 / np.sqrt(mean) if mean else 0:5.3f} %")
    share = same / len(kl)
    print(f"Same top p: {100 * share:6.3f} ± {100 * np.sqrt(share * (1 - share) / (len(kl) - 1)):5.3f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("compare", help="print the statistics of two files")
    command.add_argument("base")
    command.add_argument("other")
    command.set_defaults(run=compare)
    command = commands.add_parser("save", help="write a file of topkv's log probabilities")
    command.add_argument("-m", "--model", required=True)
    command.add_argument("base", help="score the tokens of this file")
    command.add_argument("to")
    command.add_argument("--device", default="cpu")
    command.add_argument("--kv-dtype", default="f32")
    command.add_argument("--kv-topk", type=int, help="retrieve K rows; without it, attention is dense")
    command.add_argument("--kv-index", default="exact")
    command.add_argument("--kv-window", type=int, default=1024)
    command.set_defaults(run=save)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
