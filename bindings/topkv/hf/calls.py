"""The methods of a TopkCache that transformers calls."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from topkv import InvalidArgument
from topkv.hf import kept
from topkv.hf.engine import Engine
from topkv.hf.handle import Handle
from topkv.hf.layer import TopkLayer
from topkv.hf.mask import Length
from topkv.hf.options import integer
from topkv.hf.state import State, check_can_crop


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
        if layer_idx == engine.attending[0]:  # a forward pass begins
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
        # For a layer that does not attend, the sizes are those of the first layer that attends.
        attends = isinstance(self.layers[layer_idx], CacheLayerMixin)
        sizes_of = self.layers[layer_idx if attends else self._engine.attending[0]]
        if isinstance(sizes_of, TopkLayer):
            length.engine = self._engine
        return length, offset

    @property
    def is_linear(self) -> list[bool]:
        """Of each layer, whether it has a recurrence and does not attend."""
        return [kept.is_recurrent(x) and not isinstance(x, TopkLayer) for x in self.layers]

    def get_conv_state(self, layer_idx: int, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        self._engine.reach(layer_idx)
        return super().get_conv_state(layer_idx, *args, **kwargs)

    def get_recurrent_state(self, layer_idx: int, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        self._engine.reach(layer_idx)
        return super().get_recurrent_state(layer_idx, *args, **kwargs)

    def has_previous_state(self, layer_idx: int | None = None, *args: Any, **kwargs: Any) -> bool:
        if layer_idx is not None:  # up to 5.19 a layer asks before it reads its state
            self._engine.reach(layer_idx)
        return super().has_previous_state(layer_idx, *args, **kwargs)

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        self._engine.reach(layer_idx)
        return super().update_conv_state(conv_states, layer_idx, *args, **kwargs)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        self._engine.reach(layer_idx)
        return super().update_recurrent_state(recurrent_states, layer_idx, *args, **kwargs)

    def activate_past_recording(self) -> None:
        """Prepares for taking tokens back (speculative decoding). After the first crop(), several
        tokens at once no longer count as a part of the text."""
        super().activate_past_recording()
        self._engine.settle()
        self._engine.state = replace(self._engine.state, records=True)

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last tokens. tokens_to_remove is negative, as in transformers.

        The states of layers with a recurrence can go back to the end of the text, to the token before
        the last call, and to no token. After activate_past_recording() convolutions alone, as of LFM2,
        can go back to any token. Another crop raises InvalidArgument and changes nothing."""
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
        states = engine.states_at(state.tokens - removed)
        with engine.change() as put:
            held = engine.held_without(removed)
            for number, layer in engine.kept_layers():
                if number in states:
                    records = {"record_past": layer.record_past}
                    kept.put(layer, kept.owned(states[number]) | records)
                # With nothing to take back it lets go of what was recorded, if anything was.
                elif kept.is_used(layer) and (removed or layer.record_past):
                    layer.crop(-removed)
            pads = tuple(min(pads, own - removed) for pads in state.pads)
            rest = {"pads": pads, "earlier": None if removed else state.earlier}
            put(tokens=state.tokens - removed, held=held, was_cropped=True, **rest)

    def reset(self) -> None:
        """Forgets the text and all later tokens. Sessions over the text are not changed."""
        with self._engine.change() as put:
            for _, layer in self._engine.kept_layers():
                kept.forget(layer)
            put(State(self._engine.options))

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._select(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select([row for row in self._rows() for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._select(torch.tensor(self._rows())[indices.cpu()].tolist())  # numbers, or a mask

    def _rows(self) -> list[int]:
        self._engine.settle()
        return list(range(self._engine.state.batch))

    def _select(self, rows: list[int]) -> None:
        """Batch row i becomes row rows[i]. A text that is being read ends here."""
        if rows == self._rows() or self._engine.state.is_empty:
            return
        if not rows:
            raise InvalidArgument("no row of the batch is selected; select at least one, or call reset()")
        if self._engine.state.text is None:
            self._engine.freeze()
        with self._engine.change() as put:
            chosen = self._engine.selected(rows)
            for _, layer in self._engine.kept_layers():
                kept.put(layer, kept.of_rows(kept.members(layer), rows))
            put(**chosen)
