"""The options of a TopkCache, refused as soon as they are given."""

from __future__ import annotations

import math
import numbers
import operator
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import topkv
from topkv import InvalidArgument, Unsupported
from topkv.hf.rows import ROW_DTYPES
from topkv.hf.sharding import SequenceShards

_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Options:
    """The options of a cache; see TopkCache."""

    layers: int
    has_latents: bool = False
    prefill: dict[str, Any] = field(default_factory=dict)  # of the ContextBuilder
    session: dict[str, Any] = field(default_factory=dict)  # of the Session
    kv_dtype: str | None = None
    max_cache_len: int = 0
    device_memory: int = 0
    shards: SequenceShards | None = None
    progress: bool | None = None


def integer(name: str, value: Any, least: int) -> int:
    """A whole number of at least `least`, or InvalidArgument."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{name} is {value!r}; expected a whole number") from None
    if number < least:
        raise InvalidArgument(f"{name} is {number}; it must be at least {least}")
    if number > _LARGEST:
        raise InvalidArgument(f"{name} is {number}; it can be at most {_LARGEST}")
    return number


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} is {value!r}; expected True or False")
    return value


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is {value!r}; expected a str")
    return value


def rule(name: str, value: Any, expected: str, good: Callable[[float], bool]) -> float | None:
    """The value as a float if it is a number and `good`; None stays None."""
    if value is None:
        return None
    number = not isinstance(value, bool) and isinstance(value, numbers.Real)
    if not number or not good(value):
        raise InvalidArgument(f"{name} is {value!r}; expected a number {expected}, or None")
    return float(value)


def guarantee(name: str, value: Any) -> tuple[float, float] | None:
    """Two numbers between 0 and 1, as a tuple; None stays None."""
    if value is None:
        return None
    pair = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(pair) != 2 or not all(
        isinstance(x, numbers.Real) and not isinstance(x, bool) and 0 < x < 1 for x in pair
    ):
        raise InvalidArgument(
            f"{name} is {value!r}; expected two numbers between 0 and 1, the error and the "
            "probability of a larger one, or None"
        )
    return float(pair[0]), float(pair[1])


def share(name: str, value: Any) -> float:
    """A share above 0 and up to 1, or InvalidArgument."""
    number = not isinstance(value, bool) and isinstance(value, numbers.Real)
    if not number or not 0 < value <= 1:
        raise InvalidArgument(f"{name} is {value!r}; expected a number above 0 and up to 1")
    return float(value)


def _k(name: str, value: Any) -> Any:
    """k as a number, a schedule, or a number per layer."""
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable) and not (isinstance(value, torch.Tensor) and value.ndim == 0):
        return [integer(f"{name} of layer {i}", x, 1) for i, x in enumerate(value)]
    return integer(name, value, 1)


#: Values of `tail` that name no index: "" is the index's own tail.
NO_TAIL_SPEC = ("", "none")

#: Options of the Session, by their names there.
_SESSION = {
    "index": text,
    "tail": text,
    "k": _k,
    "mass": lambda name, value: rule(name, value, "between 0 and 1", lambda x: 0 < x < 1),
    "error": lambda name, value: rule(name, value, "above 0", lambda x: 0 < x < math.inf),
    "guarantee": guarantee,
    "select_by": text,
    "dense_layers": lambda name, value: integer(name, value, 0),
    "window": lambda name, value: integer(name, value, 1),
    "sinks": lambda name, value: integer(name, value, 0),
    "capacity": lambda _, value: integer("session_capacity", value, 1),
    "measure_recall": flag,
    "host_search": flag,
}


def session_options(given: dict[str, Any]) -> dict[str, Any]:
    """The options of TopkCache.session(), by their names in Session."""
    given = dict(given)
    if "session_capacity" in given:
        if "capacity" in given:
            raise InvalidArgument(
                "session() is given session_capacity and its earlier name, capacity; give "
                "session_capacity alone"
            )
        given["capacity"] = given.pop("session_capacity")
    unknown = sorted(set(given) - set(_SESSION))
    if unknown:
        has = ", ".join("session_capacity" if x == "capacity" else x for x in _SESSION)
        raise InvalidArgument(f"session() has no option {', '.join(unknown)}; its options are {has}")
    if given.get("index", "") is None:  # the cache's own
        del given["index"]
    return {name: _SESSION[name](name, value) for name, value in given.items()}


#: Prefills whose tokens may choose the keys that they attend.
CHOOSING = ("sparse", "auto")

#: Options of these prefills, by their names in TopkCache and ContextBuilder.
_CHOICE = {
    "prefill_keys": lambda name, value: integer(name, value, 1),
    "prefill_least": lambda name, value: None if value is None else integer(name, value, 0),
    "prefill_mass": share,
}

#: Options of a cache that a file of its text keeps, by their names in TopkCache.
SAVED = (
    *("session_capacity" if name == "capacity" else name for name in _SESSION),
    "prefill",
    *_CHOICE,
    "kv_dtype",
)


def prefill_options(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a prefill, by their names in TopkCache and ContextBuilder: its mode, window and
    sinks, and those of CHOOSING."""
    return {
        "prefill": text("prefill", given["prefill"]),
        "window": integer("window", given["window"], 1),
        "sinks": integer("sinks", given["sinks"], 0),
        **{name: checked(name, given[name]) for name, checked in _CHOICE.items()},
    }


