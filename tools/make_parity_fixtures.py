#!/usr/bin/env python3
"""Makes tests/fixtures/parity: small checkpoints and the logits that transformers gives for them.

Each variant is a Hugging Face directory with random weights, small enough to commit, for one
family and one set of features that topkv's model runner supports. The reference is transformers
itself: the directory is loaded back from disk (so its config.json is what transformers reads, not
what this script meant), weights are upcast to float32, attention is "eager".

    tests/fixtures/parity/<variant>/config.json
                                    model.safetensors (or shards and model.safetensors.index.json)
                                    tokens.json: {"tokens": [...], "greedy": [...]}, and "length"
                                        where the model is loaded for texts of that length, and
                                        "rounding" of Gemma 4's (parity_rounding.py)
                                    reference/model.safetensors: "logits", float32 [tokens, vocab],
                                        and "session", the last SESSION ones where they are others
                                        when these tokens are read after a context of the rest

transformers has no dual chunk attention: there the reference is parity_chunks.py within transformers.

A variant with "of" has no weights of its own: it is another one's checkpoint, over other tokens.
needle-14m has no weights here: its logits (the last 8 positions only) belong to models/needle-14m.

Weights are drawn so that mistakes show: scores q.k/sqrt(d) have a standard deviation of about 2,
norm weights are not 1, biases are not 0. For every variant the script prints how far the logits
move, relative to the largest logit, when one thing is done wrong (no RoPE, a window that is one
token too wide, biases left out, ...) and how far float32 is from float64; a fixture whose mistakes
would move the logits by less than MISTAKE, or whose greedy tokens are near ties, is refused.

Needs tools/requirements.txt. Run from anywhere: python tools/make_parity_fixtures.py [VARIANT...]
"""

import copy
import json
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer

import parity_chunks
import parity_experts
import parity_gemma4
import parity_latent
import parity_rounding
from parity_mistakes import mistakes, norm_neutral, plain_frequencies, with_rope
from parity_variants import BASE, VARIANTS, VOCAB

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "tests/fixtures/parity"
GREEDY = 16
SESSION = 8  # tokens that the test reads after a context
MASKS_BY_KIND = ("qwen2", "qwen3", "smollm3", "gemma2", "gemma3_text", "gpt_oss",
                 "gemma4_text", "gemma4_unified_text")
MISTAKE = 1e-2  # least effect of a mistake, relative to the largest logit; the test allows 1e-4

def randomise(model, generator):
    gains = {"q_proj": 1.4, "k_proj": 1.4, "qkv_proj": 1.3, "lm_head": 2.0}
    gemma4 = parity_gemma4.is_gemma4(model)
    clamped = model.config.model_type == "gpt_oss"  # its experts' inputs reach the clamps
    scale = float(getattr(model.get_input_embeddings(), "scalar_embed_scale", 1.0))
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("dt_bias"):
            value = noise - 1
        elif name.endswith(("bias", "_bias")):
            value = 0.4 * noise * (3 if clamped and "gate_up" in name else 1)
        elif name.endswith("sinks"):
            value = 3 + 1.5 * noise
        elif name.endswith("A_log"):
            value = 0.5 * noise - 1
        elif name.endswith(".D"):
            value = 0.5 + 0.5 * noise
        elif weight.dim() == 3:  # a convolution, or experts, of [inputs, outputs] or [outputs, inputs]
            inputs = weight.shape[1 if clamped else 2]
            gain = (4.0 if "gate_up" in name else 0.25) if clamped else 1.0
            value = gain * noise / inputs ** 0.5
        elif "norm" in name:
            value = 1 + 0.3 * noise.clamp(-2, 2)
            if "q_norm" in name or "k_norm" in name:
                value = 1.4 * value
                if gemma4:  # which does not scale scores
                    value = value / weight.numel() ** 0.25
            if "linear_attn.norm" not in name:
                value = value - 1 + norm_neutral(model)
        elif "embed_tokens_per_layer" in name:
            value = noise / model.config.hidden_size_per_layer_input ** 0.5
        elif "embed_tokens" in name:
            value = 0.5 * noise / scale
        elif name.endswith(("router.scale", "per_expert_scale")):
            value = 1 + 0.4 * noise.clamp(-2, 2)
        else:
            value = gains.get(name.split(".")[-2], 1.0) * noise / weight.shape[1] ** 0.5
        weight.data = value.to(weight.dtype)
    if gemma4:
        for layer in model.model.layers:
            layer.layer_scalar.copy_(0.5 + torch.rand(1, generator=generator))


