"""An answer's text as an iterator: Model.stream and Model.astream run Model.generate on a thread."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topkv._core import GenerateResult, Model, Progress, Session, _Ints


class _Left(Exception):
    """Ends the reading of a prompt when nobody waits for its answer."""


class _Answering:
    """A generation on a thread, which calls put(item) with pieces of text, then the result or the error."""

    def __init__(
        self,
        put: Callable[[str | GenerateResult | BaseException], None],
        model: Model,
        session: Session,
        prompt: _Ints,
        max_tokens: int,
        on_token: Callable[[int], object] | None,
        progress: Callable[[Progress], object] | None,
        options: dict[str, Any],
    ):
        self._left = threading.Event()

        def told(token: int) -> bool:
            goes_on = on_token is None or on_token(token) is not False
            return goes_on and not self._left.is_set()

        def said(piece: str) -> bool:
            put(piece)
            return not self._left.is_set()

        def read(report: Progress) -> None:
            if self._left.is_set():
                raise _Left
            if progress is not None:
                progress(report)

        def run() -> None:
            end: GenerateResult | BaseException
            try:
                end = model.generate(
                    session, prompt, max_tokens, on_token=told, on_text=said, progress=read, **options
                )
            except BaseException as error:  # raised again where the answer is waited for
                end = error
            put(end)

        self._thread = threading.Thread(target=run, name="topkv answer", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Makes the generation end within a step, or within a second of reading the prompt."""
        self._left.set()

    def join(self) -> None:
        self._thread.join()


def stream(
    self: Model,
    session: Session,
    prompt: _Ints,
    max_tokens: int = 128,
    *,
    on_token: Callable[[int], object] | None = None,
    progress: Callable[[Progress], object] | None = None,
    **options: Any,
) -> Generator[str, None, GenerateResult]:
    """Yields pieces of the answer's text as they come.

    options: as of generate(). The generator's value is the result of generate()
    (`result = yield from …`). on_token and progress are called on another thread. Leaving the loop
    ends the generation. The session then keeps the tokens it was fed; if its prompt was not read to
    the end, the session is as it was before."""
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()
    answering = _Answering(items.put, self, session, prompt, max_tokens, on_token, progress, options)
    try:
        while isinstance(item := items.get(), str):
            yield item
    finally:
        answering.leave()
        answering.join()
    if isinstance(item, BaseException):
        raise item
    return item


async def astream(
    self: Model,
    session: Session,
    prompt: _Ints,
    max_tokens: int = 128,
    *,
    on_token: Callable[[int], object] | None = None,
    progress: Callable[[Progress], object] | None = None,
    **options: Any,
) -> AsyncGenerator[str, None]:
    """Yields pieces of the answer's text as they come, for asyncio, whose loop runs on meanwhile.

    Takes the arguments of stream(). Python closes an asynchronous generator some time after a program
    leaves it. `async with contextlib.aclosing(model.astream(…)) as pieces` ends the generation at
    once."""
    loop = asyncio.get_running_loop()
    items: asyncio.Queue[Any] = asyncio.Queue()

    def put(item: object) -> None:
        try:
            loop.call_soon_threadsafe(items.put_nowait, item)
        except RuntimeError:  # the loop is closed: nobody waits
            answering.leave()

    answering = _Answering(put, self, session, prompt, max_tokens, on_token, progress, options)
    try:
        while isinstance(item := await items.get(), str):
            yield item
    finally:
        answering.leave()
        await asyncio.shield(loop.run_in_executor(None, answering.join))
    if isinstance(item, BaseException):
        raise item