def _builder(
    prefill: dict[str, Any], shape: topkv.AttentionShape, dtype: str = "f32"
) -> topkv.ContextBuilder:
    """A builder with these options of a prefill and room for a token, which refuses what cannot be."""
    mode = "sparse" if prefill["prefill"] == "auto" else prefill["prefill"]
    return topkv.ContextBuilder(shape, capacity=1, dtype=dtype, **prefill | {"prefill": mode})


def check_prefill(prefill: dict[str, Any]) -> None:
    """Raises InvalidArgument for options of a prefill that no text can be read with."""
    _builder(prefill, topkv.AttentionShape(layers=1, q_heads=1, kv_heads=1, head_dim=64))


def saved_options(options: Options) -> dict[str, Any]:
    """The values of SAVED that the cache used."""
    prefill = options.prefill
    known = options.session | {"session_capacity": options.session["capacity"]}
    known |= {"prefill": prefill["prefill"], "kv_dtype": options.kv_dtype}
    if prefill["prefill"] in CHOOSING:
        known |= {name: prefill[name] for name in _CHOICE}
    return {name: known[name] for name in SAVED if name in known}


#: Options that say which rows are attended, and their values where indexers of the model choose all rows.
_CHOSEN_ROWS = {
    "index": "exact",  # which is never built
    "tail": "",
    "k": 128,
    "mass": None,
    "error": None,
    "guarantee": None,
    "select_by": "query_head",
    "dense_layers": 0,
    "window": 1024,
    "sinks": 4,
    "measure_recall": False,
    "host_search": False,
}
_CHOSEN_PREFILL = {"prefill": "dense", "prefill_keys": 8192, "prefill_least": None, "prefill_mass": 0.98}


def left_to_indexers(options: Options, given: dict[str, Any]) -> Options:
    """Options of a cache whose layers all attend what indexers of the model choose. Warns of options, by
    their names in TopkCache, that have no effect then."""
    values = _CHOSEN_ROWS | _CHOSEN_PREFILL
    ignored = [name for name, value in values.items() if given.get(name) not in (None, value)]
    if ignored:
        warnings.warn(
            f"{', '.join(ignored)} of a TopkCache: without effect, because indexers of this model choose the rows that "
            "each token attends; leave them out",
            stacklevel=3,
        )
    window = {name: _CHOSEN_ROWS[name] for name in ("window", "sinks")}
    return replace(
        options,
        session=options.session | _CHOSEN_ROWS,
        prefill=options.prefill | _CHOSEN_PREFILL | window,
    )


def row_dtype_name(kv_dtype: Any) -> str | None:
    """The name of a dtype of rows, also for PyTorch's dtypes; None: not given."""
    names = (*ROW_DTYPES.values(), "q8", "q4", "q8/q4")
    name = ROW_DTYPES.get(kv_dtype, kv_dtype) if isinstance(kv_dtype, torch.dtype) else kv_dtype
    if name is not None and name not in names:
        raise InvalidArgument(
            f"kv_dtype is {kv_dtype!r}; expected {', '.join(map(repr, names))}, "
            f"{', '.join(map(str, ROW_DTYPES))}, or None for the model's"
        )
    return name


