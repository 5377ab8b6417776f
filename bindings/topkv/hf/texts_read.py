"""Texts being read: their rows, and dense attention over them."""

from __future__ import annotations

from typing import Any

import topkv
from topkv import OutOfMemory
from topkv.hf.rows import Step


class PrefillRows:
    """A text being read.

    freeze() does not end it. If a later action fails, such as the build of an index, the text can be
    read on, or be frozen again.
    """

    def __init__(self, shape: topkv.AttentionShape, device: topkv.Device, **options: Any):
        self._shape = shape
        self._options = {"device": device} | options
        self._capacity = self._options.pop("capacity")
        # What holds the rows: a ContextBuilder, or a Context over them.
        self._held: list[Any] = [self._builder_of(self._capacity)]

    def _builder_of(self, capacity: int) -> topkv.ContextBuilder:
        return topkv.ContextBuilder(self._shape, capacity=capacity, **self._options)

    @property
    def shape(self) -> topkv.AttentionShape:
        return self._shape

    @property
    def _is_frozen(self) -> bool:
        return isinstance(self._held[-1], topkv.Context)

    @property
    def _builder(self) -> topkv.ContextBuilder:
        if self._is_frozen:
            self._read_on()
        return self._held[-1]

    @property
    def tokens(self) -> int:
        held = self._held[-1]
        return held.tokens if self._is_frozen else held.tokens(0)

    def cut(self, held: int, spoiled: bool) -> None:
        """Keeps the first `held` tokens. spoiled: layers may differ in what they hold."""
        if spoiled or self.tokens != held:
            self._builder.truncate(held)

    def make_room(self, more: int) -> None:
        """Makes room for `more` tokens. It doubles the capacity, so that copying is linear."""
        wanted = self.tokens + more
        if self._is_frozen:
            self._capacity = max(self._capacity, wanted)
        if wanted <= self._builder.capacity:
            return
        try:
            self._builder.reserve(max(wanted, 2 * self._builder.capacity))
        except OutOfMemory:  # twice as much is a convenience, this much is needed
            self._builder.reserve(wanted)

    def _read_on(self) -> None:
        """Copies an unused context into a builder."""
        context = self._held[-1]
        builder = self._builder_of(max(self._capacity, context.tokens))
        builder.resume(context)
        self._held = [builder]

    def attend(self, step: Step) -> None:
        """Attends a step of one batch row."""
        step.run(self._builder)

    def keep(self, context: topkv.Context) -> None:
        """Keeps the result of freeze() with a further index, for the next freeze()."""
        self._held.append(context)

    def freeze(self) -> topkv.Context:
        """The text as a context."""
        if not self._is_frozen:
            # In one call of C, which Ctrl-C does not part: the builder is empty afterwards, and the
            # context all that holds the rows.
            self._held.extend(map(topkv.ContextBuilder.freeze, (self._builder,)))
        return self._held[-1]


class TextsRead:
    """Texts being read side by side. Each text has `alike` consecutive batch rows, which are beams and
    samples of one prompt; the prompt is read and kept once."""

    def __init__(
        self,
        shape: topkv.AttentionShape,
        device: topkv.Device,
        *,
        texts: int,
        alike: int,
        capacity: int,
        **options: Any,
    ):
        self.shape, self.alike = shape, alike
        self._dtype = options["dtype"]
        self._check_memory([capacity] * texts)
        self._texts = [
            PrefillRows(shape, device, capacity=capacity, **options) for _ in range(texts)
        ]

    def _check_memory(self, tokens: list[int]) -> None:
        """Raises OutOfMemory unless there is memory for all texts. A builder considers only its own
        rows, and takes memory as they come."""
        if len(tokens) > 1:
            topkv.ContextBuilder(self.shape, capacity=sum(tokens), dtype=self._dtype)

    @property
    def texts(self) -> int:
        return len(self._texts)

    def cut(self, held: list[int], spoiled: bool) -> None:
        """Keeps the first held[i] tokens of batch row i."""
        for text, count in zip(self._texts, held[:: self.alike], strict=True):
            text.cut(count, spoiled)

    def make_room(self, more: list[int]) -> None:
        """Makes room for more[i] tokens in batch row i."""
        self._check_memory(more[:: self.alike])
        for text, count in zip(self._texts, more[:: self.alike], strict=True):
            text.make_room(count)

    def attend(self, step: Step, counts: list[int]) -> None:
        """Attends one text after the other."""
        for number, text in enumerate(self._texts):
            first = number * self.alike
            rows = range(first, first + self.alike)
            if (count := counts[first]) > 0:
                part = step.part(rows[:1], count)
                text.attend(part)
                step.take(part, rows)

    def keep(self, context: topkv.Context, larger: topkv.Context) -> None:
        """Keeps a result of freeze() with a further index, for the next freeze()."""
        for text in self._texts:
            if text.freeze() is context:
                text.keep(larger)

    def freeze(self) -> list[topkv.Context]:
        """The texts as contexts."""
        return [text.freeze() for text in self._texts]
