#!/usr/bin/env bash
# compressed-tensors 0.20.0 with transformers 5.24.0: a kv_cache_scheme rounds no cache, without an error.
#
# compressed-tensors looks for the attention layers that get a cache (is_cached_attention_module). It takes those whose
# forward has a parameter past_key_values, or past_key_value. transformers 5.24 has renamed this parameter to cache. No
# layer is found, no layer gets scales, and the cache holds keys and values as they were. With transformers 5.23 the
# layers are found and keys are rounded.
#
# A random Llama of 2 layers reads 30 tokens, before and after a kv_cache_scheme of 4-bit integers. Four bits have at
# most 16 values. Seen on 2026-11-29:
#   transformers 5.23.0: 4 scales (keys and values of 2 layers), keys of at most 16 values
#   transformers 5.24.0: no scales, the same keys as before
# Fails when that changes. Needs PyPI and nothing of topkv.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
install=("$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.15.0 compressed-tensors==0.20.0)
cat >"$work/try.py" <<'PYTHON'
import inspect

import torch
import transformers
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, apply_quantization_config
from compressed_tensors.quantization import is_cached_attention_module
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2,
)
model = LlamaForCausalLM(config).eval()
attention = model.model.layers[0].self_attn
parameters = inspect.signature(attention.forward).parameters
argument = next(name for name in ("cache", "past_key_values") if name in parameters)
text = torch.randint(0, 100, (1, 30))


@torch.no_grad()
def keys():
    """Keys of the first layer in a cache that has read the text."""
    cache = DynamicCache(config=config)
    model(text, use_cache=True, **{argument: cache})
    assert cache.get_seq_length() == 30
    return cache.layers[0].keys


before = keys()
int4 = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="tensor")
apply_quantization_config(model, QuantizationConfig(config_groups={}, kv_cache_scheme=int4))
scales = [x for name, x in model.named_parameters() if name.endswith(("k_scale", "v_scale"))]
for scale in scales:
    scale.data.fill_(before.abs().max() / 7)
after = keys()
print(f"transformers {transformers.__version__}: attention has a parameter {argument}")
print("  found as attention with a cache:", is_cached_attention_module(attention))
print("  scales:", len(scales))
print("  keys as before:", torch.equal(after, before))
print("  keys of at most 16 values:", after.unique().numel() <= 16)
PYTHON
for version in 5.23.0 5.24.0; do
  "${install[@]}" "transformers==$version"
  HF_HUB_OFFLINE=1 HF_HOME=$work/hub "$work/venv/bin/python" "$work/try.py" 2>>"$work/log"
done | tee "$work/seen"
cmp "$work/seen" - <<'SEEN'
transformers 5.23.0: attention has a parameter past_key_values
  found as attention with a cache: True
  scales: 4
  keys as before: False
  keys of at most 16 values: True
transformers 5.24.0: attention has a parameter cache
  found as attention with a cache: False
  scales: 0
  keys as before: True
  keys of at most 16 values: False
SEEN
