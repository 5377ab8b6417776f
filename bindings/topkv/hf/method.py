"""A method of finding rows that is written in Python, over a frozen text.

    class Largest:
        def search(self, queries, keys, k, scale):
            return (queries @ keys.T).topk(k).indices

    method = cache.prepare(Largest)
    model.generate(ids, past_key_values=cache.session(method=method, k=64))

topkv attends sinks, the window, all tokens after the text, and the rows that the method finds among
the other rows of the text. This is slow, and meant for trying a method out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

import topkv
from topkv import InvalidArgument, Partial, Unsupported
from topkv.hf.method_checks import check_positions, check_tail, named

#: PyTorch's dtypes of rows as a context stores them.
_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def tensor_of(rows: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy of a context's rows in float32: what a method does to it leaves the context alone."""
    copy = torch.from_numpy(rows.copy())
    return (copy.view(torch.bfloat16) if rows.dtype == np.uint16 else copy).float().to(device)


class Method(Protocol):
    """The methods of a class that cache.prepare() takes. Each layer and KV head has its own object.

    Tensors are float32. They are copies, on the model's device.

    - queries [group, dim]: the query heads of a token that share the KV head.
    - keys, values [n, dim]: the rows of the text between sinks and window. n grows as the window
      moves, up to the end of the text.

    A class may also have

        prepare(self, keys, values)

    which is called once with all rows that a search may be given; a search is given the first n. And

        tail(self, queries, keys, values, selected, scale) -> (out, lse)

    which returns attention over the rows that were not selected, or an estimate. out [group, dim] is
    normalised; lse [group] is the natural log of their sum of exp(scale * q k). selected is the
    result of search.
    """

    def search(
        self, queries: torch.Tensor, keys: torch.Tensor, k: int, scale: float
    ) -> torch.Tensor:
        """Returns the rows to attend as int64 positions in keys: [group, <= k] for each query head, or
        [<= k] for the whole group. k is at most n."""
        ...


@dataclass
class _Head:
    """A method's object for one layer and KV head, and the rows that it may find."""

    method: Any  # a Method
    keys: torch.Tensor  # [text - sinks, dim], float32
    values: torch.Tensor


class PreparedMethod:
    """A Method over a text, as cache.prepare() makes it: for cache.session(method=...)."""

    def __init__(
        self,
        text: Any,
        make: Callable[[], Any],
        sinks: int,
        device: torch.device,
    ):
        """text: a state.Text. sinks: its first rows, which the method does not search."""
        if not callable(make):
            raise InvalidArgument(
                f"the method is {make!r}; expected a class, which is called once for each layer "
                "and KV head"
            )
        self.name = getattr(make, "__name__", type(make).__name__)
        self.context, self.ids = text.context, text.ids
        self.sinks, self.device = sinks, device
        context, shape = self.context, self.context.shape
        if context.dtype not in _DTYPES:
            raise Unsupported(
                f"{self.name}: rows of this text are {context.dtype}; a method written in Python "
                f"takes {', '.join(_DTYPES)}: give TopkCache() such a kv_dtype"
            )
        self.dtype = _DTYPES[context.dtype]
        self._heads: list[list[_Head]] = []
        for layer in range(shape.layers):
            self._heads.append([])
            for head in range(shape.kv_heads):
                self._heads[layer].append(self._prepare(make, layer, head))
        self.has_tail = hasattr(self._heads[0][0].method, "tail")
        if self.has_tail and shape.softcap > 0:
            raise Unsupported(
                f"{self.name} has a tail, and this model caps its scores at {shape.softcap}, which "
                "tail() does not get; leave tail() out, or use a model without soft-capping"
            )

    def _prepare(self, make: Callable[[], Any], layer: int, head: int) -> _Head:
        with named(self.name, "__init__", layer, head):
            method = make()
        if not callable(getattr(method, "search", None)):
            raise InvalidArgument(
                f"{self.name} has no method search; expected search(self, queries, keys, k, scale)"
            )
        keys, values = (
            tensor_of(rows[self.sinks :], self.device)
            for rows in (self.context.keys(layer, head), self.context.values(layer, head))
        )
        if hasattr(method, "prepare"):
            with named(self.name, "prepare", layer, head):
                method.prepare(keys, values)
        return _Head(method, keys, values)

    def find(
        self, layer: int, head: int, queries: torch.Tensor, rows: int, k: int, scale: float
    ) -> tuple[torch.Tensor, Partial | None]:
        """Returns positions in the text [group, <= k], among the `rows` rows after the sinks, and the
        tail of the other rows. queries [group, dim]: float32."""
        own = self._heads[layer][head]
        keys, values, k = own.keys[:rows], own.values[:rows], min(k, rows)
        with named(self.name, "search", layer, head):
            found = own.method.search(queries, keys, k, scale)
        check_positions(found, (self.name, layer, head), queries.shape[0], k, rows)
        positions = (found if found.ndim == 2 else found.expand(queries.shape[0], -1)).cpu()
        if not self.has_tail:
            return positions + self.sinks, None
        with named(self.name, "tail", layer, head):
            tail = own.method.tail(queries, keys, values, found, scale)
        check_tail(tail, (self.name, layer, head), queries)
        out, lse = (x.detach().float().cpu().contiguous() for x in tail)
        return positions + self.sinks, Partial(out, lse)


#: Options of a session that only an index has.
_OF_AN_INDEX = ("index", "tail", "mass", "error", "guarantee", "select_by", "measure_recall", "host_search")


def check_session(method: Any, text: Any, given: dict[str, Any], session: dict[str, Any], batch: int):
    """Raises InvalidArgument unless a session with this method can have these options."""
    if not isinstance(method, PreparedMethod):
        raise InvalidArgument(
            f"method is {method!r}; expected the result of cache.prepare(a class)"
        )
    if text is None or method.ids is not text.ids:
        raise InvalidArgument(
            f"{method.name} was prepared over another text; prepare it over this cache's"
        )
    of_an_index = [name for name in _OF_AN_INDEX if given.get(name) is not None]
    of_an_index += [name for name in ("mass", "error", "guarantee") if session[name] is not None]
    if of_an_index:
        raise InvalidArgument(
            f"{of_an_index[0]} says how an index is used, and {method.name} finds rows without "
            f"one; leave {of_an_index[0]} out"
        )
    if not isinstance(session["k"], int):
        raise InvalidArgument(
            f"k is {session['k']!r}; a method written in Python takes a number, the same for all "
            "layers"
        )
    if session["sinks"] != method.sinks:
        raise InvalidArgument(
            f"sinks is {session['sinks']}, and {method.name} was prepared for {method.sinks}: "
            f"cache.prepare(…, sinks={session['sinks']})"
        )
    if batch != 1:
        raise InvalidArgument(
            f"a batch of {batch} with a method written in Python; make a session for each"
        )
