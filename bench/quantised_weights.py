"""Weights of a model in 4 or 8 bits, by whichever package is there."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec

import torch

GROUP = 128  # weights that share a scale, of int4


def quantise(model: torch.nn.Module, weights: str) -> str:
    """Turns the weights of a model's Linear layers but the last, as from_pretrained does with a
    quantization_config; returns what they are then. weights: "bf16", "int8" or "int4"; where no
    package is there they stay bf16."""
    if weights == "bf16":
        return "bf16"
    if find_spec("torchao"):
        return _torchao(model, weights)
    if find_spec("bitsandbytes") and weights == "int4":
        return _bitsandbytes(model)
    return f"bf16 (for {weights}: pip install torchao)"


def _linear_layers(model: torch.nn.Module) -> dict[str, torch.nn.Linear]:
    last = model.get_output_embeddings()
    modules = model.named_modules()
    return {n: x for n, x in modules if isinstance(x, torch.nn.Linear) and x is not last}


def _torchao(model: torch.nn.Module, weights: str) -> str:
    from torchao import quantization

    on_gpu = next(model.parameters()).is_cuda
    if weights == "int8":
        how, layout = quantization.Int8WeightOnlyConfig(), ""
    elif on_gpu:  # the tiles of PyTorch's own kernel; other layouts need a package of kernels
        how = quantization.Int4WeightOnlyConfig(
            group_size=GROUP, int4_packing_format="tile_packed_to_4d"
        )
        layout = f" in groups of {GROUP}"
    else:
        how, layout = quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4), " unpacked"
    names = _linear_layers(model)
    quantization.quantize_(model, how, filter_fn=lambda _, name: name in names)
    return f"{weights}{layout} (torchao {version('torchao')})"


def _bitsandbytes(model: torch.nn.Module) -> str:
    import bitsandbytes

    device = next(model.parameters()).device
    for name, layer in _linear_layers(model).items():
        four = bitsandbytes.nn.Linear4bit(
            layer.in_features,
            layer.out_features,
            bias=layer.bias is not None,
            compute_dtype=torch.bfloat16,
            quant_type="nf4",
            device="meta",
        )
        rows = layer.weight.data.cpu()  # packed on their way to the device
        four.weight = bitsandbytes.nn.Params4bit(rows, requires_grad=False, quant_type="nf4")
        four.bias = layer.bias
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, four.to(device))
    return f"nf4 (bitsandbytes {version('bitsandbytes')})"
