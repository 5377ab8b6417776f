"""Which models topkv can serve: decoders whose attention is softmax over grouped-query K and V.

No list decides. Three checks do:

- ``check``, in TopkCache(): the config, and the code of its model in transformers. Every layer that
  keeps K and V in a cache must attend through transformers' attention interface.
- plain.py, in every call: the arguments that a layer gives its attention. Once for each layer it
  compares the model's own attention with the formula that topkv computes.
- mask.py: the mask of the call.

``self_check`` compares a whole model with transformers' own cache.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.models.auto import modeling_auto

from topkv import Unsupported
from topkv.hf import latent
from topkv.hf.compat import layer_types as types_of_text_config
from topkv.hf.indexer_readers import reader_of
from topkv.hf.indexers import Indexers

#: Text configs whose models the tests compare with transformers' own cache. The checks above decide
#: about others.
FAMILIES = (
    "arcee",
    "axk1",
    "axk2",
    "cohere",
    "cohere2",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "ernie4_5",
    "exaone4",
    "falcon_h1",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "glm",
    "glm4",
    "glm4_moe_lite",
    "glm5_next_text",
    "glm_moe_dsa",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "granitemoe",
    "granitemoehybrid",
    "hy_v4",
    "jamba",
    "kimi_linear",
    "lfm2",
    "lfm2_moe",
    "llama",
    "longcat_flash",
    "minicpm3",
    "minimax_m3_vl_text",
    "mistral",
    "mistral4",
    "mixtral",
    "nemotron",
    "nemotron_h",
    "olmo",
    "olmo2",
    "olmo_hybrid",
    "olmoe",
    "opt",
    "phi",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_moe",
    "qwen3_next",
    "qwen4_exp_text",
    "smollm3",
    "stablelm",
    "starcoder2",
    "youtu",
    "zamba",
    "zamba2",
    "zaya",
)

FULL = "full_attention"
#: Full attention to what an indexer chooses. These layers are FULL if topkv knows the indexer.
INDEXED = (
    "indexed_attention",
    "minimax_m3_sparse",
    "deepseek_sparse_attention",  # in 5.17, as the next one
    "qwen_sparse_attention",
)
SLIDING = "sliding_attention"
#: Full attention beside a recurrence, in one layer.
FULL_AND_RECURRENT = "hybrid"
#: Layers that transformers keeps, and that do not attend: recurrences, convolutions, and nothing.
_OTHERS = ("linear_attention", "conv", "dummy", "moe", "mlp")


def text_config(config: Any) -> Any:
    """The config of the language model, which its attention modules share."""
    return config.get_text_config(decoder=True)


def layer_types(config: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """Type of each layer and what transformers' own cache layer of that type is made with."""
    text = text_config(config)
    types, options = types_of_text_config(text)
    if reader_of(text) is not None:
        types = [FULL if kind in INDEXED else kind for kind in types]
    return types, options


def indexers(config: Any) -> Indexers | None:
    """The indexers of a model, by its config; None if no layer has one. Raises Unsupported for an indexer that topkv
    does not know."""
    text = text_config(config)
    reader = reader_of(text)
    return None if reader is None else reader.indexers(text)


def indexers_choose_all(config: Any) -> bool:
    """Whether every full-attention layer attends what an indexer chooses."""
    found = indexers(config)
    return found is not None and all(found.choosers[layer] >= 0 for layer in served(config))


def model_code(text: Any) -> ModuleType | None:
    """The module with the model of a text config; None where it is not known."""
    mappings = (modeling_auto.MODEL_MAPPING, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING)
    for mapping in mappings:
        found = mapping.get(type(text), None)
        found = found[0] if isinstance(found, tuple) else found
        # It is found by the name of the config's class, which somebody's own may have too. Some of
        # transformers' own configs name the model of another one.
        own = type(text).__module__.startswith("transformers.models.")
        if found is not None and (own or getattr(found, "config_class", None) is type(text)):
            return sys.modules[found.__module__]
    name = type(text).__module__.replace(".configuration_", ".modeling_")
    if name == type(text).__module__:
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _names_in(forward: Any) -> set[str]:
    """Every name that a function uses, including its arguments."""
    code = getattr(inspect.unwrap(forward), "__code__", None)
    return set() if code is None else {*code.co_names, *code.co_varnames}


def _asks_whether_decoder(code: ModuleType) -> bool:
    """Whether the model's code reads its config's is_decoder: it can be an encoder too."""
    kinds = [x for x in vars(code).values() if inspect.isclass(x) and x.__module__ == code.__name__]
    makers = [x.__init__.__code__ for x in kinds if hasattr(x.__init__, "__code__")]
    # Where it is an argument, somebody who knows gives it.
    return any("is_decoder" in x.co_names and "is_decoder" not in x.co_varnames for x in makers)


def layers_of(code: ModuleType) -> dict[str, bool]:
    """Classes of a model's code that put K and V into a cache, and whether they attend through
    transformers' interface."""
    found = {}
    for name, kind in vars(code).items():
        if inspect.isclass(kind) and issubclass(kind, torch.nn.Module):
            names = _names_in(kind.forward)
            if "update" in names and any("past" in x or "cache" in x for x in names):
                found[name] = "ALL_ATTENTION_FUNCTIONS" in names
    return found


