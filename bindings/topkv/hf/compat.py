"""The internals of transformers that topkv.hf reads, and the versions that have them.

Versions that the tests run are used as they are. A newer version is tried. It is refused if an
internal that is listed here is missing, or if a small random model gives other logits than with
transformers' own cache (see selfcheck.py). Otherwise it is used, with a warning. CI runs the lowest
version and the newest below the bound.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import transformers
from transformers import cache_utils

from topkv import Unsupported

#: The first version that works, and the first that no test has run; pyproject.toml says the same.
LOWEST, UNKNOWN = (5, 17), (5, 25)

#: The command for a user whose version cannot be used.
INSTALL = 'pip install "transformers>={}.{},<{}.{}"'.format(*LOWEST, *UNKNOWN)

# Module, name in it, and the parameters that topkv passes to it, or gets from it.
_READ = (
    ("cache_utils", "Cache.__init__", "layers"),
    ("cache_utils", "Cache.update", "key_states value_states layer_idx"),
    ("cache_utils", "Cache.get_mask_sizes", "query_length layer_idx"),
    ("cache_utils", "Cache.get_seq_length", "layer_idx"),
    ("cache_utils", "Cache.crop", "tokens_to_remove"),
    ("cache_utils", "Cache.reorder_cache", "beam_idx"),
    ("cache_utils", "Cache.batch_repeat_interleave", "repeats"),
    ("cache_utils", "Cache.batch_select_indices", "indices"),
    ("cache_utils", "Cache.activate_past_recording", ""),
    ("cache_utils", "Cache.has_previous_state", "layer_idx"),
    ("cache_utils", "Cache.update_conv_state", "conv_states layer_idx"),
    ("cache_utils", "Cache.update_recurrent_state", "recurrent_states layer_idx"),
    ("cache_utils", "CacheLayerMixin", ""),
    ("cache_utils", "LinearAttentionCacheLayerMixin", ""),
    ("cache_utils", "LinearAttentionLayer.__init__", "number_of_states"),
    ("cache_utils", "DynamicSlidingWindowLayer.__init__", "sliding_window"),
    ("cache_utils", "DYNAMIC_LAYER_TYPE_MAPPING", ""),
    ("cache_utils", "get_layer_types_and_kwargs", "config"),
    ("masking_utils", "ALL_MASK_ATTENTION_FUNCTIONS", ""),
    ("masking_utils", "AttentionMaskInterface.register", ""),
    ("masking_utils", "causal_mask_function", "q_idx kv_idx"),
    (
        "masking_utils",
        "sdpa_mask",
        "q_length q_offset kv_length kv_offset mask_function attention_mask",
    ),
    ("modeling_utils", "ALL_ATTENTION_FUNCTIONS.get_interface", ""),
    ("modeling_utils", "AttentionInterface.register", ""),
    ("configuration_utils", "PreTrainedConfig.get_text_config", "decoder"),
    (
        "generation.utils",
        "GenerationMixin._prepare_cache_for_generation",
        "generation_config model_kwargs batch_size",
    ),
)


def installed() -> str:
    return transformers.__version__


def version() -> tuple[int, int]:
    """(5, 17) of "5.17.0.dev0"."""
    major, minor = installed().split(".")[:2]
    return int(major), int(minor)


def cache_argument() -> str:
    """The name of the argument by which models and generate pass a cache on. generate itself takes both."""
    return "cache" if version() >= (5, 24) else "past_key_values"


def missing() -> list[str]:
    """The internals of transformers that topkv.hf reads and does not find as expected."""
    lacks = []
    for module, path, parameters in _READ:
        what: Any = importlib.import_module(f"transformers.{module}")
        for name in path.split("."):
            what = getattr(what, name, None)
        has = inspect.signature(what).parameters if callable(what) and parameters else ()
        if what is None:
            lacks.append(f"{module}.{path}")
        lacks += [f"{module}.{path}({x})" for x in parameters.split() if what and x not in has]
    return lacks


def require() -> None:
    """Raises topkv.Unsupported unless this version may work."""
    if version() < LOWEST:
        raise Unsupported(
            "topkv.hf works with transformers {}.{} and newer; {} is installed: {}".format(
                *LOWEST, installed(), INSTALL
            )
        )
    lacks = missing()
    if lacks:
        raise Unsupported(
            f"topkv.hf reads internals of transformers that {installed()} does not "
            f"have ({', '.join(lacks)}): {INSTALL}"
        )


def layer_types(text: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """The type of each layer of a text config, and the arguments of transformers' cache layer for it."""
    types, options = cache_utils.get_layer_types_and_kwargs(text)
    # Up to 5.18 one dict for all layers.
    return types, options if isinstance(options, list) else [options] * len(types)
