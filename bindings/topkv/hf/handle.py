"""What a TopkCache gives to a model in place of K and V."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from topkv import InvalidArgument


class Handle:
    """A TopkCache gives this to a model in place of K and V; only attention "topkv" can use it.

    layer: a topkv layer; keys and values are the new tokens' K and V. None: a layer with a sliding
    window; keys and values are the whole result of transformers' own cache layer.
    attended: is called when the attention of a sliding-window layer is computed.
    taken: the rows have these keys and values. They are there only for layers that share them.
    are_latents: keys are the new tokens' latents, and values the rotated parts of their keys.
    """

    __slots__ = ("layer", "keys", "values", "attended", "taken", "are_latents")

    def __init__(
        self,
        layer: Any,
        keys: torch.Tensor,
        values: torch.Tensor,
        attended: Callable[[], None] | None = None,
    ):
        self.layer = layer
        self.keys = keys
        self.values = values
        self.attended = attended
        self.taken = self.are_latents = False

    @staticmethod
    def _refuse() -> InvalidArgument:
        return InvalidArgument(
            "the model uses the K and V of a TopkCache itself, and they are not tensors. Perhaps it "
            "attends with another implementation than topkv: make the cache with the model's own "
            "config object, TopkCache(model.config), and do not call set_attn_implementation after "
            "that. If its layers do more with K and V than attend, topkv cannot serve it"
        )

    @property
    def shape(self) -> torch.Size:
        """The shape of the keys of all tokens. A layer asks for it to make a mask of an indexer's choice."""
        if self.layer is None or not self.layer.has_indexer:
            raise self._refuse()
        batch, heads, tokens, dim = self.keys.shape
        return torch.Size((batch, heads, self.layer.get_seq_length() + tokens, dim))

    def to(self, *_: Any, **__: Any) -> Handle:
        """Itself. Layers that share K and V move them to their own device, and topkv serves a model on
        one device."""
        return self

    def __getattr__(self, name: str) -> Any:
        raise self._refuse()

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise cls._refuse()
