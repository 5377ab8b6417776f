"""An attention whose output is off by a rounding: a model's response shows whether it jumps.

A router of experts, or a layer that rounds its activations to integers, turns a change of any size
into another expert or another integer. The logits of such a model differ between two kinds of
arithmetic by much more than the arithmetic does.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from topkv.hf.plain import own_attention

_NAME = "perturbed-for-topkv"


def perturbed(base: str, by: float, seed: int) -> str:
    """Registers attention `base` with every output off by at most `by` of itself. Returns the name for
    a config's _attn_implementation. There is one at a time: it replaces the one before."""
    generator = torch.Generator().manual_seed(seed)

    def attend(module: torch.nn.Module, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
        function = ALL_ATTENTION_FUNCTIONS.get_interface(base, own_attention(module))
        out, weights = function(module, *args, **kwargs)
        off = by * (2 * torch.rand(out.shape, generator=generator) - 1).to(out.device)
        return (out.float() * (1 + off)).to(out.dtype), weights

    AttentionInterface.register(_NAME, attend)
    mask = ALL_MASK_ATTENTION_FUNCTIONS.get(base)
    if mask is not None:
        AttentionMaskInterface.register(_NAME, mask)
    return _NAME
