"""Ends a call at a chosen point, as Ctrl-C or a failing allocation may."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import topkv.hf
import transformers

#: Here every line is a point, in transformers every call of a function.
_LINES = str(Path(topkv.hf.__file__).parent)
_CALLS = tuple(
    str(Path(transformers.__file__).parent / part)
    for part in ("models", "cache_utils.py", "masking_utils.py")
)


class Interrupt(BaseException):
    """Like KeyboardInterrupt, nothing that `except Exception` takes."""


def run(call: Callable[[], Any], at_point: Callable[[int], None]) -> Any:
    """call(), with at_point(n) before the n-th point; what that raises ends the call there."""
    points = 0

    def reached() -> None:
        nonlocal points
        points += 1
        at_point(points - 1)

    def lines(_frame: Any, event: str, _argument: Any) -> Any:
        if event == "line":
            reached()
        return lines

    def calls(frame: Any, _event: str, _argument: Any) -> Any:
        code = frame.f_code
        # What is raised on the way into a generator passes its own `except` by, unlike Ctrl-C.
        if not code.co_flags & inspect.CO_GENERATOR:
            if code.co_filename.startswith((_LINES, *_CALLS)):
                reached()
        if code.co_filename.startswith(_LINES) and code.co_name != "<genexpr>":
            return lines
        return None

    earlier = sys.gettrace()
    sys.settrace(calls)
    try:
        return call()
    finally:
        sys.settrace(earlier)


def run_counting(call: Callable[[], Any], state: Callable[[], Any]) -> tuple[Any, int, int]:
    """call(), the points before it changed what state() gives, and those after."""
    before = state()
    seen: list[bool] = []
    result = run(call, lambda _: seen.append(state() == before))
    changed = seen.index(False) if False in seen else len(seen)
    return result, changed, len(seen) - changed


def run_until(call: Callable[[], Any], point: int) -> tuple[bool, Any]:
    """call() up to a point, where it is ended: True. False and its result if it has fewer."""

    def end(n: int) -> None:
        if n == point:
            raise Interrupt

    try:
        return False, run(call, end)
    except Interrupt:
        return True, None
