#!/usr/bin/env python3
"""How often a session's guarantee (epsilon, delta) holds for single query heads, and the rows that it
costs. Beside it: the errors of a fixed k without a tail, for the same mean number of rows and for
each k of --fixed.

A pair is a token and a query head of a layer with full attention. Its error is
|out - dense| / |dense|, with dense attention in float64 over the same rows. transformers runs the
model and gives the queries, keys and values of a text (captured_attention.py).

    python bench/guarantee.py -m models/needle-14m -c 16000 --queries 96 README.md docs/*.md
"""

import argparse

import captured_attention
import numpy as np

import topkv


def context_of(layers, tokens):
    kv_heads, _, dim = layers[0].keys.shape
    q_heads = layers[0].queries.shape[1]
    shape = topkv.AttentionShape(
        layers=len(layers), q_heads=q_heads, kv_heads=kv_heads, head_dim=dim, scale=layers[0].scale
    )
    builder = topkv.ContextBuilder(shape, capacity=tokens, dtype="f32")
    for number, layer in enumerate(layers):
        keys, values = (x[:, :tokens].transpose(1, 0, 2).copy() for x in (layer.keys, layer.values))
        builder.append(number, keys, values)
    return builder.freeze()


def dense(layer, first):
    """Attention of the queries, of tokens from `first` on, over all rows: [tokens, q_heads, dim]."""
    tokens, q_heads, _ = layer.queries.shape
    group = q_heads // len(layer.keys)
    outs = np.empty(layer.queries.shape)
    for head in range(q_heads):
        keys, values = (x[head // group].astype(np.float64) for x in (layer.keys, layer.values))
        for token in range(tokens):
            scores = layer.scale * (keys[: first + token + 1] @ layer.queries[token, head].astype(np.float64))
            weights = np.exp(scores - scores.max())
            outs[token, head] = weights @ values[: first + token + 1] / weights.sum()
    return outs


def errors(layers, wanted, context, **options):
    """Errors of all pairs, and the session's stats."""
    session = topkv.Session(context, **options)
    first = context.tokens
    found = []
    for token in range(len(layers[0].queries)):
        for number, layer in enumerate(layers):
            at = first + token
            out = session.attend(
                number,
                layer.queries[token][None].copy(),
                layer.keys[:, at][None].copy(),
                layer.values[:, at][None].copy(),
            )[0]
            want = wanted[number][token]
            found.append(np.linalg.norm(out - want, axis=1) / np.linalg.norm(want, axis=1))
    return np.concatenate(found), session.stats()


def line(name, found, rows, epsilon, all_rows=None):
    within = np.mean(found <= epsilon)
    text = f"{name:24} {rows:7.0f} rows  error {found.mean():.4f}  within {epsilon}: {100 * within:.2f} %"
    print(text if all_rows is None else f"{text}  all rows: {100 * all_rows:.1f} %", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    captured_attention.add_arguments(parser, queries=32)
    parser.add_argument("--guarantee", default="0.1,0.05;0.05,0.05;0.2,0.1")
    parser.add_argument("--fixed", default="64", help="further fixed k, such as 64;512")
    parser.add_argument("--index", default="exact")
    given = parser.parse_args()

    measure(captured_attention.layers_of(given)[:: given.layers], given)


def measure(layers, given):
    first = layers[0].keys.shape[1] - len(layers[0].queries)
    context = context_of(layers, first)
    if given.index != "exact":
        context = context.with_index(given.index)
    wanted = [dense(layer, first) for layer in layers]
    pairs = sum(layer.queries.shape[0] * layer.queries.shape[1] for layer in layers)
    heads = layers[0].queries.shape[1]
    print(f"{given.model}: {context.tokens} tokens, {len(layers)} layers, {pairs} pairs, index {given.index}")
    options = {"index": given.index, "window": given.window}
    for text in given.guarantee.split(";"):
        epsilon, delta = map(float, text.split(","))
        found, stats = errors(layers, wanted, context, k=given.k, guarantee=(epsilon, delta), **options)
        rows = stats.rows_per_head(heads)
        line(f"guarantee {text}, k {given.k}", found, rows, epsilon, stats.went_dense / pairs)
        for k in (round(rows), *map(int, given.fixed.split(";"))):
            fixed, stats = errors(layers, wanted, context, k=k, tail="none", **options)
            line(f"fixed k {k}", fixed, stats.rows_per_head(heads), epsilon)


if __name__ == "__main__":
    main()
