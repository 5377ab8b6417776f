"""Small random models quantised by each package, loaded as its users load them."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import EAGER, make_config
from transformers import AutoModelForCausalLM

#: Weights are rounded once: what is computed with them is as exact as the model's dtype.
EXACT = ("torchao int8", "torchao int4", "compressed int8", "compressed int4")
#: Activations are rounded too, or weights unpacked to 16 bits: logits jump by a rounding more or less.
ROUNDING = (
    "torchao int8 activations",
    "bitsandbytes int8",
    "bitsandbytes nf4",
    "bitsandbytes fp4 twice",
    "compressed int8 activations",
    "compressed fp8 activations",
)
SCHEMES = EXACT + ROUNDING

_GROUP = 32  # of int4 weights; torchao's and compressed-tensors' usual 128 are more than a row has


def _config(family: str):
    config = make_config(family)
    config.intermediate_size = 128  # bitsandbytes takes rows of whole blocks of 64
    return config


def random_model(family: str, device, dtype: torch.dtype):
    """The one that is quantised, as it was."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(_config(family), **EAGER)
    return model.to(device=device, dtype=dtype).eval()


def _torchao(scheme: str):
    quantisation = pytest.importorskip("torchao.quantization")
    from transformers import TorchAoConfig

    return TorchAoConfig(
        {
            "torchao int8": quantisation.Int8WeightOnlyConfig,
            "torchao int4": lambda: quantisation.IntxWeightOnlyConfig(weight_dtype=torch.int4),
            "torchao int4 for CUDA": lambda: quantisation.Int4WeightOnlyConfig(
                group_size=_GROUP, int4_packing_format="tile_packed_to_4d"
            ),
            "torchao int8 activations": quantisation.Int8DynamicActivationInt8WeightConfig,
        }[scheme]()
    )


def _bitsandbytes(scheme: str, dtype: torch.dtype):
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("accelerate")
    from transformers import BitsAndBytesConfig

    if scheme == "bitsandbytes int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="fp4" if "fp4" in scheme else "nf4",
        bnb_4bit_use_double_quant="twice" in scheme,
        bnb_4bit_compute_dtype=dtype,
    )


_PRESETS = {
    "compressed int8": "W8A16",
    "compressed int4": "W4A16",
    "compressed int8 activations": "W8A8",
    "compressed fp8 activations": "FP8_DYNAMIC",
}


def _save_compressed(model, scheme: str, directory) -> None:
    """A checkpoint of compressed-tensors: scales from each row's or group's extremes."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationConfig,
        apply_quantization_config,
        preset_name_to_scheme,
    )
    from compressed_tensors.quantization.utils import calculate_qparams

    how = preset_name_to_scheme(_PRESETS[scheme], ["Linear"])
    if how.weights.group_size:
        how.weights.group_size = _GROUP
    ignored = ["lm_head", "re:.*gate$", "re:.*router.*", "re:.*experts.*"]
    apply_quantization_config(
        model, QuantizationConfig(config_groups={"linear": how}, ignore=ignored)
    )
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is None:
            continue
        weight = module.weight.detach().float()
        groups = weight.unflatten(1, (-1, how.weights.group_size or weight.shape[1]))
        scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), how.weights)
        module.weight_scale.data.copy_(scale)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(directory)
    compressor.update_config(directory)


def load(scheme: str, family: str, device, dtype: torch.dtype, directory, **how):
    """A random model of this family, saved to `directory` and loaded from it, quantised."""
    if scheme.startswith("torchao"):
        how["quantization_config"] = _torchao(scheme)
    elif scheme.startswith("bitsandbytes"):
        how["quantization_config"] = _bitsandbytes(scheme, dtype)
    # With parameters made where gradients are, as from_pretrained's callers have them.
    with torch.inference_mode(False), torch.no_grad():
        model = random_model(family, "cpu", dtype)
        if scheme in _PRESETS:
            _save_compressed(model, scheme, directory)
        else:
            model.save_pretrained(directory)
        how = EAGER | {"dtype": dtype, "output_loading_info": True} | how
        if torch.device(device).type != "cpu":
            pytest.importorskip("accelerate")  # transformers loads to another device with it
            how["device_map"] = str(device)
        loaded, report = AutoModelForCausalLM.from_pretrained(directory, **how)
    assert not any(report.values()), report
    assert loaded.config.quantization_config is not None
    return loaded.eval()


def load_mxfp4(directory):
    """A gpt-oss model whose experts are stored as its own checkpoints store them: random digits of 4
    bits and a scale for 32. transformers unpacks them to bf16 where it has no kernels for them."""
    pytest.importorskip("accelerate")  # transformers asks for it
    config = _config("gpt_oss")
    config.num_experts_per_tok = config.num_local_experts  # no router that turns rounding into jumps
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config, **EAGER).to(torch.bfloat16).save_pretrained(directory)
    tensors = load_file(directory / "model.safetensors")
    for name in [x for x in tensors if x.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = (experts, outputs, inputs // 32)
        tensors[f"{name}_blocks"] = torch.randint(256, (*blocks, 16), dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(122, 125, blocks, dtype=torch.uint8)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    described = json.loads((directory / "config.json").read_text())
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    described["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    (directory / "config.json").write_text(json.dumps(described))
    how = EAGER | {"dtype": torch.bfloat16, "output_loading_info": True}
    with torch.inference_mode(False), torch.no_grad():
        loaded, report = AutoModelForCausalLM.from_pretrained(directory, **how)
    assert not any(report.values()), report
    return loaded.eval()
