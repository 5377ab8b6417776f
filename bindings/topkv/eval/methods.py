"""The methods of an evaluation: topkv's by name, and classes of files."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topkv import FileError, InvalidArgument, Unsupported
from topkv.eval import _core
from topkv.eval.settings import Settings


@dataclass(frozen=True)
class EvalMethod:
    """One of the methods that are compared."""

    name: str  # as it was given
    parsed: _core.Method  # of a class: window, sinks and dense layers alone
    own: type | None = None  # a class that finds the rows
    is_plain: bool = False  # transformers' own DynamicCache
    host_search: bool = False  # of a session; a class is asked where it runs

    def options(self, budget: int | None) -> dict[str, Any]:
        """Options of a session, by their names in TopkCache.session()."""
        options = self.parsed.options(1 if budget is None else budget)
        return options | {"host_search": self.host_search}


def load_class(path: str, name: str) -> type:
    """Runs a Python file and returns a class of it."""
    file = Path(path)
    if not file.is_file():
        raise FileError(f"{path}: is not a file; expected Python code with a class {name}")
    module_name = f"topkv_eval_methods.{file.resolve()}"
    module = sys.modules.get(module_name)
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise InvalidArgument(
                f"{path}: cannot be run: {type(error).__name__}: {error}"
            ) from error
    found = getattr(module, name, None)
    if not inspect.isclass(found) or not callable(getattr(found, "search", None)):
        has = [x for x, y in vars(module).items() if inspect.isclass(y) and hasattr(y, "search")]
        raise InvalidArgument(
            f"{path}: has no class {name} with a method search; "
            + (f"it has {', '.join(has)}" if has else "add one")
        )
    return found


def _parse(text: str, settings: Settings, head_dim: int, layers: int) -> EvalMethod:
    def parse(text: str) -> _core.Method:
        return _core.parse_method(
            text,
            head_dim=head_dim,
            layers=layers,
            window=settings.window,
            sinks=settings.sinks,
            dense_layers=min(settings.dense_layers, layers),
            select_by=settings.select_by,
        )

    head, at, parameters = text.partition("@")
    path, colon, name = head.rpartition(":")
    if not (colon and path.endswith(".py")):
        parsed = parse(text)
        is_plain = head == "dense" and not parsed.budgets
        return EvalMethod(text, parsed, is_plain=is_plain, host_search=settings.host_search)
    own = load_class(path, name)
    if "select=" in parameters:
        raise InvalidArgument(
            f"method '{text}': a class chooses by what it returns, [group, n] or [n]; leave select out"
        )
    return EvalMethod(text, parse("exact" + at + parameters), own)


def parse_methods(settings: Settings, head_dim: int, layers: int) -> list[EvalMethod]:
    """The methods of the settings, for a model with this head dim and number of full-attention layers."""
    texts = _core.split_methods(settings.methods)
    methods = [_parse(text, settings, head_dim, layers) for text in texts]
    for method in methods:
        if method.own is not None and str(settings.kv_dtype).startswith("q"):
            raise Unsupported(
                f"method '{method.name}': a class takes rows of floats, and kv_dtype is "
                f"{settings.kv_dtype}; give f32, f16 or bf16"
            )
    return methods