def restarting_layer(config: Any) -> str:
    """The class of a model's layers that begin their recurrence anew in every call of several tokens; ""
    if there is none.

    transformers' selective scan (Mamba, the first version) takes no state to begin with. Such a layer
    continues its state in calls of one token only."""
    code = model_code(text_config(config))
    for name, kind in vars(code).items() if code is not None else ():
        if inspect.isclass(kind) and issubclass(kind, torch.nn.Module):
            methods = [x for x in vars(kind).values() if inspect.isfunction(x)]
            names = set().union(*map(_names_in, methods))
            if {"update_recurrent_state", "mamba_selective_scan"} <= names:
                return name
    return ""


def _own_caches(code: ModuleType) -> list[str]:
    """The caches, and layers of caches, that a model's code defines: it keeps more than K and V."""
    kinds = [x for x in vars(code).values() if inspect.isclass(x) and x.__module__ == code.__name__]
    return sorted(x.__name__ for x in kinds if issubclass(x, (Cache, CacheLayerMixin)))


def _configs_of_layers(text: Any) -> list[Any]:
    """A config per layer. A config whose layers differ (per_layer_config) raises RuntimeError when
    an attribute that differs is read of the whole."""
    return list(text.per_layer_config)


def _value(text: Any, name: str, default: Any = None) -> Any:
    """An attribute of a config; of one that differs between layers, any that is set."""
    try:
        return getattr(text, name, default)
    except RuntimeError:
        values = (getattr(layer, name, default) for layer in _configs_of_layers(text))
        return next((x for x in values if x), default)


def served(config: Any) -> list[int]:
    """The numbers of the layers that topkv serves: full attention."""
    kinds = enumerate(layer_types(config)[0])
    return [number for number, kind in kinds if kind in (FULL, FULL_AND_RECURRENT)]


def _sharing_modes(text: Any) -> list[str | None]:
    """For each layer "reuse" if it attends the K and V of an earlier layer; empty: no layer does."""
    modes = _value(text, "kv_sharing_modes")
    if modes is not None:
        return list(modes) if "reuse" in modes else []
    shared = _value(text, "num_kv_shared_layers") or 0  # up to 5.18: the last ones
    layers = text.num_hidden_layers
    return [None] * (layers - shared) + ["reuse"] * shared if shared else []


def shared_rows(config: Any) -> dict[int, int]:
    """The full-attention layers that attend the rows of an earlier layer: the number of each, and of that
    layer, which is the last one of its kind before the sharing layers."""
    text = text_config(config)
    modes = _sharing_modes(text)
    shared = [i for i, mode in enumerate(modes) if mode == "reuse" and text.layer_types[i] == FULL]
    if not shared:
        return {}
    owner = max(i for i in served(config) if i < shared[0])
    return dict.fromkeys(shared, owner)


def _full_layers(config: Any) -> list[Any]:
    """The configs of the full-attention layers, which topkv serves; of all layers if none is."""
    configs = _configs_of_layers(text_config(config))
    full = [configs[number] for number in (*served(config), *shared_rows(config))]
    return full or configs


def has_latents(config: Any) -> bool:
    """Whether the model's layers cache a latent, from which they compute K and V (MLA)."""
    return bool(_value(text_config(config), "kv_lora_rank"))


