"""Layers with a trained indexer: a small attention of the model's own chooses the tokens that they attend.

transformers computes the scores of all tokens for all tokens, a matrix [tokens, tokens], and attends densely under a
mask of the chosen tokens. topkv stores the keys of the indexer beside the rows, chooses in its core, and attends the
chosen rows alone. A layer may also attend the choice of an earlier layer.

The indexer of a layer is a module of its own. Its ``forward`` is wrapped when the first TopkCache of a model type is
made. A call with another cache, or with none, is passed on. A call with a TopkCache computes queries, keys and weights
with the submodules of the indexer, and returns a ``Choice``. The layer hands the choice on to its attention. The first
call of each indexer compares the choice with the choice of the model's own ``forward``.

The readers of all families are in indexer_readers.py.
"""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

import torch
from transformers import Cache

from topkv import IndexerShape, InvalidArgument, Unsupported

_WRAPPED = "_topkv_wrapped"

_TOKENS = 32  # of the call in which a choice is compared

#: How far a token with a lower score may be preferred, as a part of the largest score. Both sides round.
_ALLOWED = 1e-3

_compared: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

Parts = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Rule:
    """How an indexer chooses; the members of topkv.IndexerShape."""

    dim: int
    heads: int
    top: int  # units: blocks of keys
    choices: int = 1
    score: str = "relu"
    tokens_per_key: int = 1
    block: int = 1  # keys
    local_blocks: int = 0

    @classmethod
    def of(cls, shape: IndexerShape) -> Rule:
        return cls(**{member.name: getattr(shape, member.name) for member in fields(cls)})

    def shape(self, dtype: str = "f32") -> IndexerShape:
        """dtype: of stored index keys."""
        return IndexerShape(**vars(self), dtype=dtype)

    @property
    def unit(self) -> int:
        """The number of tokens that are chosen together."""
        return self.tokens_per_key * self.block


@dataclass(frozen=True)
class Indexers:
    """The indexers of a model.

    choosers: for each layer of the model, the number of the layer whose choice it attends; -1: it attends all tokens.
    part_names: names of Choice.parts."""

    rule: Rule
    choosers: tuple[int, ...]
    part_names: tuple[str, ...] = ("keys",)

    def has_own(self, layer: int) -> bool:
        return self.choosers[layer] == layer


