#!/usr/bin/env bash
# transformers 5.23.0 with PyTorch 2.15.0: Bamba counts positions from 0 in every call, whatever its cache holds.
#
# A model called without position_ids counts them from the length of its cache: 120 other causal language models of
# transformers, small and random, do. BambaModel.forward makes them with torch.arange(tokens of the call). Then
# model(ids, past_key_values=cache) rotates new queries and keys as if they began the text. Logits are wrong without a
# warning. generate gives position_ids itself and is right.
#
# A random Bamba of 4 layers reads 40 tokens in two calls. Seen on 2026-11-28:
#   bamba in two calls: off by more than a hundredth of the largest logit
#   bamba in two calls, with position_ids: off by nothing
#   falcon_h1 in two calls: off by nothing
# Fails when that changes. Needs PyPI and nothing of topkv.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 torch==2.15.0
cat >"$work/try.py" <<'PYTHON'
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

SIZES = dict(
    vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, mamba_d_state=16, mamba_n_heads=4, mamba_d_head=32, mamba_chunk_size=16,
    initializer_range=0.3,
)


def error(name, give, **own):
    """How far logits of two calls are from the logits without a cache, as a part of the largest."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **SIZES, **own)).eval()
    text, positions = torch.randint(0, 100, (1, 40)), torch.arange(40)[None]
    with torch.no_grad():
        whole = model(text, use_cache=False).logits
        cache = DynamicCache(config=model.config)
        found = []
        for part in (slice(0, 20), slice(20, 40)):
            how = {"position_ids": positions[:, part]} if give else {}
            found.append(model(text[:, part], past_key_values=cache, **how).logits)
    off = (torch.cat(found, dim=1) - whole).abs().max() / whole.abs().max()
    return "more than a hundredth of the largest logit" if off > 0.01 else "nothing" if off < 1e-3 else f"{off:.4f}"


bamba = {"attn_layer_indices": [1, 3]}
print("bamba in two calls: off by", error("bamba", False, **bamba))
print("bamba in two calls, with position_ids: off by", error("bamba", True, **bamba))
print("falcon_h1 in two calls: off by", error("falcon_h1", False, mamba_d_ssm=128))
PYTHON
HF_HUB_OFFLINE=1 HF_HOME=$work/hub "$work/venv/bin/python" "$work/try.py" 2>"$work/log" | tee "$work/seen"
cmp "$work/seen" - <<'SEEN'
bamba in two calls: off by more than a hundredth of the largest logit
bamba in two calls, with position_ids: off by nothing
falcon_h1 in two calls: off by nothing
SEEN
