"""The mask function that transformers calls for attention "topkv": it makes no mask.

transformers' own functions make a tensor [queries, keys], gigabytes for a long prompt. A TopkCache,
recognised by the type of its lengths, gets a ``LazyMask`` that only describes the tensor. topkv's
layers are causal by themselves and need no more. Sliding-window layers make the tensor, or a block of
it, for their attention function.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function

from topkv import InvalidArgument, Unsupported
from topkv.hf.indexers import Choice


class Length(int):
    """A number of keys that a TopkCache gave; the type distinguishes its masks from other caches' masks."""

    engine: Any = None  # None: a layer with a sliding window, which topkv does not attend


class LazyMask:
    """A mask as transformers requested it. It lives for one forward pass, shared by its layers.

    choice: of the indexer of a layer, if the model combines masks with choices."""

    #: By which, or by is_floating_point(), a model decides how to combine a mask with the choice of an indexer.
    dtype = torch.bool

    def __init__(self, base: str, arguments: dict[str, Any], choice: Choice | None = None):
        self.base = base
        self.arguments = arguments
        self.choice = choice
        self._whole: dict[str, Any] = {}
        self._is_causal = False

    @property
    def queries(self) -> int:
        return self.arguments["q_length"]

    @property
    def query_offset(self) -> int:
        return self.arguments["q_offset"]

    @property
    def key_offset(self) -> int:
        return self.arguments["kv_offset"]

    def whole(self, base: str | None = None) -> Any:
        """The mask as implementation `base` takes it; made once."""
        base = base or self.base
        if base not in self._whole:
            self._whole[base] = self._make(base, self.arguments)
        return self._whole[base]

    def block(self, base: str, queries: range, keys: range) -> Any:
        """The part of these queries and keys, both numbered within this mask."""
        return self._make(
            base,
            self.arguments
            | {
                "q_length": len(queries),
                "q_offset": self.query_offset + queries.start,
                "kv_length": len(keys),
                "kv_offset": self.key_offset + keys.start,
            },
        )

    @staticmethod
    def _make(base: str, arguments: dict[str, Any]) -> Any:
        # An implementation without a mask function (there are such kernels) is given none.
        make = ALL_MASK_ATTENTION_FUNCTIONS.get(base)
        return None if make is None else make(**arguments)

    def __getitem__(self, part: tuple[slice, ...]) -> LazyMask:
        """The mask of the last queries: a model that needs the last logits only slices its masks. Or the
        mask of all heads, which a model gives an indexer."""
        if part == (slice(None), 0, slice(None), slice(None)):
            return self
        queries = range(self.queries)[part[2]] if isinstance(part, tuple) and len(part) == 4 else ()
        everything = all(x == slice(None) for i, x in enumerate(part) if i != 2) if queries else False
        if not everything or queries.step != 1 or queries.stop != self.queries:
            raise Unsupported(f"this model takes the part {part} of a mask; use another cache")
        offset = self.query_offset + queries.start
        return LazyMask(self.base, self.arguments | {"q_length": len(queries), "q_offset": offset})

    def is_floating_point(self) -> bool:
        return False

    def __and__(self, choice: Choice) -> LazyMask:
        """The mask of a layer that attends the choice of an indexer."""
        if not isinstance(choice, Choice) or self.choice is not None:
            raise Unsupported("this model combines its mask with another mask; use another cache")
        return LazyMask(self.base, self.arguments, choice)

    def hides_beyond(self, window: int | None) -> bool:
        """Whether the mask hides tokens `window` and more before a token, as a layer's window requires."""
        if not window:
            return False
        query, key = torch.tensor(window), torch.tensor(0)
        return not bool(self.arguments["mask_function"](torch.tensor(0), None, query, key))

    @property
    def padding(self) -> torch.Tensor | None:
        """attention_mask [batch, tokens] as the model was given it."""
        return self.arguments.get("attention_mask")

    def require_causal(self) -> None:
        """Raises unless every token may attend all tokens before it, except padding. Checked once."""
        if self._is_causal:
            return
        if self.arguments.get("mask_function") is not causal_mask_function:
            raise Unsupported(
                "topkv's layers attend causally to one text, and this call needs another mask: for "
                "tokens that see each other in both directions, as in an image, or for several "
                "texts packed into one row; use another cache for it"
            )
        padding = self.padding
        if padding is not None:
            rows = self.arguments.get("batch_size", 1)
            if padding.ndim != 2 or padding.shape[0] != rows:
                raise InvalidArgument(
                    f"attention_mask has shape {tuple(padding.shape)}; expected [batch, tokens] "
                    f"with a batch of {rows}"
                )
            end = self.query_offset + self.queries
            if padding.shape[-1] != end:
                raise InvalidArgument(
                    f"attention_mask has {padding.shape[-1]} tokens; the cache holds "
                    f"{self.query_offset} and this call adds {self.queries}. To continue after "
                    "them, give generate the whole text, old and new, and no prefill_chunk_size. An "
                    "assistant and prompt_lookup_num_tokens need an empty cache. For another "
                    "question use cache.session(), for another text cache.reset()"
                )
        self._is_causal = True


def require_causal(mask: Any) -> None:
    """As LazyMask.require_causal, for any mask that a model gives attention."""
    if isinstance(mask, LazyMask):
        mask.require_causal()
    require_described(mask)


def require_described(mask: Any) -> None:
    """Raises for a mask that the caller made, which topkv's layers do not take."""
    if mask is not None and not isinstance(mask, LazyMask):
        is_tensor = isinstance(mask, torch.Tensor)
        kind = f"shape {tuple(mask.shape)}" if is_tensor else type(mask).__name__
        raise Unsupported(
            f"topkv's layers attend causally and take no mask that the caller made ({kind}); give "
            "attention_mask as [batch, tokens], or use another cache"
        )


def mask_function(base: str):
    """The function to register for attention "topkv" over implementation `base`."""

    def topkv_mask(**arguments: Any) -> Any:
        lazy = LazyMask(base, arguments)
        length = arguments["kv_length"]
        if not isinstance(length, Length):
            return lazy.whole()
        # Before a layer takes tokens. Masks of other kinds may be made for no layer at all.
        if length.engine is not None and arguments.get("mask_function") is causal_mask_function:
            length.engine.require_batch(arguments.get("batch_size", 1))
            lazy.require_causal()
            length.engine.mask = lazy.padding
        return lazy

    return topkv_mask
