"""Texts that another program or cache has read: contexts, and files of contexts."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import torch
import transformers

import topkv
from topkv import FileError, InvalidArgument, Unsupported
from topkv.hf import families, kept, kept_file
from topkv.hf.fingerprint import fingerprint
from topkv.hf.ids import UNKNOWN, HeldIds
from topkv.hf.indexers import Rule
from topkv.hf.options import SAVED, Options, saved_options, tail_of
from topkv.hf.progress import moving
from topkv.hf.state import Text

#: Begins a file's made_with; the options follow in JSON, then the versions.
_MADE = "topkv.hf.TopkCache "


def known_ids(text: Text | None) -> torch.Tensor | None:
    """Ids of a text, [texts, tokens], if all are known."""
    if text is None or bool((text.ids == UNKNOWN).any()):
        return None
    return text.ids


def check_fits(cache: Any, shape: topkv.AttentionShape) -> None:
    """Raises unless the cache's model can have rows of this shape."""
    engine = cache._engine
    if shape.layers != engine.options.layers:
        raise InvalidArgument(
            f"the context has {shape.layers} layers, and the model has {engine.options.layers}"
        )
    if shape.row_layer != engine.row_layer:
        raise InvalidArgument(
            f"layers of the context attend the rows of layers {shape.row_layer}, and layers of the model "
            f"the rows of layers {engine.row_layer}"
        )
    rule = engine.indexers and engine.indexers.rule
    has = shape.indexer and Rule.of(shape.indexer)
    if has != rule or shape.indexer_layer != engine.indexer_layer:
        raise InvalidArgument(
            f"layers of the context attend choices of {has}, of layers {shape.indexer_layer}, and layers of the "
            f"model choices of {rule}, of layers {engine.indexer_layer}"
        )
    if shape.keys_are_values != families.has_latents(cache.config):
        has, wants = ("latents" if x else "K and V" for x in (shape.keys_are_values, not shape.keys_are_values))
        raise InvalidArgument(f"rows of the context are {has}, and rows of the model are {wants}")
    if shape.head_dim != families.head_dim(cache.config):
        raise InvalidArgument(
            f"the context has heads of {shape.head_dim} dims, and the model has heads of "
            f"{families.head_dim(cache.config)}"
        )


def check_origin(cache: Any, context: Any) -> None:
    """Raises unless rows that another program has computed can be the model's."""
    if isinstance(context, topkv.Context):
        check_fits(cache, context.shape)
    if families.has_latents(cache.config):
        raise Unsupported(
            "from_context of a model whose layers cache latents (MLA): the order of the rotated part of a key "
            "differs between programs, also between topkv.Model and transformers; read the text with the "
            "model, or load a file of cache.save()"
        )


def over(cache: Any, context: Any, tokens: Any, states: Any = ()) -> Any:
    """Makes a context the text of an empty cache, and returns the cache. states: as Text.kept."""
    if not isinstance(context, topkv.Context):
        raise InvalidArgument(
            f"context is a {type(context).__name__}; expected a topkv.Context, as "
            "ContextBuilder.freeze() or Model.prefill() gives"
        )
    check_fits(cache, context.shape)
    if cache._engine.kept_layers() and not states:
        raise Unsupported(
            "from_context of a model whose layers are not all full attention: a context does not have "
            "the state of other layers; read the text with the model, or load a file of cache.save()"
        )
    ids = HeldIds.of_text(tokens, context.tokens)[None]
    engine, text = cache._engine, Text((context,), context.tokens, ids, kept=states)
    engine.state = replace(engine.state, text=text, tokens=context.tokens, ids=HeldIds(ids))
    for number, state in text.kept_of(1).items():
        kept.put(cache.layers[number], state)
    engine.freeze()
    return cache


# ---- files ----


