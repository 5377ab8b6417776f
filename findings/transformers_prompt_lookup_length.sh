#!/usr/bin/env bash
# transformers 5.24.0 with PyTorch 2.15.0: prompt lookup drafts tokens beyond max_length.
#
# With prompt_lookup_num_tokens=n, generate() drafts n tokens even where fewer than n are left until max_length. The
# answer is cut afterwards, but the model reads the draft first. With a static cache, which holds max_length - 1 tokens,
# the read is an IndexError. So it is with a model of learned positions (GPT-2), in any cache, if max_length is the
# number of its positions. Drafts of an assistant model are bounded by what is left (candidate_generator.py), and work.
#
# Random models read 12 tokens four times over, and answer with 16 tokens. Seen on 2026-11-29:
#   Llama, dynamic cache, prompt lookup: 64 tokens
#   Llama, static cache: 64 tokens
#   Llama, static cache, assistant model: 64 tokens
#   Llama, static cache, prompt lookup: IndexError
#   GPT-2 of 64 positions: 64 tokens
#   GPT-2 of 64 positions, assistant model: 64 tokens
#   GPT-2 of 64 positions, prompt lookup: IndexError
# Fails when that changes. Needs PyPI and nothing of topkv.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check transformers==5.24.0 torch==2.15.0
cat >"$work/try.py" <<'PYTHON'
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

text = torch.arange(1, 13).repeat(4)[None]


def always_repeats(model):
    """Answers with what followed each token in the text."""
    def follow(module, args, output):
        ids = model.read
        output.logits = torch.nn.functional.one_hot(ids % 12 + 1, 64).float()
        return output

    def read(module, args, kwargs):
        model.read = kwargs["input_ids"]

    model.register_forward_pre_hook(read, with_kwargs=True)
    model.register_forward_hook(follow)
    return model.eval()


def length(model, **options):
    try:
        answer = model.generate(text, max_length=64, do_sample=False, eos_token_id=63, pad_token_id=0, **options)
        return f"{answer.shape[1]} tokens"
    except IndexError:
        return "IndexError"


small = dict(vocab_size=64, bos_token_id=0, eos_token_id=63)
lookup = dict(prompt_lookup_num_tokens=5)
llama = always_repeats(LlamaForCausalLM(LlamaConfig(
    hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, **small)))
gpt2 = always_repeats(GPT2LMHeadModel(GPT2Config(n_positions=64, n_embd=64, n_layer=2, n_head=4, **small)))
static = dict(cache_implementation="static")
print("Llama, dynamic cache, prompt lookup:", length(llama, **lookup))
print("Llama, static cache:", length(llama, **static))
print("Llama, static cache, assistant model:", length(llama, assistant_model=llama, num_assistant_tokens=5, **static))
print("Llama, static cache, prompt lookup:", length(llama, **lookup, **static))
print("GPT-2 of 64 positions:", length(gpt2))
print("GPT-2 of 64 positions, assistant model:", length(gpt2, assistant_model=gpt2, num_assistant_tokens=5))
print("GPT-2 of 64 positions, prompt lookup:", length(gpt2, **lookup))
PYTHON
HF_HUB_OFFLINE=1 HF_HOME=$work/hub "$work/venv/bin/python" "$work/try.py" 2>"$work/log" | tee "$work/seen"
cmp "$work/seen" - <<'SEEN'
Llama, dynamic cache, prompt lookup: 64 tokens
Llama, static cache: 64 tokens
Llama, static cache, assistant model: 64 tokens
Llama, static cache, prompt lookup: IndexError
GPT-2 of 64 positions: 64 tokens
GPT-2 of 64 positions, assistant model: 64 tokens
GPT-2 of 64 positions, prompt lookup: IndexError
SEEN
