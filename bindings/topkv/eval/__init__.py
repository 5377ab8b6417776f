"""`topkv eval` through transformers, for other models and your own methods, in one table.

    python -m topkv.eval -m MODEL --tasks ruler --methods "dense;codes;my_methods.py:MyMethod"

`topkv eval` has the same tasks, scores and files; here answers come from ``model.generate``. For a
model that is made in Python::

    table = topkv.eval.evaluate(model, tokenizer, topkv.eval.Settings(tasks=["vt"]), output="out/vt")

docs/reference/eval.md describes it. Needs torch and transformers.
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
