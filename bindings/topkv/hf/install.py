"""install(model): every generate() of this model uses a TopkCache."""

from __future__ import annotations

from types import MethodType
from typing import Any

from transformers import PreTrainedModel
from transformers.generation.configuration_utils import GenerationMode

from topkv import InvalidArgument
from topkv.hf import compat, families
from topkv.hf.attention import base_of
from topkv.hf.cache import TopkCache
from topkv.hf.options import integer

_HOOK = "_prepare_cache_for_generation"


def install(model: Any, *, prefill_chunk_size: int = 8192, **options: Any) -> None:
    """Makes every later ``model.generate(**inputs)`` use a new TopkCache with these options.

    Prompts are read in parts of prefill_chunk_size tokens. Calls with a cache of their own, with a
    cache_implementation, or with use_cache=False are not changed. Assisted generation reads the
    prompt at once, as in transformers; an assistant with topkv installed reads it in parts.

    Raises topkv.Unsupported, with the reason, if topkv cannot serve the model.
    """
    chunk = integer("prefill_chunk_size", prefill_chunk_size, 1)
    _require_model(model, "install")
    TopkCache(model.config, **options)  # refuses models and options now, not at the first call
    model.__dict__.pop(_HOOK, None)
    transformers_way = getattr(model, _HOOK)

    def prepare_cache(
        self: Any, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        cache = model_kwargs.get(compat.cache_argument())
        if (
            cache is None
            and generation_config.use_cache is not False
            and generation_config.cache_implementation is None
        ):
            mask = model_kwargs.get("attention_mask")
            tokens = 0 if mask is None else mask.shape[-1]
            sizes = {
                "max_cache_len": tokens,
                "session_capacity": max(16384, generation_config.max_length - tokens),
            }
            cache = TopkCache(self.config, **(sizes | options))
            # Rows are beams or samples of so many prompts.
            cache._engine.prompts = args[1] if len(args) > 1 else kwargs["batch_size"]
            model_kwargs[compat.cache_argument()] = cache
            transformers_way(generation_config, model_kwargs, *args, **kwargs)
            cache._is_user_defined = False
            if generation_config.is_assistant:
                cache.activate_past_recording()
        else:
            transformers_way(generation_config, model_kwargs, *args, **kwargs)
        mode = args[0] if args else kwargs.get("generation_mode")
        if (
            isinstance(cache, TopkCache)
            and "inputs_embeds" not in model_kwargs
            # It reads the prompt in its own way, and hands this config on to the assistant.
            and mode != GenerationMode.ASSISTED_GENERATION
        ):
            _set_chunks(generation_config, cache, chunk)

    setattr(model, _HOOK, MethodType(prepare_cache, model))


def _set_chunks(generation_config: Any, cache: TopkCache, chunk: int) -> None:
    if cache.get_seq_length() == 0:
        if generation_config.prefill_chunk_size is None:
            generation_config.prefill_chunk_size = chunk
    elif generation_config.is_assistant:  # it is called again and again, with the model's options
        generation_config.prefill_chunk_size = None
    elif generation_config.prefill_chunk_size is not None:
        raise InvalidArgument(
            "prefill_chunk_size is given with a cache that is filled already: generate would read "
            "the whole prompt again on top of it; leave prefill_chunk_size unset"
        )


def _require_model(model: Any, what: str) -> None:
    if not isinstance(model, PreTrainedModel) or not hasattr(model, _HOOK):
        raise InvalidArgument(
            f"{what}() is given a {type(model).__name__}; expected a model of transformers with "
            "generate(), as AutoModelForCausalLM.from_pretrained returns"
        )


def uninstall(model: Any) -> None:
    """Undoes install(), and restores the model's attention implementation."""
    _require_model(model, "uninstall")
    model.__dict__.pop(_HOOK, None)
    text = families.text_config(model.config)
    text._attn_implementation = base_of(text._attn_implementation) or text._attn_implementation
