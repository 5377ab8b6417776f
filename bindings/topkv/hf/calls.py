"""The methods of a TopkCache that transformers calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache

from topkv import InvalidArgument
from topkv.hf.attention import Handle
from topkv.hf.engine import Engine
from topkv.hf.layer import TopkLayer
from topkv.hf.mask import Length
from topkv.hf.options import integer
from topkv.hf.state import State, check_can_crop, forget


class CacheCalls(Cache):
    """The methods of transformers' Cache, over an Engine."""

    _engine: Engine

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        engine = self._engine
        if layer_idx >= len(self.layers):
            raise InvalidArgument(
                f"the model has a layer {layer_idx}, and the cache was made with a config of "
                f"{len(self.layers)} layers; give TopkCache the model's own, model.config"
            )
        if layer_idx == 0:  # a forward pass begins
            engine.begin(key_states)
        if isinstance(self.layers[layer_idx], TopkLayer):
            return self.layers[layer_idx].update(key_states, value_states, *args, **kwargs)
        full = engine.update_sliding(layer_idx, key_states, value_states, *args, **kwargs)
        handle = Handle(None, *full, attended=partial(engine.attended, layer_idx))
        return handle, handle

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._engine.tokens

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        self._engine.settle_between_calls()
        keys, offset = super().get_mask_sizes(query_length, layer_idx)
        length = Length(keys)
        if isinstance(self.layers[layer_idx], TopkLayer):
            length.engine = self._engine
        return length, offset

    def activate_past_recording(self) -> None:
        """Prepares for taking tokens back (speculative decoding). After the first crop(), several
        tokens at once no longer count as a part of the text."""
        super().activate_past_recording()
        self._engine.settle()
        self._engine.state = replace(self._engine.state, records=True)

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last tokens. tokens_to_remove is negative, as in transformers."""
        if isinstance(tokens_to_remove, torch.Tensor):  # transformers gives one
            tokens_to_remove = int(tokens_to_remove)
        removed = -integer("tokens_to_remove", tokens_to_remove, -(2**63))
        if removed < 0:
            raise InvalidArgument(
                f"crop({-removed}): expected a negative number, -n to remove the last n tokens"
            )
        engine = self._engine
        engine.settle()
        state = engine.state
        own = state.tokens - state.text_tokens
        if removed > own:
            before = "no more" if state.text is None else "the tokens before them are the text"
            raise InvalidArgument(
                f"crop by {removed} tokens: the last {own} can be removed, {before}"
            )
        for _, layer in engine.sliding_layers() if removed else ():
            check_can_crop(layer, state.tokens, removed)
        with engine.change() as put:
            held = engine.held_without(removed)
            # With nothing to take back it lets go of what was recorded, if anything was.
            self._each_sliding(lambda x: x.crop(-removed) if removed or x.record_past else None)
            pads = tuple(min(pads, own - removed) for pads in state.pads)
            put(tokens=state.tokens - removed, held=held, pads=pads, was_cropped=True)

    def reset(self) -> None:
        """Forgets the text and all later tokens. Sessions over the text are not changed."""
        with self._engine.change() as put:
            self._each_sliding(forget)
            put(State(self._engine.options))

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._select(beam_idx.tolist(), lambda layer: layer.reorder_cache(beam_idx))

    def batch_repeat_interleave(self, repeats: int) -> None:
        rows = [row for row in self._rows() for _ in range(repeats)]
        self._select(rows, lambda layer: layer.batch_repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        rows = torch.tensor(self._rows())[indices.cpu()].tolist()  # numbers, or a mask
        self._select(rows, lambda layer: layer.batch_select_indices(indices))

    def _rows(self) -> list[int]:
        self._engine.settle()
        return list(range(self._engine.state.batch))

    def _select(self, rows: list[int], select: Callable[[Any], None]) -> None:
        """Batch row i becomes row rows[i]. A text that is being read ends here."""
        if rows == self._rows() or self._engine.state.is_empty:
            return
        if not rows:
            raise InvalidArgument("no row of the batch is selected; select at least one, or call reset()")
        if self._engine.state.text is None:
            self._engine.freeze()
        with self._engine.change() as put:
            members = self._engine.selected(rows)
            self._each_sliding(select)
            put(**members)

    def _each_sliding(self, do: Callable[[Any], None]) -> None:
        for _, layer in self._engine.sliding_layers():
            if layer.is_initialized:
                do(layer)
