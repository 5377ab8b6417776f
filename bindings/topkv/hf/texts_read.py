"""Texts being read: their rows, and the attention of a prefill over them."""

from __future__ import annotations

from typing import Any

import topkv
from topkv import OutOfMemory
from topkv.hf.prefill_mode import PrefillMode
from topkv.hf.rows import Step


class PrefillRows:
    """A text being read.

    freeze() does not end it. If a later action fails, such as the build of an index, the text can be
    read on, or be frozen again.
    """

    def __init__(self, modes: PrefillMode, capacity: int, chunk: int, texts: int):
        """capacity: tokens that rows are reserved for. chunk: tokens of the first call. texts: the
        number of texts that are made now."""
        self._modes, self._capacity, self._chunk = modes, capacity, chunk
        self.mode = modes.of(capacity, chunk, texts)
        # What holds the rows: a ContextBuilder, or a Context over them.
        self._held: list[Any] = [self._builder_of(capacity)]

    def _builder_of(self, capacity: int) -> topkv.ContextBuilder:
        modes = self._modes
        options = modes.options | {"prefill": self.mode}
        return topkv.ContextBuilder(
            modes.shape, capacity=capacity, dtype=modes.dtype, device=modes.device, **options
        )

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

    def outgrows(self, more: int) -> bool:
        """Whether `more` tokens, the next call's, need more memory than the text has. If so, the memory
        of the device that it reads with is given back."""
        wanted = self.tokens + more
        if self._is_frozen:
            self._capacity = max(self._capacity, wanted)
        builder = self._builder
        if wanted <= builder.capacity and more <= self._chunk:
            return False
        if self.mode == "sparse" and self._modes.takes_memory:
            builder.truncate(builder.tokens(0))
        return True

    def make_room(self, more: int, texts: int) -> None:
        """Makes room for `more` tokens in a text that outgrows its memory, as one of so many texts that
        take memory now. If a sparse prefill in mode "auto" no longer fits into the device's memory, the
        text is read on densely."""
        wanted = self.tokens + more
        builder = self._builder
        grows = wanted > builder.capacity
        chunk = max(self._chunk, more)
        larger = builder.capacity
        if grows and self.mode == "sparse":
            larger = self._modes.capacity_for(wanted, larger, chunk, texts)
        elif grows:
            larger = max(wanted, 2 * larger)
        if self.mode == "sparse" and self._modes.of(larger, chunk, texts) == "dense":
            self.freeze()
            self.mode, self._capacity = "dense", larger
            self._read_on(wanted)
        elif grows:
            try:
                builder.reserve(larger)
            except OutOfMemory:  # more than this much is a convenience
                builder.reserve(wanted)
        self._chunk = chunk

    def _read_on(self, least: int = 0) -> None:
        """Copies an unused context into a builder, with room for `least` tokens or more."""
        context = self._held[-1]
        least = max(least, context.tokens)
        try:
            builder = self._builder_of(max(self._capacity, least))
            builder.resume(context)
        except OutOfMemory:
            if least >= self._capacity:
                raise
            builder = self._builder_of(least)
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

    def __init__(self, modes: PrefillMode, *, alike: int, capacities: list[int], chunk: int):
        """capacities: tokens that the rows of each text are reserved for. chunk: tokens of the first
        call."""
        self.shape, self.alike = modes.shape, alike
        self._dtype = modes.dtype
        self._check_memory(capacities)
        texts = len(capacities)
        self._texts = [PrefillRows(modes, capacity, chunk, texts) for capacity in capacities]

    def _check_memory(self, tokens: list[int]) -> None:
        """Raises OutOfMemory unless there is memory for all texts. A builder considers only its own
        rows, and takes memory as they come."""
        if len(tokens) > 1:
            topkv.ContextBuilder(self.shape, capacity=sum(tokens), dtype=self._dtype)

    @property
    def texts(self) -> int:
        return len(self._texts)

    @property
    def mode(self) -> str:
        """The mode of the prefill: dense if that is the mode of one of the texts."""
        return min(text.mode for text in self._texts)

    def cut(self, held: list[int], spoiled: bool) -> None:
        """Keeps the first held[i] tokens of batch row i."""
        for text, count in zip(self._texts, held[:: self.alike], strict=True):
            text.cut(count, spoiled)

    def make_room(self, more: list[int]) -> None:
        """Makes room for more[i] tokens in batch row i."""
        self._check_memory(more[:: self.alike])
        # None has taken its memory when the next one is asked, so that they share what is left.
        growing = [
            (text, count)
            for text, count in zip(self._texts, more[:: self.alike], strict=True)
            if text.outgrows(count)
        ]
        for text, count in growing:
            text.make_room(count, len(growing))

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
