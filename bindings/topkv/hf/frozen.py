"""From texts being read to contexts, and indices over contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import topkv
from topkv.hf.progress import building
from topkv.hf.state import State, Text
from topkv.hf.texts_read import TextsRead


def last_of(layers: Sequence[tuple[int, Any]]) -> tuple[Any, ...]:
    """Text.sliding for the present state of these sliding-window layers."""
    sliding = []
    for number, layer in layers:
        last = slice(1 - layer.sliding_window, None)
        keys, values = (x[:, :, last].clone() for x in (layer.keys, layer.values))
        sliding.append((number, keys, values, layer.cumulative_length))
    return tuple(sliding)


def text_of(state: State, sliding: tuple[Any, ...]) -> Text:
    """The texts that were being read; their rows can still be read on."""
    contexts, alike = state.rows.freeze(), state.rows.alike
    ids = state.ids.text(state.tokens)
    if len(contexts) == 1:  # that all batch rows share
        ids, pads = ids[:1], state.pads[:1]
        sliding = tuple((i, k[:1], v[:1], tokens) for i, k, v, tokens in sliding)
    else:
        contexts, pads = [x for x in contexts for _ in range(alike)], state.pads
    return Text(tuple(contexts), state.tokens, ids, pads, sliding)


def ready_for(
    text: Text,
    index: str,
    tail: str,
    device: topkv.Device | None,
    who_reports: tuple[bool | None, bool],
    reading: TextsRead | None,
) -> Text:
    """The text with the index and the tail over each context that lacks them. reading: the rows of the
    texts, if they were being read; they keep the built indices for another freeze()."""
    made: dict[int, topkv.Context] = {}
    for context in text.contexts:
        if id(context) in made:
            continue
        with building(index, tail, *who_reports) as report:
            made[id(context)] = context.ready_for(index, tail, report, device)
        if reading is not None and made[id(context)] is not context:
            reading.keep(context, made[id(context)])
    return replace(text, contexts=tuple(made[id(context)] for context in text.contexts))
