"""Dual chunk attention, which transformers does not have, written down from its paper (An et al. 2024,
arXiv 2402.17463, section 3) with what vLLM adds: for make_parity_fixtures.py.

A model is made to hand its attention queries and keys without positions; here every query is scored
against every key in float64 at the two positions that the paper gives the pair.
"""

import math

import torch
from transformers import AttentionInterface

NAME = "dual_chunk"


def positions(chunks, tokens):
    """Of queries and of keys, [tokens, tokens] each: for each pair of a token i and an earlier j."""
    size, local = chunks["chunk_size"], chunks["local_size"]
    s = size - local
    at = torch.arange(tokens)
    i, j = at[:, None], at[None, :]
    away = i // s - j // s
    intra = i % s + 0 * j
    succ = (i % s + s).clamp(max=size) + 0 * j
    inter = torch.full((tokens, tokens), min(2 * s - 1, size))
    query = torch.where(away == 0, intra, torch.where(away == 1, succ, inter))
    return query, (j % s).expand(tokens, tokens)


def temperature(chunks, length):
    original = chunks.get("original_max_position_embeddings", 0)
    return max(1.0, 0.1 * math.log(length / original) + 1) if original > 0 else 1.0


def rotated(x, at, theta):
    """x: [..., dim] at the positions `at`, whose shape is that of x without the last dimension."""
    half = x.shape[-1] // 2
    angle = at[..., None] * theta ** -(torch.arange(half, dtype=torch.float64) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def attend(module, query, key, value, attention_mask, scaling, **_):
    model = module.chunked_model
    chunks, theta = model.chunks, model.config.rope_parameters["rope_theta"]
    tokens, group = query.shape[2], query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1).double() for x in (key, value))
    q_at, k_at = model.positions(chunks, tokens)
    lengths = model.lengths or [tokens] * tokens
    out = torch.empty_like(query, dtype=torch.float64)
    for i in range(tokens):
        # Only the first i + 1 keys: what is masked is never read.
        q = query[:, :, i : i + 1, :].double().expand(-1, -1, i + 1, -1)
        scores = (rotated(q, q_at[i, : i + 1].double(), theta)
                  * rotated(key[:, :, : i + 1], k_at[i, : i + 1].double(), theta)).sum(-1)
        scores = scores * scaling * model.temperature(chunks, lengths[i])
        out[:, :, i] = (scores.softmax(-1)[..., None] * value[:, :, : i + 1]).sum(2)
    return out.to(query.dtype).transpose(1, 2), None


def install(model):
    """Gives a model whose config.json asks for it dual chunk attention. model.lengths: of each token,
    how long the text was that it was read with; None: the text's for all."""
    chunks = getattr(model.config, "dual_chunk_attention_config", None)
    if not chunks:
        return model
    AttentionInterface.register(NAME, attend)
    model.config._attn_implementation = NAME
    model.chunks, model.lengths = dict(chunks), None
    model.positions, model.temperature = positions, temperature

    def no_positions(x, position_ids):
        shape = (*position_ids.shape, model.model.layers[0].self_attn.head_dim)
        return torch.ones(shape, dtype=x.dtype), torch.zeros(shape, dtype=x.dtype)

    model.model.rotary_emb.forward = no_positions
    for layer in model.model.layers:
        object.__setattr__(layer.self_attn, "chunked_model", model)
    return model


def mistakes(model):
    """What can go wrong with it, done on purpose."""
    def with_positions(change):
        def deed(wrong):
            wrong.positions = lambda chunks, tokens: change(wrong, *positions(chunks, tokens))
        return deed

    def plain(wrong, query, key):
        at = torch.arange(len(query))
        return at[:, None].expand_as(query), at[None, :].expand_as(key)

    def unclamped(wrong, query, key):
        s = wrong.chunks["chunk_size"] - wrong.chunks["local_size"]
        at = torch.arange(len(query))
        return torch.where(at[:, None] // s - at // s == 1, at[:, None] % s + s, query), key

    def one_less(wrong, query, key):
        s = wrong.chunks["chunk_size"] - wrong.chunks["local_size"]
        at = torch.arange(len(query))
        return torch.where(at[:, None] // s - at // s > 1, query - 1, query), key

    def next_as_far(wrong, query, key):
        s = wrong.chunks["chunk_size"] - wrong.chunks["local_size"]
        at = torch.arange(len(query))
        return torch.where(at[:, None] // s - at // s == 1, query.max(), query), key

    yield "positions as they are", with_positions(plain)
    yield "far keys one nearer", with_positions(one_less)
    yield "next chunk as far ones", with_positions(next_as_far)
    if 2 * (model.chunks["chunk_size"] - model.chunks["local_size"]) - 1 > model.chunks["chunk_size"]:
        yield "next chunk not held", with_positions(unclamped)
    if model.chunks.get("original_max_position_embeddings", 0) > 0:
        def no_temperature(wrong):
            wrong.temperature = lambda chunks, length: 1.0

        def squared(wrong):
            wrong.temperature = lambda chunks, length: temperature(chunks, length) ** 2

        yield "no temperature", no_temperature
        yield "temperature on both", squared
