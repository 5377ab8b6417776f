"""A full-attention layer of a TopkCache, as transformers sees it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from topkv.hf.attention import Handle
from topkv.hf.engine import Engine


class TopkLayer(CacheLayerMixin):
    """Hands K and V on to attention; the rows, and how many tokens there are, are the engine's."""

    is_compileable = False
    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self, engine: Engine, index: int, number: int):
        super().__init__()
        self._engine = engine
        self._index = index  # among all layers
        self._number = number  # among the topkv layers

    @property
    def is_first(self) -> bool:
        """Of the topkv layers: it sees a call before the others do."""
        return self._number == 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        self.is_initialized = True
        handle = Handle(self, key_states, value_states)
        return handle, handle

    def warn_of_bias(self, module: torch.nn.Module) -> None:
        """Warns, before the first tokens, of keys in 4 bits that are rounded with a bias."""
        if self._engine.options.kv_dtype != "q4" or self._engine.tokens > 0:
            return
        bias = getattr(getattr(module, "k_proj", None), "bias", None)
        if bias is not None and bool(bias.any()):
            warnings.warn(
                'kv_dtype is "q4", and this model\'s keys have biases, which TopkCache rounds with '
                'them: large ones leave 4 bits too few for the rest; use "q8" or "q8/q4"',
                stacklevel=2,
            )

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **how: Any
    ) -> torch.Tensor:
        out = self._engine.attend(self._number, query, keys, values, **how)
        self._engine.attended(self._index)
        return out

    def starts(self) -> list[tuple[int, int]]:
        return self._engine.starts()

    def require_mask(self, mask: torch.Tensor | None) -> None:
        self._engine.require_mask(mask)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return self._engine.tokens

    def get_max_length(self) -> int:
        return -1

    # The cache does these with the engine, for all layers at once.
    def crop(self, tokens_to_remove: int) -> None: ...
    def reorder_cache(self, beam_idx: torch.Tensor) -> None: ...
    def batch_repeat_interleave(self, repeats: int) -> None: ...
    def batch_select_indices(self, indices: torch.Tensor) -> None: ...
    def reset(self) -> None: ...
    def offload(self) -> None: ...
    def prefetch(self) -> None: ...
