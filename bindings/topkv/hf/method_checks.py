"""Checks of the values that a method written in Python returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from topkv import InvalidArgument

#: Name of the class, layer, KV head.
Where = tuple[str, int, int]


def _words(where: Where, what: str) -> str:
    name, layer, head = where
    return f"{name}.{what}, layer {layer}, KV head {head}"


@contextmanager
def named(name: str, what: str, layer: int, head: int) -> Iterator[None]:
    """Adds the layer and the head to a method's own error; Ctrl-C passes through."""
    try:
        yield
    except Exception as error:
        raise InvalidArgument(
            f"{_words((name, layer, head), what)}: raised {type(error).__name__}: {error}"
        ) from error


def _found(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} {list(value.shape)}"
    return f"a {type(value).__name__}"


def check_positions(found: Any, where: Where, group: int, k: int, rows: int) -> None:
    """Raises InvalidArgument unless search gave positions."""

    def refuse(what: str, expected: str) -> NoReturn:
        raise InvalidArgument(f"{_words(where, 'search')}: returned {what}; expected {expected}")

    shapes = f"int64 positions [{group}, n] or [n] with n at most {k}"
    if not isinstance(found, torch.Tensor) or found.dtype != torch.int64:
        refuse(_found(found), shapes)
    is_good = found.ndim == 1 or (found.ndim == 2 and found.shape[0] == group)
    if not is_good or found.shape[-1] > k:
        refuse(_found(found), shapes)
    if found.numel() == 0:
        return
    least, most = int(found.min()), int(found.max())
    if least < 0 or most >= rows:
        refuse(
            f"position {least if least < 0 else most}",
            f"positions from 0 to {rows - 1}, the rows of the given keys",
        )
    in_order = found.sort(dim=-1).values
    twice = in_order[..., 1:][in_order[..., 1:] == in_order[..., :-1]]
    if twice.numel():
        refuse(f"position {int(twice[0])} twice", "each position of a query head once")


def check_tail(tail: Any, where: Where, queries: torch.Tensor) -> None:
    """Raises InvalidArgument unless tail gave a partial."""

    def refuse(what: str, expected: str) -> NoReturn:
        raise InvalidArgument(f"{_words(where, 'tail')}: returned {what}; expected {expected}")

    group, dim = queries.shape
    expected = f"(out, lse), tensors of floats [{group}, {dim}] and [{group}]"
    if not isinstance(tail, tuple) or len(tail) != 2:
        refuse(_found(tail), expected)
    for name, value, shape in zip(("out", "lse"), tail, ((group, dim), (group,))):
        is_tensor = isinstance(value, torch.Tensor) and value.is_floating_point()
        if not is_tensor or value.shape != shape:
            refuse(f"{name} as {_found(value)}", expected)
    out, lse = tail
    if not bool(out.isfinite().all()):
        refuse("an out that is not finite", "finite numbers, zeros where lse is -inf")
    if bool((lse.isnan() | (lse == torch.inf)).any()):
        refuse("an lse of nan or inf", "the log of a sum of exponentials, -inf for an empty sum")
