#!/usr/bin/env python3
"""The error that sessions with codes expect, beside the true one, and the parts of both.

transformers runs a model over a text (captured_attention.py). The true error is
|out - dense| / |dense| of a query head, with dense attention in float64. Two tables:

- For each model, what sessions report (TailFigures.error) beside the true error of their outputs.
- The parts, from codes that NumPy makes by the rules of index/codes: `values`, the error with true
  weights and coded values; `scores`, with coded weights and true values; `found`, the rows that
  codes put below the threshold of a scan although they score above it. Beside them the expected
  parts `E values`, `E scores` and `E shared`, whose squares sessions add up.

Errors of scores are q·r, where r is a key less its code. The errors of many rows do not cancel when
r is correlated with the values. `E shared` is that part to first order: the tail's share of the
weights times |scale Cᵀ q|, where C is the covariance of keys and values over all rows, less the
covariance of what their codes stand for. Its square is a product of two halves of the rows, so that
it is 0 on average for rows without a covariance.

    python bench/expected_error.py -m models/needle-14m -c 16000 --keys 16 --join README.md docs/*.md
"""

import argparse
import math

import captured_attention
import numpy as np

import topkv

LEFT = {0: 1.0, 2: 0.1188, 4: 0.01154}  # of the variance of an axis, by its bits
STEPS = {2: 0.9957, 4: 0.3352}  # of levels, in standard deviations
NORMAL = np.vectorize(lambda z: max(0.5 * math.erfc(-z / math.sqrt(2)), 1e-300))


def axes_of(rows):
    mean = rows.mean(0)
    variances, axes = np.linalg.eigh(np.cov((rows - mean).T))
    order = np.argsort(-variances)
    return mean, np.maximum(variances[order], 0), axes[:, order]


