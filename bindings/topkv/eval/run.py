"""The work of an evaluation.

If answers of a sample are missing, each kind of cache reads its text once. Every method then answers
with each budget, in a session of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from transformers import DynamicCache

import topkv
import topkv.hf
from topkv import InvalidArgument
from topkv.eval import _core
from topkv.eval.answer import Answer, Asked, beginning_of, encode_of
from topkv.eval.methods import EvalMethod
from topkv.eval.settings import Settings

VERSION = f"{topkv.__version__}, transformers {transformers.__version__}"


class _Text:
    """A text, read by a TopkCache when a method first asks for that."""

    def __init__(self, asked: Asked, settings: Settings, tokens: list[int]):
        self.tokens, self.ids = tokens, asked.ids(tokens)
        self._asked, self._settings = asked, settings
        self._cache: topkv.hf.TopkCache | None = None
        self._seconds = 0.0

    def cache(self) -> tuple[topkv.hf.TopkCache, float]:
        """One that has read it, and the seconds that took."""
        if self._cache is None:
            cache = topkv.hf.TopkCache(
                self._asked.model.config,
                index="exact",
                **self._settings.prefill_options,
                kv_dtype=self._settings.kv_dtype,
                max_cache_len=len(self.tokens),
                progress=False,
            )
            self._seconds = self._asked.read(self.ids, cache)
            self._cache = cache.freeze()
        return self._cache, self._seconds

    def plain(self) -> tuple[DynamicCache, float]:
        """The same of transformers' own cache, for one answer."""
        cache = DynamicCache(config=self._asked.model.config)
        return cache, self._asked.read(self.ids, cache)


class Run:
    """The answers of some settings that a folder lacks."""

    def __init__(
        self,
        asked: Asked,
        settings: Settings,
        methods: list[EvalMethod],
        directory: _core.Directory,
        device: str,
    ):
        """device: its name, for the record."""
        self._asked, self._settings, self._methods = asked, settings, methods
        self._directory, self._device = directory, device
        encode = self._encode = encode_of(asked.tokenizer)
        self._tasks = _core.make_tasks(
            settings.tasks, encode, beginning_of(asked.tokenizer),
            settings.essays, settings.files, settings.questions,
        )
        self._text: _Text | None = None

    def check(self) -> None:
        """Raises InvalidArgument before any work if a length is too short for a task or too long for
        the model, or if an index cannot be built over that many keys."""
        config = topkv.hf.families.text_config(self._asked.model.config)
        reach = getattr(config, "max_position_embeddings", None)
        if reach and self._settings.lengths[-1] > reach:
            raise InvalidArgument(
                f"length is {self._settings.lengths[-1]} tokens, and the model was made for "
                f"{reach} (max_position_embeddings of its config); give lengths up to that"
            )
        head_dim = topkv.hf.families.head_dim(self._asked.model.config)
        for task in self._tasks:
            # Generated samples are alike; questions about files are not.
            for number in range(1 if task.most < 0 else self._settings.of_task(task.most)):
                sample = self._make(task, self._settings.lengths[0], number)
                for index in {x for m in self._methods if not m.own for x in m.parsed.indices()}:
                    topkv.IndexSpec(index).check(head_dim, len(sample.context))

    def _make(self, task: _core.Task, length: int, number: int) -> _core.Sample:
        try:
            return task.sample(length, number, self._settings.seed)
        except InvalidArgument as error:
            raise InvalidArgument(f"task {task.name}, length {length}: {error}") from error

    def _samples(self) -> Iterator[tuple[_core.Task, int, int]]:
        for length in self._settings.lengths:
            for task in self._tasks:
                for number in range(self._settings.of_task(task.most)):
                    yield task, length, number

    def _missing_of(
        self, task: _core.Task, length: int, number: int, method: EvalMethod
    ) -> list[int | None]:
        """The budgets whose answers are missing; a method that attends all rows has one answer."""
        budgets = self._settings.budgets if method.parsed.budgets else [None]
        return [
            budget
            for budget in budgets
            if not self._directory.has(task.name, length, number, method.name, budget)
        ]

    def missing(self) -> int:
        """Answers that the folder does not have."""
        return sum(len(self._missing_of(*x, m)) for x in self._samples() for m in self._methods)

    def run(self, tell: Callable[[], None]) -> None:
        """Asks for the missing answers. tell: called after each answer."""
        for task, length, number in self._samples():
            sample = None
            for method in self._methods:
                missing = self._missing_of(task, length, number, method)
                if not missing:
                    continue
                if sample is None:
                    sample = self._make(task, length, number)
                    self._give(list(sample.context))
                place = {"task": task.name, "length": length, "sample": number}
                for answer in self._answers(task, sample, method, missing):
                    self._directory.append(json.dumps(place | answer))
                    tell()

    def _give(self, tokens: list[int]) -> None:
        """Questions about files share their text."""
        if self._text is None or self._text.tokens != tokens:
            self._text = None  # two would not fit where one just does
            self._text = _Text(self._asked, self._settings, tokens)

    def _answers(
        self, task: _core.Task, sample: _core.Sample, method: EvalMethod, budgets: list[int | None]
    ) -> Iterator[dict[str, Any]]:
        question = self._asked.ids(self._encode(sample.question))
        for budget, make, prefill_seconds in self._caches(method, budgets):
            start = time.perf_counter()
            cache = make(question.shape[1] + sample.predict + 1)
            read = self._bytes_of(cache) if method.is_plain else None
            answer = self._asked.ask(
                self._text.ids, question, cache, sample.predict, sample.one_line, task.steps
            )
            seconds = time.perf_counter() - start
            yield {
                "method": method.name,
                "budget": budget,
                "question": sample.question,
                "references": sample.references,
                "answer": answer.text,
                **_scores(task, answer, sample.references),
                "haystack": task.haystack,
                "context_tokens": len(sample.context),
                "question_tokens": question.shape[1],
                "answer_tokens": answer.tokens,
                "rows_per_head": _rows_per_head(cache),
                "bytes_read": read if method.is_plain else _bytes_read(method, budget, cache),
                "prefill_seconds": prefill_seconds,
                "question_seconds": answer.question_seconds,
                "decode_seconds": answer.decode_seconds,
                "decode_steps": answer.decode_steps,
                "seconds": seconds,
                **_came_to(method, budget, cache),
                "prefill": "dense" if method.is_plain else cache.prefill_mode,
                "seed": self._settings.seed,
                "device": self._device,
                "version": VERSION,
            }

    def _bytes_of(self, cache: DynamicCache) -> int:
        """Bytes of the text's rows in the full-attention layers, which each token reads."""
        kinds = topkv.hf.families.layer_types(self._asked.model.config)[0]
        return sum(
            layer.keys.nbytes + layer.values.nbytes
            for kind, layer in zip(kinds, cache.layers, strict=True)
            if kind == topkv.hf.families.FULL
        )

    def _caches(
        self, method: EvalMethod, budgets: list[int | None]
    ) -> Iterator[tuple[int | None, Callable[[int], Any], float]]:
        """Yields for each budget a function that makes its cache with room for n tokens, and the
        seconds that reading the text took."""
        if method.is_plain:
            for budget in budgets:
                cache, seconds = self._text.plain()
                yield budget, lambda room, cache=cache: cache, seconds
            return
        read, seconds = self._text.cache()
        # Indices go with this reader of the text, before the next method's are made.
        reader = read.session(sinks=method.options(None)["sinks"])
        if method.own is None:
            reader.freeze(method.options(None)["index"])
            own = None
        else:
            own = reader.prepare(method.own, device=self._asked.model.device)
        for budget in budgets:
            options = method.options(budget)
            if own is not None:
                options = {x: options[x] for x in ("k", "window", "sinks", "dense_layers")}
            yield (
                budget,
                lambda room, options=options: reader.session(
                    method=own, session_capacity=room, **options
                ),
                seconds,
            )


