#!/usr/bin/env python3
"""Makes those of tests/fixtures/parity whose checkpoints are quantised already, in safetensors.

Weights are rounded and packed here, by what is known of each format (tests/model/quantised_checkpoint_test.cc
has the layouts in words), and the reference is transformers over the weights that the codes stand
for, in float32. Where the library of a format is installed (compressed-tensors), its own reader
must find the same weights in the fixture. Folders are as make_parity_fixtures.py has them.

For every variant the script prints how far the logits move, relative to the largest logit, when the
weights are those before rounding, or codes are read wrongly.

Needs tools/requirements.txt. Run from anywhere: python tools/make_quantised_fixtures.py [VARIANT...]
"""

import copy
import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

import parity_experts
from make_parity_fixtures import (MISTAKE, OUT, greedy, load, logits_of, write_checkpoint,
                                  write_reference)
from parity_variants import VOCAB, theta

COMMON = dict(tokens=48, dtype=torch.bfloat16, hidden_size=64, intermediate_size=96,
              num_attention_heads=2, num_key_value_heads=1, head_dim=64)


def llama(**more):
    return COMMON | dict(model_type="llama", rope_parameters=theta(10000.0)) | more


def qwen3(**more):
    return COMMON | dict(model_type="qwen3", rope_parameters=theta(1000000.0)) | more


def qwen3_moe(**more):
    return qwen3(model_type="qwen3_moe", tokens=32, intermediate_size=64, moe_intermediate_size=32,
                 num_experts=4, num_experts_per_tok=2, norm_topk_prob=True) | more


VARIANTS = {
    "gptq-llama": (llama(), dict(method="gptq", group=32, order=True)),
    # One matrix for q, k and v, and one for gate and up.
    "gptq-phi3": (dict(model_type="phi3", tokens=48, dtype=torch.bfloat16, hidden_size=128,
                       intermediate_size=96, num_attention_heads=2, num_key_value_heads=1,
                       num_hidden_layers=1, pad_token_id=0, original_max_position_embeddings=256,
                       rope_parameters=theta(10000.0)),
                  dict(method="gptq", group=32, symmetric=True, v2=True)),
    "awq-qwen2": (COMMON | dict(model_type="qwen2", hidden_size=128, use_sliding_window=False,
                                num_hidden_layers=1, rope_parameters=theta(1000000.0)),
                  dict(method="awq", group=32)),
    "w4a16-llama": (llama(attention_bias=True, num_hidden_layers=1), dict(method="packed", group=32)),
    "w8-qwen3": (qwen3(num_hidden_layers=1), dict(method="int8", group=0, symmetric=True)),
    "fp8-qwen3": (qwen3(), dict(method="fp8", block=(64, 32))),
    # Experts: each a module of its own, some of whose inputs are out of order; and in one tensor.
    "gptq-qwen3-moe": (qwen3_moe(), dict(method="gptq", group=32, order=True)),
    "fp8-qwen3-moe": (qwen3_moe(num_hidden_layers=1), dict(method="fp8", block=(32, 32))),
    "mxfp4-gpt-oss": (COMMON | dict(model_type="gpt_oss", tokens=32, intermediate_size=32,
                                    num_local_experts=4, num_experts_per_tok=2, sliding_window=12,
                                    tie_word_embeddings=True, max_position_embeddings=64,
                                    rope_parameters=dict(
                                        rope_type="yarn", rope_theta=1000.0, factor=4.0,
                                        original_max_position_embeddings=16, beta_fast=4.0,
                                        beta_slow=1.0, truncate=False)),
                      dict(method="mxfp4")),
}

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def words(codes, bits, dim, order=None):
    """Codes without a sign, packed into int32 along a dimension: the first lowest."""
    n = 32 // bits
    codes = codes.movedim(dim, -1).to(torch.int64)
    if codes.shape[-1] % n:
        codes = torch.nn.functional.pad(codes, (0, n - codes.shape[-1] % n))
    codes = codes.unflatten(-1, (-1, n))
    out = torch.zeros(codes.shape[:-1], dtype=torch.int64)
    for place in range(n):
        out |= codes[..., order[place] if order else place] << (bits * place)
    out = torch.where(out >= 2 ** 31, out - 2 ** 32, out).to(torch.int32)
    return out.movedim(-1, dim).contiguous()


def round_matrix(weight, how, generator):
    """codes, zeros [out, groups], scales [out, groups] of f16, groups_of [in]."""
    out, inputs = weight.shape
    bits = 8 if how["method"] == "int8" else 4
    group = how["group"] or inputs
    groups_of = torch.arange(inputs) // group
    if how.get("order"):
        groups_of = groups_of[torch.randperm(inputs, generator=generator)]
    groups = inputs // group
    most, middle = 2 ** bits - 1, 2 ** (bits - 1)
    codes = torch.zeros(out, inputs, dtype=torch.int64)
    zeros = torch.full((out, groups), middle)
    scales = torch.zeros(out, groups, dtype=torch.float16)
    for g in range(groups):
        part = weight[:, groups_of == g].double()
        if how.get("symmetric"):
            scale = (part.abs().amax(1) / (middle - 1)).half()
        else:
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scale = ((high - low) / most).half()
            zeros[:, g] = (-low / scale.double()).round().clamp(0, most).long()
        scales[:, g] = scale
        codes[:, groups_of == g] = (part / scale.double()[:, None] + zeros[:, g, None]).round().clamp(
            0, most).long()
    return codes, zeros, scales, groups_of


