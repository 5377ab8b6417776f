#!/usr/bin/env bash
# transformers 5.23.0 with PyTorch 2.15.0: Jamba and Zamba forget what they have read in every call of several tokens.
#
# Their Mamba layers (the first version) keep a recurrent state in the cache. A call of one token continues it. A call of
# several tokens runs the selective scan, which takes no state to begin with: it starts from zeros, and its last state
# replaces the state in the cache. A prompt in chunks (generate's prefill_chunk_size), a second turn over a kept cache,
# and a draft of several tokens give other logits, without a warning. The convolution and the attention of the same call
# continue. Mamba-2 layers (Nemotron-H, Granite 4 H, Zamba2) and Gated DeltaNet layers give their state to the scan.
#
# A random Jamba, and a random Zamba, of 4 layers read 40 tokens. Seen on 2026-11-28:
#   at once, with a cache: off by nothing
#   20 tokens, then one token a call: off by nothing
#   20 tokens, then 20 tokens: off by more than a tenth of the largest logit
#   generate with prefill_chunk_size=20: other tokens than without it
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
    num_key_value_heads=4, mamba_d_state=16, initializer_range=0.3, pad_token_id=None, eos_token_id=None,
)
OWN = {
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1, num_experts=2, num_experts_per_tok=2),
    "zamba": dict(layer_types=["linear_attention", "hybrid"] * 2, n_mamba_heads=2),
}

for name, own in OWN.items():
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **SIZES, **own)).eval()
    text = torch.randint(0, 100, (1, 40))

    def error(*parts):
        """How far logits are from the logits without a cache, as a part of the largest."""
        cache = DynamicCache(config=model.config)
        pieces = torch.split(text, parts, dim=1)
        found = torch.cat([model(x, past_key_values=cache).logits for x in pieces], dim=1)
        off = (found - whole).abs().max() / whole.abs().max()
        return "more than a tenth of the largest logit" if off > 0.1 else "nothing" if off < 1e-3 else f"{off:.3f}"

    with torch.no_grad():
        whole = model(text, use_cache=False).logits
        print(name, "at once, with a cache: off by", error(40))
        print(name, "20 tokens, then one token a call: off by", error(20, *[1] * 20))
        print(name, "20 tokens, then 20 tokens: off by", error(20, 20))
        plain, chunks = (
            model.generate(text, max_new_tokens=20, do_sample=False, prefill_chunk_size=n) for n in (None, 20)
        )
        print(name, "generate in chunks gives the same tokens:", torch.equal(plain, chunks))
PYTHON
HF_HUB_OFFLINE=1 HF_HOME=$work/hub "$work/venv/bin/python" "$work/try.py" 2>"$work/log" | tee "$work/seen"
for name in jamba zamba; do
  cat <<SEEN
$name at once, with a cache: off by nothing
$name 20 tokens, then one token a call: off by nothing
$name 20 tokens, then 20 tokens: off by more than a tenth of the largest logit
$name generate in chunks gives the same tokens: False
SEEN
done | cmp "$work/seen" -