def _width(layer: Any) -> int:
    """The elements of a key in the rows of a layer; 0 if its config has no attention heads."""
    if rank := _value(layer, "kv_lora_rank"):
        return rank + _value(layer, "qk_rope_head_dim", 0)
    heads = _value(layer, "num_attention_heads")
    width = _value(layer, "head_dim") or _value(layer, "attention_head_dim")
    return width or (layer.hidden_size // heads if heads else 0)


def head_dim(config: Any) -> int:
    """The elements of a key in the rows of full-attention layers: a latent and the rotated part of the
    key, if layers cache these. Sliding layers may have another number."""
    return _width(_full_layers(config)[0])


def _differing(layers: list[Any]) -> str:
    """In what full-attention layers differ that have one shape in a context; "" in nothing."""
    for name in ("head_dim", "num_attention_heads", "num_key_value_heads"):
        values = [_width(x) if name == "head_dim" else _value(x, name) for x in layers]
        if len(set(values)) > 1:
            return f"{name} is {' and '.join(map(str, sorted(set(values), key=str)))}"
    return ""


def _index_keys(text: Any) -> list[str]:
    """The keys of a config that describe an indexer: a second, small attention that chooses the keys,
    or the blocks of keys, that the layers attend. layer_types need not show it."""
    layers = [vars(layer) for layer in _configs_of_layers(text)]
    said = {name: value for layer in layers for name, value in layer.items() if value}
    named = [x for x in said if x.startswith(("index_", "indexer_")) or x == "sparse_attention_config"]
    return [f"{name}={said[name]}" for name in sorted(named) if not isinstance(said[name], str)]


def _config_reason(config: Any, text: Any) -> str:
    """Why the attention that this config describes is not one that topkv computes."""
    if getattr(config, "is_encoder_decoder", False) or _value(text, "is_encoder_decoder"):
        return "it is an encoder-decoder: cross attention has no growing cache"
    indexed = [] if reader_of(text) is not None else _index_keys(text)
    if indexed:
        return (
            "its attention chooses the keys that it attends by an indexer of its own "
            f"({', '.join(indexed[:3])})"
        )
    if _value(text, "attention_chunk_size"):
        return "it attends in chunks, not to all earlier tokens"
    modes = sorted(set(map(str, _value(text, "kv_sharing_modes") or ())) - {"None", "store", "reuse"})
    if modes:
        return f"some of its layers share K and V in a way that topkv does not know: {', '.join(modes)}"
    if _value(text, "cross_attention_layers"):
        return "some of its layers attend to an image (cross attention)"
    # "vision" is of image tokens, which the mask of a call shows.
    both_ways = _value(text, "use_bidirectional_attention") in (True, "all")
    if both_ways or _value(text, "is_causal", True) is False:
        return "its attention is not causal"
    try:
        types, kwargs = layer_types(config)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return f"its config does not describe its layers ({type(error).__name__}: {error})"
    other = sorted(set(types) - {FULL, SLIDING, FULL_AND_RECURRENT, *_OTHERS})
    if other:
        return f"it has layers of type {', '.join(other)}"
    if not served(config):
        windows = sorted({x["sliding_window"] for x in kwargs if "sliding_window" in x})
        kept = [f"a sliding window of {', '.join(map(str, windows))} tokens"] if windows else []
        kept += ["a state of fixed size"] if set(types) & set(_OTHERS) else []
        return (
            f"every layer has {' or '.join(kept)}, which bounds its cache already; use DynamicCache"
        )
    full = _full_layers(config)
    widths = _width(full[0]), _value(full[0], "v_head_dim")
    if widths[1] is not None and widths[0] != widths[1] and not has_latents(config):
        return f"head dimensions of K and V differ: {widths[0]} and {widths[1]}"
    differing = _differing(full)
    if differing:
        return f"its full-attention layers are not alike: {differing}"
    skipped = sorted({str(part) for one in full for part in getattr(one, "skip", None) or ()})
    if skipped:
        return f"full-attention layers leave out {', '.join(skipped)} (per_layer_config)"
    return ""


def _latent_reason(text: Any) -> str:
    """Why topkv cannot use the latents that this model's layers cache; "" if it can, or there are none."""
    if not has_latents(text):
        return ""
    latents = f"its keys and values are one latent (MLA, kv_lora_rank={_value(text, 'kv_lora_rank')})"
    if SLIDING in layer_types(text)[0]:
        return f"{latents}, also in layers with a sliding window"
    code = model_code(text)
    if code is None or not latent.expanding_layers(code):
        return f"{latents}, and its code computes K and V from it in a way that topkv does not know"
    return ""


def _indexer_reason(config: Any, text: Any) -> str:
    """Why topkv cannot compute the choice of this model's indexers; "" if it can, or there are none."""
    try:
        found = indexers(config)
    except Unsupported as error:
        return str(error)
    if found is None:
        return ""
    code = model_code(text)
    if code is None:
        return f"it has indexers, and no model of {type(text).__name__} is there to look at"
    return reader_of(text).reason(code)


def _code_reason(text: Any) -> str:
    """Why the code of this model does not attend as topkv needs it."""
    undecided = "topkv.hf.self_check(model) compares it, TopkCache(config, trust=True) accepts it"
    code = model_code(text)
    if code is None:
        return f"no model of {type(text).__name__} is there to look at; {undecided}"
    if _value(text, "is_decoder") is False and _asks_whether_decoder(code):
        return "its config has is_decoder=False: it attends both ways and fills no cache"
    reader = reader_of(text)
    caches = sorted({*_own_caches(code)} - {*(reader.caches if reader else ())})
    if caches:
        return f"{code.__name__} keeps more than K and V, in {', '.join(caches)}; {undecided}"
    layers = layers_of(code)
    if not layers:
        return f"{code.__name__} has no layer that gives K and V to a cache"
    own = sorted(name for name, through_interface in layers.items() if not through_interface)
    if own:
        return (
            f"{', '.join(own)} of {code.__name__} attends in its own way, not through "
            f"transformers' attention interface; if the model does not use it, {undecided}"
        )
    choosing = sorted(name for name in layers if "indexer" in _names_in(getattr(code, name).forward))
    if choosing and reader is None:
        return (
            f"{', '.join(choosing)} of {code.__name__} has an indexer, which chooses the keys that "
            f"it attends; if the model does not use it, {undecided}"
        )
    return ""


def check(config: Any, trust: bool = False) -> None:
    """Raises topkv.Unsupported, with the reason, unless topkv can serve the model.

    trust: do not look at the model's code; the config is still checked."""
    text = text_config(config)
    reason = _config_reason(config, text) or _latent_reason(text) or _indexer_reason(config, text)
    reason = reason or ("" if trust else _code_reason(text))
    if reason:
        raise Unsupported(f"topkv cannot hold the cache of a {config.model_type} model: {reason}")
