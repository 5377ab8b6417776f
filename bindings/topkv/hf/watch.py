"""Wraps the calls that a TopkCache is given to.

A cache is given only K and V. Two methods of transformers know the ids, and whether the call of the
model came to its end: a model's call and ``generate``. They are wrapped when the first TopkCache is
made. Calls without a TopkCache are passed on.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import torch
from transformers import Cache, GenerationMixin, PreTrainedModel

from topkv import InvalidArgument, Unsupported
from topkv.hf.engine import Engine

_WRAPPED = "_topkv_wrapped"


def _engine_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Engine | None:
    """The engine of the TopkCache among the arguments of a call, or None."""
    for given in (kwargs.get("cache"), kwargs.get("past_key_values"), *args):
        if isinstance(given, Cache) and hasattr(given, "_engine"):
            return given._engine
    return None


def _ids_of(args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> torch.Tensor | None:
    ids = kwargs.get("input_ids", kwargs.get(name, args[0] if args else None))
    is_ids = isinstance(ids, torch.Tensor) and ids.ndim == 2 and not ids.is_floating_point()
    return ids if is_ids else None


@torch.compiler.disable  # so that it is called, and raises, where a graph would go on
def _refuse_compiled() -> NoReturn:
    raise Unsupported(
        "a TopkCache with torch.compile: a graph cannot hold its rows. Call the model as it was before "
        "torch.compile, or with another cache"
    )


def _is_compiled(model: Any) -> bool:
    """Whether a model is compiled: torch.compile(model), model.compile(), torch.compile(model.forward)."""
    return (
        torch.compiler.is_compiling()
        or getattr(model, "_compiled_call_impl", None) is not None
        or hasattr(model.forward, "_torchdynamo_orig_callable")
    )


def _wrap_call(call: Any) -> Any:
    @functools.wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        engine = _engine_of(args, kwargs)
        if engine is None:
            return call(self, *args, **kwargs)
        if _is_compiled(self):
            _refuse_compiled()
        if self.training:
            raise Unsupported("topkv's layers are for inference: call model.eval() first")
        ids = _ids_of(args, kwargs, "input_ids")
        return engine.in_call(ids, lambda: call(self, *args, **kwargs))

    return __call__


def _check_continues(engine: Engine, ids: torch.Tensor, mask: Any) -> None:
    """Raises InvalidArgument unless generate is given a continuation of the cache's tokens."""
    held, given = engine.tokens, ids.shape[1]
    if held == 0 or (isinstance(mask, torch.Tensor) and mask.shape[-1] == held + given):
        return  # nothing, or by the mask only new tokens were given
    engine.state.ids.check_begin(ids, min(held, given))
    if given <= held:
        raise InvalidArgument(
            f"generate is given {given} tokens and the cache holds {held}: nothing is new. Give it the "
            "tokens that the cache holds and the tokens that follow; for another question about its "
            "text use cache.session(), for another text cache.reset()"
        )


def _wrap_generate(generate: Any) -> Any:
    @functools.wraps(generate)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        engine = _engine_of(args, kwargs)
        ids = None if engine is None else _ids_of(args, kwargs, "inputs")
        if ids is None:
            return generate(self, *args, **kwargs)
        _check_continues(engine, ids, kwargs.get("attention_mask"))
        engine.prompts, engine.reads_until = ids.shape  # it may read in chunks, and more rows
        try:
            return generate(self, *args, **kwargs)
        finally:
            engine.prompts = engine.reads_until = 0

    return wrapped


def watch() -> None:
    """Wraps the two methods, once."""
    for owner, name, wrap in (
        (PreTrainedModel, "__call__", _wrap_call),
        (GenerationMixin, "generate", _wrap_generate),
    ):
        method = getattr(owner, name)
        if not getattr(method, _WRAPPED, False):
            wrapped = wrap(method)
            setattr(wrapped, _WRAPPED, True)
            setattr(owner, name, wrapped)