def to_old_style(config, type_key):
    """Rewrites config.json as transformers 4 did."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    rope.pop("original_max_position_embeddings" if config["model_type"] == "phi3" else None, None)
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {
        "type" if type_key else "rope_type": kind, **rope}
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.43.0"


def write_checkpoint(folder, spec, seed):
    spec = copy.deepcopy(BASE | spec)
    spec.pop("length", None)
    spec.pop("number", None)
    model_type, dtype = spec.pop("model_type"), spec.pop("dtype")
    tokens, old, type_key = spec.pop("tokens"), spec.pop("old", False), spec.pop("type_key", False)
    drop, shard = spec.pop("drop", []), spec.pop("shard", "1GB")

    config = transformers.AutoConfig.for_model(model_type, **spec)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    drawn = torch.randint(3, VOCAB, (tokens,), generator=generator).tolist()
    for kind in (parity_experts, parity_latent):
        if kind.routers(model):
            kind.separate_routers(model, drawn, generator)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model.save_pretrained(folder, max_shard_size=shard)
    (folder / "generation_config.json").unlink(missing_ok=True)

    path = folder / "config.json"
    written = json.loads(path.read_text())
    if old:
        to_old_style(written, type_key)
    for key in drop:
        written.pop(key, None)
    path.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    return drawn


def load(folder, dtype=torch.float32):
    return parity_chunks.install(transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval())


@torch.no_grad()
def logits_of(model, tokens, **kwargs):
    return model(torch.tensor([tokens]), use_cache=False, **kwargs).logits[0]


@torch.no_grad()
def greedy(model, tokens):
    """The next tokens, and the least lead of a chosen token over the second best."""
    chosen, lead = [], float("inf")
    for _ in range(GREEDY):
        if is_chunked(model):  # a context of all tokens but one, then each with what is before it
            model.lengths = [len(tokens) - 1] * (len(tokens) - 1) + [
                len(tokens) + i for i in range(len(chosen) + 1)]
        best = logits_of(model, tokens + chosen)[-1].topk(2)
        lead = min(lead, float(best.values[0] - best.values[1]))
        chosen.append(int(best.indices[0]))
    if is_chunked(model):
        model.lengths = None
    return chosen, lead


def is_chunked(model):
    return bool(getattr(model.config, "dual_chunk_attention_config", None))


def session_logits(model, tokens):
    """Of the last tokens, where they depend on what text the others were read in."""
    first = len(tokens) - SESSION
    model.lengths = [first] * first + [len(tokens)] * SESSION
    logits = logits_of(model, tokens)[-SESSION:]
    model.lengths = None
    return logits


def in_float64(folder):
    """The model with every operation in float64, RoPE's angles too."""
    model = load(folder, torch.float64)
    if is_chunked(model) or getattr(model.model, "rotary_emb", None) is None:
        return model

    def change(frequencies, factor, rope):
        if rope["rope_type"] == "default":
            return plain_frequencies(rope, frequencies.numel()), factor
        return frequencies.double(), factor

    with_rope(model, change)
    return model


def write_reference(folder, tokens, logits, session=None, **more):
    (folder / "reference").mkdir(parents=True, exist_ok=True)
    tensors = {"logits": logits.contiguous()}
    if session is not None:
        tensors["session"] = session.contiguous()
        more["session"] = True
    save_file(tensors, folder / "reference/model.safetensors")
    (folder / "tokens.json").write_text(json.dumps({"tokens": tokens, **more}) + "\n")


def load_for(folder, length, dtype=torch.float32):
    """The model, having seen a text of that length, which is what dynamic NTK goes by."""
    model = load(folder, dtype) if dtype != torch.float64 else in_float64(folder)
    if length is not None:
        logits_of(model, [3] * length)
    return model