def _scores(task: _core.Task, answer: Answer, references: list[str]) -> dict[str, float | None]:
    if not references:
        return {"score": None, "f1": None}
    f1 = _core.squad_f1(answer.text, references) if task.f1 else None
    return {"score": task.score(answer.text, references), "f1": f1}


def _rows_per_head(cache: Any) -> float:
    """Rows attended beyond window and sinks, per token, layer and query head, on average."""
    if not isinstance(cache, topkv.hf.TopkCache):
        return 0.0
    (stats,) = cache.stats()
    return stats.rows_per_head(cache.context.shape.q_heads)


def _bytes_read(method: EvalMethod, budget: int | None, cache: Any) -> int | None:
    """Bytes of the text read per token; None: the index, or the class, does not report it."""
    if method.own is not None:
        return None
    (session,) = cache.sessions
    shape = cache.context.shape
    options = method.options(budget)
    return _core.bytes_read(
        cache.context,
        index=session.index,
        tail=session.tail,
        window=options["window"],
        sinks=options["sinks"],
        dense_layers=options["dense_layers"],
        rows=_rows_per_head(cache) * shape.layers * shape.q_heads,
    )


def _came_to(method: EvalMethod, budget: int | None, cache: Any) -> dict[str, Any]:
    options = method.options(budget)
    index, tail = options["index"], options["tail"]
    if method.own is not None:
        index, tail = method.own.__name__, "own" if hasattr(method.own, "tail") else "none"
    elif not method.is_plain:
        (session,) = cache.sessions
        index, tail = session.index, session.tail
    return {
        "index": index,
        "tail": tail,
        "window": options["window"],
        "sinks": options["sinks"],
        "dense_layers": options["dense_layers"],
        "select": options["select_by"],
    }
