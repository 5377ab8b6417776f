"""An evaluation from its settings to its files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch

from topkv.eval import _core
from topkv.eval.answer import Asked, greedy
from topkv.eval.methods import parse_methods
from topkv.eval.run import VERSION, Run
from topkv.eval.settings import Settings, checked, configuration, in_words
from topkv.hf import families
from topkv.hf.progress import Counting
from topkv.hf.rows import open_device


def evaluate(
    model: Any,
    tokenizer: Any,
    settings: Settings,
    *,
    output: str | os.PathLike[str] | None = None,
    name: str | None = None,
    fresh: bool = False,
    progress: bool = True,
    note: Callable[[str], None] = lambda line: None,
) -> _core.ScoreTable:
    """Asks the model for the answers that the folder `output` lacks, writes the folder's files, and
    returns the scores of all its answers.

    model, tokenizer: of transformers, on one device. The model's attention implementation and its
    settings of generation are restored afterwards.
    name: the model's name in the record; None: the path it was loaded from.
    fresh: start the folder over.
    progress: report on stderr.
    note: called with lines for the user.

    If anything ends the call, the answers so far are in the folder, and another call continues.

    Raises topkv.InvalidArgument, before any work, for invalid settings, and topkv.FileError for a
    folder of another evaluation."""
    settings = checked(settings)
    families.check(model.config)
    text = families.text_config(model.config)
    layers = families.layer_types(model.config)[0].count(families.FULL)
    methods = parse_methods(settings, families.head_dim(model.config), layers)
    device = open_device(model.device, 0).name
    name = name or model.config._name_or_path or model.config.model_type
    facts = {"dtype": str(model.dtype).removeprefix("torch."), "device": device, "version": VERSION}
    run_settings = json.dumps(configuration(settings, [m.name for m in methods], name, facts))
    directory = _core.Directory(output or _core.default_directory(run_settings), run_settings, fresh)
    title = f"Scores of {os.path.basename(os.path.normpath(name))}"
    implementation, training = text._attn_implementation, model.training
    try:
        model.eval()
        with torch.inference_mode(), greedy(model):
            run = Run(Asked(model, tokenizer, settings.chunk), settings, methods, directory, device)
            run.check()
            if len(directory):
                note(f"{directory.path}: has {len(directory)} answers already; the others are asked for")
            with Counting("eval", "answers", run.missing(), progress) as tell:
                run.run(tell)
    except BaseException:
        if len(directory):
            directory.write_scores(title, in_words(settings))
        raise
    finally:
        text._attn_implementation = implementation
        model.train(training)
    return directory.write_scores(title, in_words(settings))
