"""`topkv eval` through transformers: models and methods of one's own in the same table.

    python -m topkv.eval -m MODEL --tasks ruler --methods "dense;codes;my_methods.py:MyMethod"

Tasks, scores and files are those of `topkv eval`; answers come from ``model.generate``. For a model
that is made in Python::

    table = topkv.eval.evaluate(model, tokenizer, topkv.eval.Settings(tasks=["vt"]), output="out/vt")

docs/reference/eval.md has all of it. Needs torch and transformers.
"""

import topkv.hf  # says what is missing

from topkv.eval._core import Score, ScoreRow, ScoreTable
from topkv.eval.evaluate import evaluate
from topkv.eval.settings import Settings

__all__ = [
    "Score",
    "ScoreRow",
    "ScoreTable",
    "Settings",
    "evaluate",
]
