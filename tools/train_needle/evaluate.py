"""Single needles at several lengths and depths, as RULER's niah_single: the number that matters."""

import random

import torch

import tasks


def needle_task(rng, words):
    while True:
        task = tasks.needles(rng, words, 1)
        if len(task.facts) == 1:
            return task


@torch.no_grad()
def needles(model, sampler, length, depths=8, seed=1234):
    """How many of `depths` answers are right to the last token under greedy decoding.

    One forward pass over text, question and answer: the answer is what greedy decoding gives if
    and only if each of its tokens is the most likely one after those before it.
    """
    device = model.model.embed_tokens.weight.device
    right = 0
    model.eval()
    for i in range(depths):
        rng = random.Random(f"{seed} {length} {i}")
        task = needle_task(rng, sampler.corpus.words)
        ids, weight = sampler.place(rng, length, task, depth=(i + 0.5) / depths)
        ids = torch.from_numpy(ids).to(device)[None]
        answer = torch.from_numpy(weight > 1).nonzero().flatten().to(device)
        place = torch.arange(length, device=device)[None]
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            best = model.logits(model.hidden(ids, place)[0, answer - 1]).argmax(-1)
        right += bool((best == ids[0, answer]).all())
    model.train()
    return right