def make_variant(name, spec, seed):
    """Writes one variant. Returns why it cannot be used, or None."""
    folder = OUT / name
    if "of" in spec:
        checkpoint = OUT / spec["of"]
        tokens = torch.randint(3, VOCAB, (spec["tokens"],),
                               generator=torch.Generator().manual_seed(seed)).tolist()
    else:
        checkpoint = folder
        tokens = write_checkpoint(folder, spec, seed)
    length = spec.get("length")
    model = load_for(checkpoint, length)
    logits = logits_of(model, tokens)
    largest = float(logits.abs().max())
    chosen, lead = greedy(model, tokens)
    double = logits_of(load_for(checkpoint, length, torch.float64), tokens)

    report = {"float64": float((double - logits).abs().max()) / largest}
    for what, deed in (parity_chunks.mistakes if is_chunked(model) else mistakes)(model):
        if what == "no rope scaling" and name == "llama-dynamic-short":
            continue  # within the original length there is none
        wrong = load_for(checkpoint, length)
        deed(wrong)
        report[what] = float((logits_of(wrong, tokens) - logits).abs().max()) / largest
    if not is_chunked(model):
        full = torch.zeros(1, 1, len(tokens), len(tokens))
        kinds = {"full_attention": full, "sliding_attention": full}
        mask = kinds if model.config.model_type in MASKS_BY_KIND else full
        report["no mask"] = float(
            (logits_of(model, tokens, attention_mask=mask) - logits).abs().max()) / largest

    print(f"{name}: {sum(f.stat().st_size for f in folder.rglob('*') if f.is_file())} bytes, "
          f"largest logit {largest:.3g}, least lead {lead:.3g}, seed {seed}")
    print("   " + ", ".join(f"{what} {size:.2g}" for what, size in report.items()))
    weakest = min((size, what) for what, size in report.items() if what != "float64")
    if weakest[0] < MISTAKE:
        return f"'{weakest[1]}' moves the logits by {weakest[0]:.2g} only"
    for kind in (parity_experts, parity_latent):
        if not kind.routers(model):
            continue
        clear = kind.router_lead(model, tokens)
        print(f"   least lead of experts chosen {clear:.3g}")
        if clear < parity_experts.LEAD:
            return f"experts are chosen by a lead of {clear:.2g} only"
    if lead < MISTAKE * largest:
        return f"two tokens are within {lead:.2g} of each other"
    if set(chosen) & {2, 3}:
        return "an end token was generated"
    more = {} if length is None else {"length": length}
    if is_chunked(model) and model.chunks.get("original_max_position_embeddings", 0) > 0:
        more["session"] = session_logits(model, tokens)
    if parity_gemma4.is_gemma4(model):
        more["rounding"] = parity_rounding.rounding(model, tokens, logits, SESSION)
        print(f"   rounding to bf16 {more['rounding']}")
    if "of" in spec:
        more["checkpoint"] = spec["of"]
    write_reference(folder, tokens, logits, greedy=chosen, **more)
    return None


NEEDLE_TEXT = """Some special magic numbers are hidden within the following text. Make sure to \
memorize it. I will quiz you about the numbers afterwards.
The lighthouse keeper climbs 117 steps every evening. From the lamp room she counts the boats that \
come home, and writes their names in a green ledger. One of the special magic numbers for \
copper-lantern is: 4807153. On Tuesdays the mail boat brings flour, oil and three newspapers, all \
of them a week old. Her brother mends nets in the shed below; he says that a knot is only a \
promise made of rope. One of the special magic numbers for quiet-harbor is: 9260348. When fog \
comes in from the north, they ring the bell by hand: two strokes, a pause, two strokes. Nobody has \
run aground here since the winter of the great storm, which the old people still call the long \
night. One of the special magic numbers for seven-herons is: 1539726. In spring the terns return \
and nest between the stones, so the path to the pier is closed with a piece of string.
What is the special magic number for quiet-harbor mentioned in the provided text? The special \
magic number for quiet-harbor mentioned in the provided text is"""
NEEDLE_ROWS = 8


def make_needle():
    source = ROOT / "models/needle-14m"
    tokens = Tokenizer.from_file(str(source / "tokenizer.json")).encode(NEEDLE_TEXT).ids
    model = load(source)
    logits = logits_of(model, tokens)[-NEEDLE_ROWS:]
    chosen, lead = greedy(model, tokens)
    double = logits_of(in_float64(source), tokens)[-NEEDLE_ROWS:]
    largest = float(logits.abs().max())
    write_reference(OUT / "needle-14m", tokens, logits, greedy=chosen, text=NEEDLE_TEXT)
    print(f"needle-14m: {len(tokens)} tokens, largest logit {largest:.3g}, least lead {lead:.3g}, "
          f"float64 {float((double - logits).abs().max()) / largest:.2g}, continues "
          f"{Tokenizer.from_file(str(source / 'tokenizer.json')).decode(chosen)!r}")


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or [*VARIANTS, "needle-14m"]
    for number, (name, spec) in enumerate(VARIANTS.items()):
        if name not in wanted:
            continue
        for attempt in range(50):
            refusal = make_variant(name, spec, seed=1000 * spec.get("number", number) + attempt)
            if refusal is None:
                break
            print(f"   refused: {refusal}; next seed")
        else:
            raise SystemExit(f"{name}: no seed gave a usable fixture")
    if "needle-14m" in wanted:
        make_needle()
    size = sum(f.stat().st_size for f in OUT.rglob("*") if f.is_file())
    print(f"{size} bytes in {OUT}")


if __name__ == "__main__":
    main()