def meaning(codes, zeros, scales, groups_of):
    return ((codes - zeros[:, groups_of]).double() * scales.double()[:, groups_of]).float()


def write_integers(module, weight, how, tensors, generator):
    codes, zeros, scales, groups_of = round_matrix(weight, how, generator)
    method = how["method"]
    if method == "gptq":
        stored = zeros if how.get("v2") else (zeros - 1) & 15
        tensors |= {module + "qweight": words(codes.T, 4, 0), module + "qzeros": words(stored.T, 4, 1),
                    module + "scales": scales.T.contiguous(),
                    module + "g_idx": groups_of.to(torch.int32)}
    elif method == "awq":
        tensors |= {module + "qweight": words(codes.T, 4, 1, AWQ_ORDER),
                    module + "qzeros": words(zeros.T, 4, 1, AWQ_ORDER),
                    module + "scales": scales.T.contiguous()}
    elif method == "packed":
        tensors |= {module + "weight_packed": words(codes, 4, 1),
                    module + "weight_zero_point": words(zeros, 4, 0),
                    module + "weight_scale": scales,
                    module + "weight_shape": torch.tensor(weight.shape)}
    else:
        tensors |= {module + "weight": (codes - 128).to(torch.int8), module + "weight_scale": scales}
    wrong = meaning(codes, zeros - 1, scales, groups_of)
    return meaning(codes, zeros, scales, groups_of), wrong


def write_fp8(module, weight, how, tensors):
    rows, columns = how["block"]
    out, inputs = weight.shape
    value = torch.zeros_like(weight)
    codes = torch.zeros(out, inputs, dtype=torch.float8_e4m3fn)
    scales = torch.zeros((out + rows - 1) // rows, (inputs + columns - 1) // columns)
    for r in range(scales.shape[0]):
        for c in range(scales.shape[1]):
            at = (slice(r * rows, (r + 1) * rows), slice(c * columns, (c + 1) * columns))
            scales[r, c] = weight[at].abs().max() / 448
            codes[at] = (weight[at] / scales[r, c]).to(torch.float8_e4m3fn)
            value[at] = codes[at].float() * scales[r, c]
    tensors |= {module + "weight": codes, module + "weight_scale_inv": scales}
    return value, codes.float() * scales.max()


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def write_mxfp4(name, weight, tensors):
    """weight: [experts, inputs, outputs]. Blocks of 32 inputs with a power of 2 each, its exponent
    + 127; the lower four bits of a byte first."""
    parts = weight.float().transpose(1, 2).unflatten(-1, (-1, 32))  # [experts, outputs, groups, 32]
    exponents = (parts.abs().amax(-1, keepdim=True) / 6).log2().ceil().clamp(-127, 127)
    codes = (parts[..., None] / 2.0 ** exponents[..., None] - E2M1).abs().argmin(-1)
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    tensors |= {name + "_blocks": blocks.to(torch.uint8),
                name + "_scales": (exponents[..., 0] + 127).to(torch.uint8)}
    swapped = codes.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return tuple((E2M1[which] * 2.0 ** exponents).flatten(-2).transpose(1, 2).contiguous()
                 for which in (codes, swapped))


def put(model, key, value):
    """A checkpoint's matrix into the model, where an expert's is a part of a larger one."""
    if ".experts." not in key or not key.endswith(".weight"):
        model.get_parameter(key).data = value
        return
    at, _, rest = key.partition(".experts.")
    expert, projection, _ = rest.split(".")
    experts = model.get_submodule(at + ".experts")
    if projection == "down_proj":
        experts.down_proj.data[int(expert)] = value
    else:
        half = experts.gate_up_proj.data[int(expert)].chunk(2)[projection == "up_proj"]
        half.copy_(value)


def quantization_config(how):
    method = how["method"]
    if method == "mxfp4":
        return dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn",
                                                                  "model.layers.*.mlp.router"])
    if method == "gptq":
        return dict(quant_method="gptq", bits=4, group_size=how["group"],
                    desc_act=how.get("order", False), sym=how.get("symmetric", False),
                    checkpoint_format="gptq_v2" if how.get("v2") else "gptq", damp_percent=0.1)
    if method == "awq":
        return dict(quant_method="awq", bits=4, group_size=how["group"], zero_point=True,
                    version="gemm", modules_to_not_convert=None)
    if method == "fp8":
        return dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                    weight_block_size=list(how["block"]), modules_to_not_convert=["lm_head"])
    weights = dict(num_bits=8 if method == "int8" else 4, type="int",
                   symmetric=how.get("symmetric", False), dynamic=False, actorder=None,
                   strategy="group" if how["group"] else "channel", group_size=how["group"] or None)
    return dict(quant_method="compressed-tensors", ignore=["lm_head"], kv_cache_scheme=None,
                format="int-quantized" if method == "int8" else "pack-quantized",
                quantization_status="compressed",
                config_groups=dict(group_0=dict(targets=["Linear"], weights=weights,
                                                input_activations=None, output_activations=None)))


