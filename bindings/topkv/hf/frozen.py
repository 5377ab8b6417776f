"""From texts being read to contexts, and indices over contexts."""

from __future__ import annotations

from dataclasses import replace

import topkv
from topkv.hf.kept import LayerState, of_rows
from topkv.hf.progress import building
from topkv.hf.state import State, Text
from topkv.hf.texts_read import TextsRead


def text_of(state: State, kept: tuple[tuple[int, LayerState], ...]) -> Text:
    """The texts that were being read; their rows can still be read on."""
    contexts, alike = state.rows.freeze(), state.rows.alike
    ids = state.ids.text(state.tokens)
    if len(contexts) == 1:  # that all batch rows share
        ids, pads = ids[:1], state.pads[:1]
        kept = tuple((i, of_rows(one, [0])) for i, one in kept)
    else:
        contexts, pads = [x for x in contexts for _ in range(alike)], state.pads
    return Text(tuple(contexts), state.tokens, ids, pads, kept, state.rows.mode)


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
