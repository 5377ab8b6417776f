"""A line that identifies a model; a saved text keeps it beside its rows.

It is cheap: it reads some elements of each tensor of the weights, on any device. It distinguishes
models that somebody trained. It does not protect against somebody who makes two models look alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import torch

from topkv import InvalidArgument, Unsupported
from topkv.hf import families

#: Elements read of each tensor, evenly spaced: of one that was trained on, nearly all differ.
_SAMPLE = 1024

#: Values of a config that no row of K or V, and no logit, depends on. Nor does it on how the model
#: was found and loaded; what its weights are, quantised or not, they say themselves.
_IDLE = {
    "architectures",
    "attn_implementation",
    "chunk_size_feed_forward",
    "dtype",
    "experts_implementation",
    "id2label",
    "initializer_range",
    "label2id",
    "name_or_path",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pretraining_tp",
    "problem_type",
    "quantization_config",
    "return_dict",
    "router_aux_loss_coef",
    "tie_word_embeddings",
    "transformers_version",
    "use_cache",
}
_IDLE_ENDS = ("_token_id", "dropout", "_pdrop")


def _matters(name: str, value: Any) -> bool:
    # What is off is as what is not there: later versions of transformers have more to switch.
    is_off = value is None or value is False or value == {} or value == []
    return not (is_off or name in _IDLE or name.startswith("_") or name.endswith(_IDLE_ENDS))


def _of_config(config: Any) -> str:
    values = families.text_config(config).to_dict()
    kept = {name: value for name, value in values.items() if _matters(name, value)}
    return json.dumps(kept, sort_keys=True, default=str)


def _plain(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that one tensor consists of: codes and scales of quantised weights, or this rank's
    part of a model spread over ranks."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield name, tensor
        return
    for part in tensor.__tensor_flatten__()[0]:
        yield from _plain(f"{name}.{part}", getattr(tensor, part))


def _of_weights(model: torch.nn.Module) -> Iterator[bytes]:
    # keep_vars: as they are, for quantised ones may refuse to be detached.
    for name, whole in sorted(model.state_dict(keep_vars=True).items()):
        if not isinstance(whole, torch.Tensor):  # what modules write of themselves
            continue
        for part, tensor in _plain(name, whole):
            if tensor.is_meta:
                raise Unsupported(
                    f"{part} of the model is not in memory (offloaded by accelerate?), so the model "
                    "cannot be identified; load it into memory"
                )
            yield f"{part} {tensor.dtype} {list(tensor.shape)}\n".encode()
            flat = tensor.detach().reshape(-1)
            some = flat[:: max(1, flat.shape[0] // _SAMPLE)].contiguous().cpu()
            yield some.view(torch.uint8).numpy().tobytes()


def _digest(parts: Iterator[bytes]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()[:16]


def fingerprint(model: Any) -> str:
    """One line that identifies a model; equal on every device and in every process.

    It has the model's class, its dtype and two digests: of the config's values that K, V and logits
    depend on, and of the weights' names, shapes, dtypes and some elements of each tensor.
    Raises topkv.Unsupported if weights are not in memory."""
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise InvalidArgument(
            f"model is a {type(model).__name__}; expected the model whose config the cache was made "
            "with"
        )
    with torch.no_grad():
        weights = _digest(_of_weights(model))
    config = _digest(iter([_of_config(model.config).encode()]))
    dtype = str(model.dtype).removeprefix("torch.")
    return f"{type(model).__name__} of transformers, {dtype}, config {config}, weights {weights}"
