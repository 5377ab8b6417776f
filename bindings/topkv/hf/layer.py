"""A full-attention layer of a TopkCache, as transformers sees it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from topkv import Unsupported
from topkv.hf.engine import Engine
from topkv.hf.handle import Handle
from topkv.hf.indexers import Choice, Parts
from topkv.hf.rows import IndexStep

#: Rows whose keys are rounded in blocks, and the largest norm of a head's bias that they were seen
#: to bear (docs/explanation/row-dtypes.md).
_HARMLESS = {"q4": 0.0, "q8": 300.0, "q8/q4": 300.0}


def _bias_norm(module: torch.nn.Module, head_dim: int) -> float:
    """The largest norm of the bias of a head's keys. 0: there is no bias, it is not in a k_proj of its
    own, or its weights are offloaded."""
    bias = getattr(getattr(module, "k_proj", None), "bias", None)
    if not isinstance(bias, torch.Tensor) or bias.is_meta or bias.numel() % head_dim:
        return 0.0
    return float(bias.detach().float().reshape(-1, head_dim).norm(dim=1).max())


class TopkLayer(CacheLayerMixin):
    """Passes K and V on to attention. The engine keeps the rows and the number of tokens."""

    is_compileable = False
    is_croppable = True
    is_sliding = False
    is_pooling = False
    supports_early_init = False

    def __init__(self, engine: Engine, index: int, number: int):
        super().__init__()
        self._engine = engine
        self._index = index  # among all layers
        self._number = number  # among the topkv layers

    @property
    def is_shared(self) -> bool:
        """Whether later layers attend the rows of this layer."""
        return self._engine.row_layer.count(self._number) > 1

    @property
    def is_first(self) -> bool:
        """Whether this is the first topkv layer, which sees a call before the others do."""
        return self._number == 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        self.is_initialized = True
        handle = Handle(self, key_states, value_states)
        return handle, handle

    def warn_of_bias(self, module: torch.nn.Module, head_dim: int) -> None:
        """Warns once, before the first tokens, if keys are rounded in blocks together with a bias."""
        kv_dtype = self._engine.options.kv_dtype or ""
        harmless = _HARMLESS.get(kv_dtype)
        if harmless is None or self._engine.tokens > 0 or self._engine.told_of_bias:
            return
        norm = _bias_norm(module, head_dim)
        if norm <= harmless:
            return
        self._engine.told_of_bias = True
        warnings.warn(
            f"kv_dtype is {kv_dtype!r}, and this model's keys have biases with norms up to {norm:.3g}. "
            "TopkCache rounds keys with their bias, and a large bias leaves too few bits for the rest, "
            "so that rows are not found; leave kv_dtype out",
            stacklevel=2,
        )

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor | None, **how: Any
    ) -> torch.Tensor:
        out = self._engine.attend(self._number, query, keys, values, **how)
        self._engine.attended(self._index)
        return out

    def attend_for(self, index: int | None, query: torch.Tensor, **how: Any) -> torch.Tensor | None:
        """Attention of layer `index`, among all layers, over the rows of this layer. None: it is not
        known as a layer that attends these rows."""
        number = self._engine.numbers.get(index)
        if number is None or number == self._number or self._engine.row_layer[number] != self._number:
            return None
        out = self._engine.attend(number, query, None, None, **how)
        self._engine.attended(index)
        return out

    @property
    def has_indexer(self) -> bool:
        """Whether the layer attends what an indexer chooses."""
        return self._engine.indexers is not None and self._engine.indexer_layer[self._number] >= 0

    def index_of(self, choice: Choice | None) -> IndexStep | None:
        """What the layer gives the core of the choice that its attention is given; None: nothing, because
        the layer has no indexer, or attends the choice of an earlier layer.

        Raises topkv.Unsupported if the layer should have been given another choice, or one at all."""
        engine = self._engine
        expected = engine.indexer_layer[self._number] if engine.indexers else -1
        given = -1 if choice is None else engine.numbers.get(choice.layer, -1)
        if given != expected:
            names = ["no choice" if x < 0 else f"the choice of layer {x}" for x in (given, expected)]
            raise Unsupported(
                f"layer {self._number} of the layers that topkv serves is given {names[0]} of an indexer; by the "
                f"model's config it attends {names[1]}; use another cache"
            )
        if choice is None or expected != self._number:
            return None
        with torch.no_grad():
            keys = self._keys_of(choice)
            given = (choice.queries, choice.weights, *keys)
            q, weights, *keys = (x.float().contiguous() for x in given)
        return IndexStep(q, weights, keys, of_groups=self.is_pooling)

    def _keys_of(self, choice: Choice) -> list[torch.Tensor]:
        """The index keys that the tokens of the call complete, of each batch row [keys, dim]."""
        return choice.keys(1, {}, self.starts())[0]

    def update_indexer(self, *_: Any, **__: Any) -> Any:
        raise Unsupported(
            "the model calls the indexer of a layer in a way that topkv does not know, such as by a forward that was "
            "replaced before the TopkCache was made; use another cache"
        )

    update_index = update_indexer  # of MiniMax-M3

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


class RecurrentTopkLayer(LinearAttentionLayer, TopkLayer):
    """A full-attention layer beside a recurrence, whose states transformers keeps."""

    is_compileable = False

    def __init__(
        self, engine: Engine, index: int, number: int, number_of_states: int = 1, **_: Any
    ):
        TopkLayer.__init__(self, engine, index, number)
        LinearAttentionLayer.__init__(self, number_of_states)


class PoolingTopkLayer(TopkLayer):
    """A full-attention layer whose indexer has a key for a group of tokens.

    pending: the parts of index keys of tokens whose group is not complete yet, as Choice.keys returns them."""

    is_pooling = True
    record_past = False  # it cannot

    def __init__(self, engine: Engine, index: int, number: int):
        super().__init__(engine, index, number)
        self.pending: Parts = {}

    @property
    def part_names(self) -> tuple[str, ...]:
        """The names in `pending`."""
        return self._engine.indexers.part_names

    @property
    def most_pending(self) -> int:
        """The number of tokens in `pending`."""
        return self._engine.indexers.rule.tokens_per_key - 1

    def _keys_of(self, choice: Choice) -> list[torch.Tensor]:
        keys, self.pending = choice.keys(self.most_pending + 1, self.pending, self.starts())
        return keys

    @property
    def indexer_position_ids(self) -> None:
        """None: the layer keeps what it needs of the positions of earlier tokens, in `pending`.

        The model keeps the positions of all tokens here, and gives each call the rotations of all of them."""
        return None

    @indexer_position_ids.setter
    def indexer_position_ids(self, positions: Any) -> None: ...