def check_with_library(how, tensors, module, value):
    """What compressed-tensors itself reads. Returns whether it is installed."""
    if how["method"] not in ("packed", "int8"):
        return None
    try:
        from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    except ImportError:
        try:
            from compressed_tensors.compressors.quantized_compressors.pack_quantized import (
                unpack_from_int32)
        except ImportError:
            return False
    scale = tensors[module + "weight_scale"].float()
    if how["method"] == "int8":
        codes, zeros = tensors[module + "weight"], torch.zeros_like(scale)
    else:
        codes = unpack_from_int32(tensors[module + "weight_packed"], 4, value.shape)
        zeros = unpack_from_int32(tensors[module + "weight_zero_point"], 4, scale.shape,
                                  packed_dim=0)
    size = value.shape[1] // scale.shape[1]
    found = (codes.float() - zeros.float().repeat_interleave(size, 1)) * scale.repeat_interleave(
        size, 1)
    assert torch.equal(found, value), f"compressed-tensors reads {module} otherwise"
    return True


def check_with_transformers(folder, tokens, logits):
    """transformers reads mxfp4 itself, where accelerate is installed: to bf16, which has its values."""
    try:
        found = logits_of(load(folder).float(), tokens)
    except ImportError:
        return False
    assert torch.allclose(found, logits, rtol=0, atol=1e-5 * float(logits.abs().max())), folder
    return True


def make_variant(name, spec, how, seed):
    folder = OUT / name
    with tempfile.TemporaryDirectory() as temporary:
        plain = Path(temporary) / "plain"
        tokens = write_checkpoint(plain, copy.deepcopy(spec), seed)
        before = load(plain)
        floats = load_file(plain / "model.safetensors")
        generator = torch.Generator().manual_seed(seed)
        tensors, model, wrong, checked = {}, load(plain), load(plain), None
        for key, weight in floats.items():
            if how["method"] == "mxfp4":
                if weight.dim() == 3:
                    value, mistaken = write_mxfp4(key, weight, tensors)
                    put(model, key, value)
                    put(wrong, key, mistaken)
                else:
                    tensors[key] = weight
                continue
            if not key.endswith("_proj.weight"):
                tensors[key] = weight
                continue
            module = key.removesuffix("weight")
            if how["method"] == "fp8":
                value, mistaken = write_fp8(module, weight.float(), how, tensors)
            else:
                value, mistaken = write_integers(module, weight.float(), how, tensors, generator)
            checked = check_with_library(how, tensors, module, value)
            put(model, key, value)
            put(wrong, key, mistaken)
        if parity_experts.has_experts(model):  # their inputs are others than before rounding
            parity_experts.separate_routers(model, tokens, generator)
            for router, module in parity_experts.routers(model):
                for part, value in module.named_parameters():
                    tensors[f"{router}.{part}"] = value.data.to(torch.bfloat16)
                    for other in (before, wrong):
                        other.get_parameter(f"{router}.{part}").data = value.data.clone()
        logits = logits_of(model, tokens)
        largest = float(logits.abs().max())
        chosen, lead = greedy(model, tokens)
        report = {"not rounded": before, "zero points or scales wrong": wrong}
        report = {what: float((logits_of(other, tokens) - logits).abs().max()) / largest
                  for what, other in report.items()}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save_file(tensors, folder / "model.safetensors")
        config = json.loads((plain / "config.json").read_text())
        config["quantization_config"] = quantization_config(how)
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    if how["method"] == "mxfp4":
        checked = check_with_transformers(folder, tokens, logits)
    print(f"{name}: largest logit {largest:.3g}, least lead {lead:.3g}, seed {seed}, "
          f"its library agrees: {checked}; "
          + ", ".join(f"{what} {size:.2g}" for what, size in report.items()))
    if min(report.values()) < MISTAKE:
        return "a mistake moves the logits by too little"
    if parity_experts.has_experts(model):
        clear = parity_experts.router_lead(model, tokens)
        print(f"   least lead of experts chosen {clear:.3g}")
        if clear < parity_experts.LEAD:
            return f"experts are chosen by a lead of {clear:.2g} only"
    if lead < MISTAKE * largest:
        return f"two tokens are within {lead:.2g} of each other"
    if set(chosen) & {2, 3}:
        return "an end token was generated"
    write_reference(folder, tokens, logits, greedy=chosen)
    print(f"   {sum(f.stat().st_size for f in folder.rglob('*') if f.is_file())} bytes")
    return None


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for number, (name, (spec, how)) in enumerate(VARIANTS.items()):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        for attempt in range(50):
            refusal = make_variant(name, spec, how, seed=90000 + 1000 * number + attempt)
            if refusal is None:
                break
            print(f"   refused: {refusal}; next seed")
        else:
            raise SystemExit(f"{name}: no seed gave a usable fixture")


if __name__ == "__main__":
    main()