def _check_can_be_saved(cache: Any, model: Any, text_only: bool) -> None:
    engine = cache._engine
    if engine.options.shards is not None:
        raise Unsupported("save() of a text sharded by sequence: each process has a part of its rows")
    if engine.method is not None:
        raise Unsupported(
            "save() of a session with a method written in Python, which no file can hold; save the "
            "cache that made the session"
        )
    config = getattr(model, "config", None)
    if config is None or families.text_config(config) is not families.text_config(cache.config):
        raise InvalidArgument(
            f"model is a {type(model).__name__} with another config than the cache was made with; "
            "give save() the model that read the text"
        )
    state = engine.state
    texts = state.texts
    if texts > 1:
        raise InvalidArgument(
            f"save() of a batch of {texts} texts: a file holds one. Keep one row with "
            "cache.batch_select_indices(torch.tensor([0])), and save that"
        )
    if state.text is not None and state.tokens > state.text_tokens and not text_only:
        raise InvalidArgument(
            f"{state.tokens - state.text_tokens} tokens follow the text of {state.text_tokens}, and a "
            "file holds only the text. save(..., text_only=True) leaves them out. To keep them, read "
            "text and tokens together in another cache"
        )


def save(cache: Any, path: str | os.PathLike[str], model: Any, text_only: bool) -> None:
    engine = cache._engine
    engine.settle()
    _check_can_be_saved(cache, model, text_only)
    of_model = fingerprint(model)
    if engine.state.text is None:
        cache.freeze()
    text = engine.state.text
    ids = known_ids(text)
    with moving("saving", *engine.who_reports()) as report:
        text.context.save(
            path,
            model=of_model,
            made_with=_made_with(engine.options),
            tokens=None if ids is None else ids[0, text.pads[0] :].cpu().numpy(),
            application_data=kept_file.pack(
                [(i, kept.of_rows(one, [0])) for i, one in text.kept], text.context.tokens
            ),
            progress=report,
        )


def _made_with(options: Options) -> str:
    made = f"transformers {transformers.__version__}, torch {torch.__version__}"
    return f"{_MADE}{json.dumps(saved_options(options))} ({made})"


def _options_in(made_with: str, path: Any) -> dict[str, Any]:
    """The options of the cache that wrote a file; empty for a file of another program."""
    if not made_with.startswith(_MADE):
        return {}
    try:
        found, _ = json.JSONDecoder().raw_decode(made_with, len(_MADE))
    except (ValueError, RecursionError) as error:
        raise FileError(f"{os.fspath(path)}: its options of a TopkCache are not JSON: {error}") from None
    unknown = sorted(set(found) - set(SAVED)) if isinstance(found, dict) else [found]
    if unknown:
        raise FileError(
            f"{os.fspath(path)}: has options {unknown!r:.100} of a TopkCache, which topkv "
            f"{topkv.__version__} does not know; use a later topkv"
        )
    return found


def _check_model(of_file: str, of_model: str, path: Any) -> None:
    if of_file == of_model:
        return
    says = f"{of_file!r} made its rows" if of_file else "it does not name the model of its rows"
    raise InvalidArgument(
        f"{os.fspath(path)}: {says}, and the given model is {of_model!r}. Give the model of the file, "
        "or check_model=False if you know that both make equal rows"
    )


def load(
    make: Any,
    path: str | os.PathLike[str],
    model: Any,
    check_model: bool,
    given: dict[str, Any],
    **how: Any,
) -> Any:
    """The cache that TopkCache.from_file returns. make: makes a cache of a config and options. how:
    arguments of load_context."""
    info = topkv.context_file_info(path)
    of_model = fingerprint(model) if check_model else ""
    if check_model:
        _check_model(info.model, of_model, path)
    cache = make(model.config, **_options_in(info.made_with, path) | given)
    check_fits(cache, info.shape)
    session = cache._engine.options.session
    searched = [spec for spec in (session["index"], tail_of(session)) if spec not in ("", "none")]
    with moving("loading", *cache._engine.who_reports()) as report:
        loaded = topkv.load_context(path, **how, indices=searched, progress=report)
    if check_model:
        _check_model(loaded.model, of_model, path)  # the file may be another one by now
    tokens = loaded.tokens
    ids = None if tokens is None else torch.from_numpy(tokens).to(model.device)
    states, layers = (), cache._engine.kept_layers()
    if layers:
        data, where = loaded.application_data, os.fspath(path)
        states = kept_file.unpack(data, layers, loaded.context.tokens, where, model.device)
    return over(cache, loaded.context, ids, states)
