"""The settings of an evaluation: tasks, lengths and methods."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from topkv import FileError, InvalidArgument
from topkv.eval import _core
from topkv.hf.options import CHOOSING, check_prefill, integer, prefill_options, row_dtype_name

DEFAULT_SAMPLES = 20


@dataclass(frozen=True)
class Settings:
    """The settings of an evaluation, like the flags of `topkv eval`; see docs/reference/eval.md.

    methods: names with ';' between them; a class as FILE.py:NAME.
    samples: samples of each task and length. None: 20, and all questions of qa.
    essays, questions: a folder and a file; "": none.
    window, sinks, dense_layers, select_by: for methods that do not set them.
    host_search: for all indices.
    prefill, prefill_keys, prefill_least, prefill_mass: how a TopkCache reads each text, as in
    TopkCache. Its window and sinks are those above. The method dense reads densely in any case.
    kv_dtype: dtype of topkv's rows; None: the default of TopkCache.
    chunk: tokens that the model reads at a time.
    """

    tasks: list[str] = field(default_factory=lambda: ["ruler"])
    lengths: list[int] = field(default_factory=lambda: [4096, 16384])
    methods: str = "dense;codes"
    budgets: list[int] = field(default_factory=lambda: [128])
    samples: int | None = None
    seed: int = 42
    essays: str = ""
    files: list[str] = field(default_factory=list)
    questions: str = ""
    window: int = 1024
    sinks: int = 4
    dense_layers: int = 0
    select_by: str = "query_head"
    host_search: bool = False
    prefill: str = "dense"
    prefill_keys: int = 8192
    prefill_least: int | None = None
    prefill_mass: float = 0.98
    kv_dtype: str | torch.dtype | None = None
    chunk: int = 2048

    @property
    def prefill_options(self) -> dict[str, Any]:
        """The options of TopkCache that say how it reads a text."""
        return prefill_options(vars(self))

    @property
    def sample_count(self) -> int:
        return DEFAULT_SAMPLES if self.samples is None else self.samples

    def of_task(self, most: int) -> int:
        """The number of samples of a task that has `most` of them; -1: any number."""
        if most < 0:
            return self.sample_count
        return most if self.samples is None else min(self.samples, most)


def checked(settings: Settings) -> Settings:
    """The settings, with lists of numbers sorted. Raises InvalidArgument for invalid settings."""
    for name in ("tasks", "lengths", "budgets"):
        if isinstance(getattr(settings, name), str) or not list(getattr(settings, name)):
            raise InvalidArgument(
                f"{name} is {getattr(settings, name)!r}; expected a list with at least one in it"
            )
    least = {"samples": 1, "window": 1, "sinks": 0, "dense_layers": 0, "chunk": 2, "seed": 0}
    for name, lowest in least.items():
        if getattr(settings, name) is not None:
            integer(name, getattr(settings, name), lowest)
    check_prefill(settings.prefill_options)
    if settings.essays and not Path(settings.essays).is_dir():
        raise FileError(f"{settings.essays}: expected a folder of *.txt and *.md files")
    tasks = _core.parse_tasks(",".join(settings.tasks))
    if ("qa" in tasks) != bool(settings.questions):
        raise InvalidArgument("the task qa and a file of questions go together; give both, or leave both out")
    if settings.files and "qa" not in tasks:
        raise InvalidArgument("files are for the task qa; expected it among the tasks")
    return replace(
        settings,
        tasks=tasks,
        lengths=sorted({integer("length", x, 1) for x in settings.lengths}),
        budgets=sorted({integer("budget", x, 1) for x in settings.budgets}),
        kv_dtype=row_dtype_name(settings.kv_dtype),
    )


def configuration(
    settings: Settings, methods: list[str], model: str, facts: dict[str, Any]
) -> dict[str, Any]:
    """The settings that change answers, for run.json. facts: other entries."""

    def path(of: str) -> str:
        return os.path.abspath(of)

    made: dict[str, Any] = {
        "model": path(model) if os.path.exists(model) else model,
        "tasks": settings.tasks,
        "lengths": settings.lengths,
        "methods": methods,
        "budgets": settings.budgets,
        "samples": settings.sample_count,
        "seed": settings.seed,
        "words": "wonderwords 3.0.1",  # src/eval/tasks/wonderwords.h: wonder_lists
        "essays": path(settings.essays) if settings.essays else "generated",
    }
    if settings.questions:
        made["files"] = [path(file) for file in settings.files]
        made["questions"] = path(settings.questions)
    for name in ("window", "sinks", "dense_layers", "select_by", "kv_dtype", "chunk"):
        made[name] = getattr(settings, name)
    # Runs from before there was such a choice go on.
    if settings.host_search:
        made["host_search"] = True
    if settings.prefill != "dense":
        made["prefill"] = settings.prefill
    if settings.prefill in CHOOSING:
        for name in ("prefill_keys", "prefill_least", "prefill_mass"):
            made[name] = getattr(settings, name)
    return made | facts


def in_words(settings: Settings) -> str:
    words = f"window {settings.window}, sinks {settings.sinks}, rows by "
    words += settings.select_by.replace("_", " ")
    if settings.host_search:
        words += ", found by the host"
    if settings.dense_layers:
        words += f", first {settings.dense_layers} layers dense"
    if settings.prefill != "dense":
        words += f"; prefill {settings.prefill}"
    if settings.prefill in CHOOSING:
        words += f" of up to {settings.prefill_keys} keys, mass {settings.prefill_mass:g}"
    if settings.kv_dtype:
        words += f"; rows {settings.kv_dtype}"
    return f"{words}; prose {settings.essays or 'generated'}; seed {settings.seed}"