def coded_keys(keys, size):
    """Decoded keys, their axes, the variance left along each axis, and the rare keys."""
    mean, variances, axes = axes_of(keys)
    bits = np.zeros(len(variances), int)
    for _ in range(4 * size):
        gain = [v * (LEFT[b] - LEFT[b + 2]) if b < 4 else -1 for v, b in zip(variances, bits)]
        bits[int(np.argmax(gain))] += 2
    along = (keys - mean) @ axes
    decoded = np.zeros_like(along)
    for axis in np.flatnonzero(bits):
        most = 2 ** bits[axis] - 1
        step = STEPS[bits[axis]] * math.sqrt(variances[axis])
        codes = np.clip(np.round(along[:, axis] / step + most / 2), 0, most)
        decoded[:, axis] = np.polyval(np.polyfit(codes, along[:, axis], 1), codes)
    off = along - decoded
    rare = np.argsort(-(off**2).sum(1))[: len(keys) // 256]
    return mean + decoded @ axes.T, axes, (off**2).mean(0), rare


def coded_values(values, bits, random):
    """Decoded values, what they are on average over the random rounding, the mean squared error of
    one, and the variance of what codes stand for."""
    mean, variances, axes = axes_of(values)
    along = (values - mean) @ axes
    decoded, average = np.zeros_like(along), np.zeros_like(along)
    error, variance = variances[bits:].sum(), 0.0
    for axis in range(min(bits, len(variances))):
        x = along[:, axis]
        low, high = np.quantile(x, [1 / 64, 1 - 1 / 64])
        at = np.clip(x, low, high)
        average[:, axis] = at
        decoded[:, axis] = np.where(random.random(len(x)) < (at - low) / (high - low), high, low)
        error += ((high - at) * (at - low) + (x - at) ** 2).mean()
        variance += (high - at.mean()) * (at.mean() - low)
    return mean + decoded @ axes.T, mean + average @ axes.T, error, variance


def lost_covariance(keys, decoded_keys, values, decoded_values):
    """The covariance of keys and values, less that of what their codes stand for."""
    both = [(k - k.mean(0)).T @ (v - v.mean(0)) for k, v in ((keys, values), (decoded_keys, decoded_values))]
    return (both[0] - both[1]) / len(keys)


def parts_of(layer, given, random):
    """Relative errors of each query head: [pairs, 7]."""
    tokens, q_heads, _ = layer.queries.shape
    group = q_heads // len(layer.keys)
    rows = layer.keys.shape[1] - tokens
    found = []
    for head in range(q_heads):
        if head % group == 0:
            keys, values = (x[head // group, :rows].astype(np.float64) for x in (layer.keys, layer.values))
            stand_ins, axes, left, rare = coded_keys(keys, given.keys)
            means, average, value_error, value_variance = coded_values(values, 8 * given.values, random)
            half = np.arange(rows) * 8 // rows % 2 == 0
            halves = [lost_covariance(keys[x], stand_ins[x], values[x], average[x]) for x in (half, ~half)]
        for token in range(0, tokens, given.every):
            query = layer.queries[token, head].astype(np.float64)
            scores, coded = (layer.scale * (x @ query) for x in (keys, stand_ins))
            exact = np.ones(rows, bool)
            exact[4 : rows + token + 1 - given.window] = False
            exact[rare] = True
            rest = np.flatnonzero(~exact)
            listed = rest[np.argpartition(-coded[rest], 2 * given.k)[: 2 * given.k]]
            exact[listed] = True
            tail, threshold = np.flatnonzero(~exact), coded[listed].min()
            weights = np.exp(scores - scores.max())
            whole = weights.sum()
            dense = weights @ values / whole
            deviation = layer.scale * math.sqrt(((axes.T @ query) ** 2 * left).sum())
            below = threshold - coded[tail]
            estimated = np.exp(coded[tail] - scores.max() + deviation**2 / 2)
            estimated *= NORMAL(below / deviation - deviation) / NORMAL(below / deviation)
            mass = weights[exact].sum() + estimated.sum()
            out = (weights[exact] @ values[exact] + estimated @ means[tail]) / mass
            true_share = weights[tail] / whole
            missed = tail[scores[tail] > threshold]
            share = estimated.sum() / mass
            squares = ((estimated / estimated.sum()) ** 2).sum()
            apart = ((estimated @ means[tail] / estimated.sum() - out) ** 2).sum()
            spread = np.expm1(min(deviation**2, 60)) * squares * (value_variance + apart)
            errors = (
                np.linalg.norm(out - dense),
                np.linalg.norm(true_share @ (means[tail] - values[tail])),
                np.linalg.norm((weights[exact] @ values[exact] + estimated @ values[tail]) / mass - dense),
                np.linalg.norm(weights[missed] @ (values[missed] - dense)) / whole,
                share * math.sqrt(squares * value_error),
                share * math.sqrt(spread),
                share * layer.scale * math.sqrt(max(0.0, (query @ halves[0]) @ (query @ halves[1]))),
            )
            found.append(np.array(errors) / np.linalg.norm(dense))
    return np.array(found)


def reported(layer, given):
    """The reported and the true error of a session, each the mean over query heads, and the number of heads."""
    tokens, q_heads, dim = layer.queries.shape
    kv_heads, all_rows, _ = layer.keys.shape
    rows = all_rows - tokens
    shape = topkv.AttentionShape(layers=1, q_heads=q_heads, kv_heads=kv_heads, head_dim=dim, scale=layer.scale)
    builder = topkv.ContextBuilder(shape, capacity=rows, dtype="f32")
    builder.append(0, *(x[:, :rows].transpose(1, 0, 2).copy() for x in (layer.keys, layer.values)))
    spec = f"codes:k={given.keys},v={given.values}"
    session = topkv.Session(builder.freeze().with_index(spec), index=spec, k=given.k, window=given.window)
    true = []
    for token in range(tokens):
        at = rows + token
        q, k, v = layer.queries[token], layer.keys[:, at], layer.values[:, at]
        out = session.attend(0, *(x[None].copy() for x in (q, k, v)))[0]
        for head in range(q_heads):
            keys, values = (x[head // (q_heads // kv_heads), : at + 1] for x in (layer.keys, layer.values))
            weights = layer.scale * (keys.astype(np.float64) @ q[head])
            weights = np.exp(weights - weights.max())
            dense = weights @ values.astype(np.float64) / weights.sum()
            true.append(np.linalg.norm(out[head] - dense) / np.linalg.norm(dense))
    return session.tail_figures()[0].mean_error, np.mean(true)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    captured_attention.add_arguments(parser, queries=16)
    parser.add_argument("--every", type=int, default=8, help="take each n-th query for the parts")
    parser.add_argument("--join", action="store_true", help="join heads of two layers to heads of twice the dims")
    parser.add_argument("--keys", type=int, default=16, help="bytes of a key's code")
    parser.add_argument("--values", type=int, default=8, help="bytes of a value's code")
    given = parser.parse_args()

    layers = captured_attention.layers_of(given)
    measure(captured_attention.joined(layers) if given.join else layers, given)


def measure(layers, given):
    print(f"{given.model}, {given.tokens} tokens, codes:k={given.keys},v={given.values}, k {given.k}")
    names = ("true", "values", "scores", "found", "E values", "E scores", "E shared")
    print(f"{'layer':>6}{'reported':>10}{'of it true':>11} |" + "".join(f"{name:>9}" for name in names))
    random = np.random.default_rng(1)
    lines = []
    for number in range(0, len(layers), given.layers):
        one = np.array([*reported(layers[number], given), *parts_of(layers[number], given, random).mean(0)])
        lines.append(one)
        show(str(number), one)
    show("mean", np.mean(lines, axis=0))


def show(name, figures):
    first = f"{name:>6}{figures[0]:10.4f}{figures[1]:11.4f} |"
    print(first + "".join(f"{x:9.4f}" for x in figures[2:]), flush=True)


if __name__ == "__main__":
    main()