def tail_of(session: dict[str, Any]) -> str:
    """The spec of the tail; "": the index's own. "codes" means the index's own codes, of any size, if
    it has some."""
    own = session["tail"] == "codes" and topkv.IndexSpec(session["index"]).has_code_tail
    return "" if own else session["tail"]


def _check_tail(spec: str) -> None:
    if spec in NO_TAIL_SPEC:
        return
    try:
        reason = "" if topkv.IndexSpec(spec).has_tail else "it has no codes of values"
    except InvalidArgument as error:
        reason = str(error)
    if reason:
        raise InvalidArgument(
            f'tail is {spec!r}, and {reason}; expected "none", "mean", or for example "codes:k=16,v=8"'
        )


def check(options: Options) -> Options:
    """Returns the options. Raises topkv.InvalidArgument for options that cannot work.

    It makes the objects that will be needed once a text is read, over a text of one token."""
    topkv.KeyIndex(options.session["index"])
    _check_tail(tail_of(options.session))
    _check_rules(options)
    shape = topkv.AttentionShape(
        layers=options.layers, q_heads=1, kv_heads=1, head_dim=64, keys_are_values=options.has_latents
    )
    mode = options.prefill["prefill"]
    if mode == "sparse" and options.shards is not None:
        raise Unsupported(
            'prefill="sparse" with shard="sequence": a rank has only the rows of its own part to choose '
            'from; give "dense"'
        )
    builder = _builder(options.prefill, shape, options.kv_dtype or "f32")
    row = torch.zeros(1, 1, 64)
    for layer in range(options.layers):
        builder.append(layer, row, None if options.has_latents else row)
    plain = {"index": "exact", "tail": "none", "mass": None, "error": None, "capacity": 1}
    topkv.Session(builder.freeze(), **options.session | plain)
    return options


def _check_rules(options: Options) -> None:
    """Raises unless `mass` and `error` have a tail, over the whole text, and `guarantee` has neither
    them nor a tail."""
    given = [name for name in ("mass", "error") if options.session[name] is not None]
    tail = tail_of(options.session)
    if options.session["guarantee"] is not None:
        beside = given or ([f"tail {tail!r}"] if tail not in NO_TAIL_SPEC else [])
        if beside:
            raise InvalidArgument(
                f"guarantee does not go with {beside[0]}: a sample stands for the rows that are not "
                "retrieved; leave one of them out"
            )
        given = ["guarantee"]
    if not given:
        return
    own_tail = topkv.IndexSpec(options.session["index"]).has_tail
    if given != ["guarantee"] and (tail == "none" or (tail == "" and not own_tail)):
        raise InvalidArgument(
            f"{given[0]} is {options.session[given[0]]}, and there is no tail to estimate the rows "
            'that are not retrieved; give for example tail="codes"'
        )
    if options.shards is not None:
        raise Unsupported(
            f'{given[0]} with shard="sequence": a rank can estimate only the rows of its own part; '
            f"leave {given[0]} out"
        )


def make_options(layers: int, given: dict[str, Any], has_latents: bool) -> Options:
    """The options that TopkCache was given, by its names. has_latents: the model's layers cache latents."""
    if given["shard"] not in (None, "sequence"):
        raise InvalidArgument(f'shard is {given["shard"]!r}; expected "sequence" or None')
    if given["progress"] is not None:
        flag("progress", given["progress"])
    names = [name for name in _SESSION if name != "capacity"] + ["session_capacity"]
    session = session_options({name: given[name] for name in names})
    return check(
        Options(
            layers=layers,
            has_latents=has_latents,
            prefill=prefill_options(given),
            session=session,
            kv_dtype=row_dtype_name(given["kv_dtype"]),
            max_cache_len=integer("max_cache_len", given["max_cache_len"], 0),
            device_memory=integer("device_memory", given["device_memory"], 0),
            shards=SequenceShards(given["process_group"]) if given["shard"] else None,
            progress=given["progress"],
        )
    )
