#!/usr/bin/env bash
# transformers 5.23.0 with PyTorch 2.15.0: DynamicCache.crop on a hybrid model takes back half of a layer's state.
#
# A Gated DeltaNet layer (Qwen3.5 and later) keeps two states in a cache: the last inputs of a short convolution, and a
# recurrent state. After activate_past_recording(), crop(-n) is accepted. It takes the convolution back by n tokens, and
# the keys and values of the full-attention layers. It leaves the recurrent state, which still holds the n tokens.
# get_seq_length() then says that they are gone, and the next logits are wrong without a warning. The layer's property
# is_croppable is False, but crop does not ask it. Without activate_past_recording(), crop raises a RuntimeError whose
# advice is to call it.
#
# A random Qwen3.5 of 4 layers reads 25 tokens, forgets 5 and reads 10 others. Seen on 2026-11-28:
#   crop alone: RuntimeError
#   after 20 tokens, without a crop: 20 tokens in the cache, logits as without a cache
#   after 25 tokens and crop(-5): 20 tokens in the cache, logits off by more than half of the largest logit
#   is_croppable of the layer: False
# Fails when that changes. Needs PyPI and nothing of topkv.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 torch==2.15.0
cat >"$work/try.py" <<'PYTHON'
import torch
from transformers import DynamicCache, Qwen3_5ForCausalLM, Qwen3_5TextConfig

torch.manual_seed(0)
config = Qwen3_5TextConfig(
    vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
    linear_value_head_dim=16, initializer_range=0.3,
)
assert config.layer_types == ["linear_attention"] * 3 + ["full_attention"]
model = Qwen3_5ForCausalLM(config).eval()
text = torch.randint(0, 100, (1, 30))
wrong = torch.randint(0, 100, (1, 5))  # what is read in between, and forgotten


def error(cache):
    """How far the last ten logits are from those without a cache, as a part of the largest."""
    off = (model(text[:, 20:], past_key_values=cache).logits - whole).abs().max() / whole.abs().max()
    return "more than half of the largest logit" if off > 0.5 else "nothing" if off < 1e-3 else f"{off:.3f}"


with torch.no_grad():
    whole = model(text).logits[:, 20:]
    cache = DynamicCache(config=config)
    model(text[:, :20], past_key_values=cache)
    try:
        cache.crop(-5)
    except RuntimeError as refused:
        print("crop alone:", type(refused).__name__, "activate_past_recording" in str(refused))
    plain = DynamicCache(config=config)
    model(text[:, :20], past_key_values=plain)
    print("20 tokens:", plain.get_seq_length(), "in the cache, off by", error(plain))
    cropped = DynamicCache(config=config)
    cropped.activate_past_recording()
    model(torch.cat((text[:, :20], wrong), dim=1), past_key_values=cropped)
    cropped.crop(-5)
    print("25 tokens and crop(-5):", cropped.get_seq_length(), "in the cache, off by", error(cropped))
    print("is_croppable:", cropped.layers[0].is_croppable)
PYTHON
HF_HUB_OFFLINE=1 HF_HOME=$work/hub "$work/venv/bin/python" "$work/try.py" 2>"$work/log" | tee "$work/seen"
cmp "$work/seen" - <<'SEEN'
crop alone: RuntimeError True
20 tokens: 20 in the cache, off by nothing
25 tokens and crop(-5): 20 in the cache, off by more than half of the largest logit
is_croppable: False
SEEN