@dataclass(eq=False)
class Choice:
    """An indexer gives this in place of the tokens that it chooses.

    layer: its number among all layers. queries [batch, tokens, heads, dim]. weights [batch, tokens, heads], which
    include all scales. parts: of each token, what its key is made of, [batch, tokens, …]. pool: makes keys
    [keys, dim] of parts [keys, tokens_per_key, …]."""

    layer: int
    queries: torch.Tensor
    weights: torch.Tensor
    parts: Parts
    pool: Callable[[Parts], torch.Tensor]

    def of_first(self) -> torch.Tensor:
        """The keys of batch row 0, if one is made of each token: [tokens, dim]."""
        return self.pool({name: x[0, :, None] for name, x in self.parts.items()})

    def keys(
        self, size: int, pending: Parts, starts: Sequence[tuple[int, int]]
    ) -> tuple[list[torch.Tensor], Parts]:
        """The keys that the tokens of a call complete, of each batch row [keys, dim], and the parts of tokens whose
        group is not complete yet, [batch, size - 1, …], the last ones at the end.

        size: tokens_per_key. pending: the parts that an earlier call returned. starts: of each batch row, the first
        token that is no padding, and the number of tokens before it."""
        if size == 1:
            keys = [
                self.pool({name: x[row, first:, None] for name, x in self.parts.items()})
                for row, (first, _) in enumerate(starts)
            ]
            return keys, pending
        keys, left = [], {name: [] for name in self.parts}
        for row, (first, before) in enumerate(starts):
            begun = before % size
            if begun and not pending:
                raise InvalidArgument(
                    "the cache lacks the parts of index keys of its last tokens; read the text again"
                )
            groups = {}
            for name, x in self.parts.items():
                held = pending[name][row, size - 1 - begun :] if begun else x[row, :0]
                x = torch.cat((held, x[row, first:]))
                whole = len(x) - len(x) % size
                groups[name] = x[:whole].reshape(whole // size, size, *x.shape[1:])
                missing = x.new_zeros(size - 1 - (len(x) - whole), *x.shape[1:])
                left[name].append(torch.cat((missing, x[whole:])))
            keys.append(self.pool(groups))
        return keys, {name: torch.stack(rows) for name, rows in left.items()}


class Reader:
    """How the indexers of a family are read. All methods raise Unsupported for what they do not know."""

    indexer: str  # the class in the model's code
    arguments: tuple[str, ...]  # of its forward, which `read` takes
    mask_maker: tuple[str, str] | None = None  # a class and its method that makes a mask of a choice
    caches: tuple[str, ...] = ()  # cache layers in the model's code, whose place a TopkCache takes

    def indexers(self, text: Any) -> Indexers | None:
        """The indexers by a config; None if no layer has one."""
        raise NotImplementedError

    def rule(self, module: Any) -> Rule:
        """The rule of an indexer."""
        raise NotImplementedError

    def read(self, module: Any, given: dict[str, Any]) -> Choice:
        """The choice of an indexer that is given these arguments."""
        raise NotImplementedError

    def with_few(self, module: Any) -> Any:
        """A copy of an indexer, with its submodules, that chooses few tokens."""
        raise NotImplementedError

    def own_choice(self, module: Any, forward: Any, given: dict[str, Any]) -> torch.Tensor:
        """What an indexer chooses by its own forward without a cache, bool [choices, tokens, units]."""
        raise NotImplementedError

    def reason(self, code: ModuleType) -> str:
        """Why the code of a model is not the code that this reader knows; "" if it is."""
        kind = getattr(code, self.indexer, None)
        if kind is None:
            return f"{code.__name__} has no {self.indexer}, whose choice topkv would compute"
        if self.mask_maker is not None:
            layer, name = self.mask_maker
            if not callable(getattr(getattr(code, layer, None), name, None)):
                return f"{code.__name__} has no {layer}.{name}, which makes a mask of the choice of {self.indexer}"
        lacks = [x for x in self.arguments if x not in inspect.signature(kind.forward).parameters]
        return f"{self.indexer} of {code.__name__} takes no {', '.join(lacks)}" if lacks else ""


def shrunk(module: Any, **changed: int) -> Any:
    """A copy of a module that shares its submodules and has other numbers."""
    other = copy.copy(module)
    for name, value in changed.items():
        setattr(other, name, value)
    return other


def _unit_scores(rule: Rule, choice: Choice) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores of units for the tokens of batch row 0, without a cache: [choices, tokens, units], infinite for units
    that are always chosen and -infinite for units that cannot be chosen; and the units that are attended beside the
    choice, bool [tokens, units]."""
    q, weights = choice.queries[0].double(), choice.weights[0].double()
    tokens, ends = q.shape[0], torch.arange(1, q.shape[0] + 1, device=q.device)
    if rule.tokens_per_key == 1:
        keys = choice.of_first()
    else:
        (keys,), _ = choice.keys(rule.tokens_per_key, {}, [(0, 0)])
    products = torch.einsum("thd,kd->htk", q, keys.double())
    products = products.relu() if rule.score == "relu" else products
    scores = (weights.mT[..., None] * products).unflatten(0, (rule.choices, -1)).sum(dim=1)
    complete = (torch.arange(1, len(keys) + 1, device=q.device) * rule.tokens_per_key) <= ends[:, None]
    scores = scores.masked_fill(~complete, -torch.inf)
    units = -(-tokens // rule.unit)
    missing = units * rule.block - scores.shape[-1]
    scores = torch.nn.functional.pad(scores, (0, missing), value=-torch.inf)
    scores = scores.unflatten(-1, (units, rule.block)).amax(dim=-1)
    behind = (ends[:, None] - 1) // rule.unit - torch.arange(units, device=q.device)
    scores = scores.masked_fill((behind >= 0) & (behind < rule.local_blocks), torch.inf)
    unfinished = (ends[:, None] % rule.tokens_per_key > 0) & (behind == 0)
    return scores, unfinished


def _require_choice(reader: Reader, module: Any, forward: Any, given: dict[str, Any]) -> None:
    """Raises topkv.Unsupported if the model's own forward chooses otherwise than topkv does. It compares the first
    tokens of this call, once for each indexer, as plain.require_formula does."""
    tokens = min(given["hidden_states"].shape[1], _TOKENS)
    if module in _compared or tokens < 2:
        return

    def first(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(first, x))
        return x[:1, :tokens] if isinstance(x, torch.Tensor) else x

    few, given = reader.with_few(module), {name: first(given[name]) for name in reader.arguments}
    rule, choice = reader.rule(few), reader.read(few, given)
    scores, unfinished = _unit_scores(rule, choice)
    known = scores[scores.isfinite()]
    if scores.isnan().any() or not choice.queries.isfinite().all():
        return  # weights are broken, or on their way
    name = type(module).__name__
    try:
        found = reader.own_choice(few, forward, given)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Unsupported(
            f"the choice of {name} cannot be compared with topkv's: {type(error).__name__}: {error}; use another cache"
        ) from error
    can_be = scores > -torch.inf
    chosen = found & ~unfinished
    expected = can_be.sum(dim=-1).clamp(max=rule.top)
    lowest = scores.masked_fill(~chosen, torch.inf).amin(dim=-1)
    highest = scores.masked_fill(chosen, -torch.inf).amax(dim=-1)
    allowed = _ALLOWED * (known.abs().max() if known.numel() else 0)
    agrees = (
        found.shape == scores.shape
        and bool((found | ~unfinished).all())
        and bool((chosen.sum(dim=-1) == expected).all())
        and bool((lowest >= highest - allowed).all())
    )
    if not agrees:
        raise Unsupported(
            f"{name} chooses other tokens than topkv: the first {tokens} tokens have another choice; use another cache"
        )
    _compared.add(module)


def _wrap(reader: Reader, forward: Any) -> Any:
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        engine = next((x._engine for x in given if isinstance(x, Cache) and hasattr(x, "_engine")), None)
        if engine is None:
            return forward(self, *args, **kwargs)
        arguments = signature.bind(self, *args, **kwargs).arguments
        if engine.indexers is None or engine.indexers.rule != reader.rule(self):
            raise Unsupported(
                f"{type(self).__name__} chooses by {reader.rule(self)}, and the cache was made for "
                f"{engine.indexers and engine.indexers.rule}; make the cache with the model's own config, model.config"
            )
        with torch.no_grad():
            choice = reader.read(self, arguments)
            _require_choice(reader, self, forward, arguments)
        return choice

    setattr(wrapped, _WRAPPED, True)
    return wrapped


def _wrap_mask_maker(make: Any) -> Any:
    @functools.wraps(make)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        return next((x for x in given if isinstance(x, Choice)), None) or make(*args, **kwargs)

    setattr(wrapped, _WRAPPED, True)
    return wrapped


def watch(reader: Reader, code: ModuleType) -> None:
    """Wraps the forward of a model's indexers, and the method that makes a mask of a choice, once."""
    kind = getattr(code, reader.indexer)
    if not getattr(kind.forward, _WRAPPED, False):
        kind.forward = _wrap(reader, kind.forward)
    if reader.mask_maker is None:
        return
    layer, name = getattr(code, reader.mask_maker[0]), reader.mask_maker[1]
    if not getattr(getattr(layer, name), _WRAPPED, False):
        setattr(layer, name, _wrap_mask_maker(getattr(layer, name)))


def of_other_cache(
    base: str, module: Any, query: torch.Tensor, key: torch.Tensor, mask: Any, kwargs: dict[str, Any]
) -> Any:
    """The mask of a layer whose cache is not a TopkCache, with the choice of its indexer.

    The model makes this mask itself if its attention is called "eager" or "sdpa", and topkv's attention over these has
    another name. kwargs: named arguments of the attention."""
    if base not in ("eager", "sdpa"):
        return mask
    if isinstance(chosen := kwargs.get("indices"), torch.Tensor):
        shape = (query.shape[0], query.shape[2], key.shape[2])
        hidden = torch.ones(shape, dtype=torch.bool, device=query.device)
        hidden = hidden.scatter(-1, chosen.long(), False)[:, None]
        if mask.dtype == torch.bool:
            return mask & ~hidden
        return mask.masked_fill(hidden, torch.finfo(query.dtype).min)
    if isinstance(chosen := kwargs.get("block_indices"), torch.Tensor):
        positions = kwargs.get("position_ids")
        if positions is None:
            positions = torch.arange(key.shape[2] - query.shape[2], key.shape[2], device=query.device)
        positions = (positions if positions.ndim > 1 else positions[None]).expand(query.shape[0], -1)
        return module.indexer.build_block_mask(
            chosen, mask, key.shape[2], query.dtype, query.device, positions
        )
    return mask
