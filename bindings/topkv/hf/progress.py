"""Progress of a TopkCache on stderr, while reading a text or building an index takes long.

A terminal has one line that is written over. Elsewhere (a pipe, a file, TERM=dumb) there is a line now
and then. TopkCache(progress=...) switches it; without that, transformers' own switch does,
``transformers.utils.logging.disable_progress_bar()``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from transformers.utils import logging

import topkv

#: Seconds of work before the first report, and between reports on a terminal and elsewhere.
PATIENCE, ON_TERMINAL, ELSEWHERE = 3.0, 0.2, 10.0


def clock() -> float:
    return time.monotonic()


def span(seconds: float) -> str:
    """As 42 s, 3 min 5 s, 2 h 10 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class _Line:
    """The reports of one piece of work. There are none if they are not wanted, or if it ends soon."""

    def __init__(self, wanted: bool | None, is_first: bool):
        wanted = logging.is_progress_bar_enabled() if wanted is None else wanted
        self._wanted = wanted and is_first
        self._said_at: float | None = None
        self._is_open = False

    @staticmethod
    def _is_terminal() -> bool:
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def say(self, worked: float, words: Callable[[], str]) -> None:
        """worked: seconds of work so far."""
        if not self._wanted or worked < PATIENCE or sys.stderr is None:
            return
        now, terminal = clock(), self._is_terminal()
        if self._said_at is not None:
            if now - self._said_at < (ON_TERMINAL if terminal else ELSEWHERE):
                return
        self._said_at = now
        self._is_open = terminal
        width = os.get_terminal_size(sys.stderr.fileno()).columns if terminal else 0
        line = f"topkv: {words()}"
        sys.stderr.write(f"\r\x1b[K{line[: width - 1]}" if terminal else f"{line}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Clears the terminal's line for other output."""
        if self._is_open:
            self._is_open = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class Reading:
    """A text being read, in one pass or many; the time between them does not count."""

    def __init__(self, wanted: bool | None, is_first: bool):
        self._line = _Line(wanted, is_first)
        self._seconds = 0.0
        self._tokens = 0.0  # read in these
        self._since: float | None = None  # the pass under way began

    def begin(self, held: int, tokens: int, total: int | None) -> None:
        """Begins a pass of `tokens` tokens after `held` tokens. total: tokens of the text; None: unknown."""
        self.pause()
        self._held, self._more, self._total = held, tokens, total
        self._since, self._done = clock(), 0.0

    def layer_done(self, layers: int, of: int) -> None:
        if self._since is None:
            return
        self._done = self._more * layers / of
        self._line.say(self._seconds + clock() - self._since, self._words)
        if layers == of:
            self.pause()

    def pause(self) -> None:
        """Ends the pass, or notes that it failed."""
        if self._since is None:
            return
        self._seconds += clock() - self._since
        self._tokens += self._done
        self._since = None
        if self._total is None or self._held + self._more >= self._total:
            self._line.clear()

    def _words(self) -> str:
        seconds = self._seconds + clock() - self._since
        rate = max((self._tokens + self._done) / seconds, 1e-9)
        at = self._held + self._done
        # Of a text whose length nobody said, what the pass has to do.
        end = self._held + self._more if self._total is None else self._total
        return (
            f"reading, {at:,.0f} of {end:,}{' or more' if self._total is None else ''} tokens, "
            f"{rate:,.0f} tokens/s, {span((end - at) / rate)} left"
        )


@contextmanager
def _telling(
    what: Callable[[topkv.Progress], str], wanted: bool | None, is_first: bool
) -> Iterator[Callable[[topkv.Progress], None]]:
    """Yields a callback for the reports of a long call of topkv."""
    line, began = _Line(wanted, is_first), clock()

    def report(progress: topkv.Progress) -> None:
        seconds = clock() - began
        left = seconds / max(progress.done, 1) * (progress.total - progress.done)
        line.say(seconds, lambda: f"{what(progress)}, {span(left)} left")

    try:
        yield report
    finally:
        line.clear()


def building(
    index: str, tail: str, *who: Any
) -> AbstractContextManager[Callable[[topkv.Progress], None]]:
    """Yields a callback for the reports of Context.ready_for. who: wanted, is_first."""

    def what(p: topkv.Progress) -> str:
        return f"building {tail if p.stage == 'tail' else index}, {p.done} of {p.total} {p.unit}"

    return _telling(what, *who)


def moving(doing: str, *who: Any) -> AbstractContextManager[Callable[[topkv.Progress], None]]:
    """Yields a callback for the reports of saving or loading a context, in bytes."""
    return _telling(
        lambda p: f"{doing} the text, {p.done / 2**30:.1f} of {p.total / 2**30:.1f} GiB", *who
    )


class Counting:
    """Counts `total` pieces of work as they are done. A context whose value counts one piece."""

    def __init__(self, what: str, unit: str, total: int, wanted: bool):
        self._line = _Line(wanted, True)
        self._what, self._unit, self._total, self._done = what, unit, total, 0
        self._began = clock()

    def __enter__(self) -> Callable[[], None]:
        return self._tell

    def __exit__(self, *_: object) -> None:
        self._line.clear()

    def _tell(self) -> None:
        self._done += 1
        seconds = clock() - self._began
        left = seconds / self._done * (self._total - self._done)
        self._line.say(
            seconds,
            lambda: f"{self._what}, {self._done} of {self._total} {self._unit}, {span(left)} left",
        )
