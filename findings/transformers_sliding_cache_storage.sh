#!/usr/bin/env bash
# transformers 5.23.0 with PyTorch 2.15.0: after a prompt, the cache of a sliding-window layer still holds all its rows.
#
# DynamicSlidingWindowLayer keeps the last rows as a view of the tensor of the whole prompt. Its shape has the window's
# length, but its memory is the prompt's until the next token is read, which copies the rows. A cache of Gemma 3, which
# was read and put aside, takes as much memory as without sliding windows. torch.save writes the storage, not the view:
# the file holds the whole prompt too, and so does the cache that is loaded from it.
#
# A random Gemma 3 of 6 layers, 5 of them with a window of 16 tokens, reads 4,000 tokens. Seen on 2026-11-28, for the
# keys of the first layer, [1, 2, 15, 16] in float32, 1,920 bytes:
#   after the prompt: 512,000 bytes of storage; the six layers saved: 6.1 MB
#   after one token more: 2,048 bytes of storage; the six layers saved: 1.0 MB
# Fails when that changes. Needs PyPI and nothing of topkv.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.23.0 torch==2.15.0
cat >"$work/try.py" <<'PYTHON'
import io

import torch
from transformers import DynamicCache, Gemma3ForCausalLM, Gemma3TextConfig

torch.manual_seed(0)
config = Gemma3TextConfig(
    vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, sliding_window=16,
)
model = Gemma3ForCausalLM(config).eval()
cache = DynamicCache(config=config)
with torch.no_grad():
    for tokens in (4000, 1):
        model(torch.randint(0, 100, (1, tokens)), past_key_values=cache)
        keys = cache.layers[0].keys
        file = io.BytesIO()
        torch.save([(layer.keys, layer.values) for layer in cache.layers], file)
        print(list(keys.shape), keys.untyped_storage().nbytes(), f"{len(file.getvalue()) / 1e6:.1f} MB")
PYTHON
HF_HUB_OFFLINE=1 HF_HOME=$work/hub "$work/venv/bin/python" "$work/try.py" 2>"$work/log" | tee "$work/seen"
cmp "$work/seen" - <<'SEEN'
[1, 2, 15, 16] 512000 6.1 MB
[1, 2, 15, 16] 2048 1.0 MB
SEEN
