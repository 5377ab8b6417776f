"""How much of a question's attention the best k rows of a text hold, layer by layer.

    python examples/python/attention_mass.py
    python examples/python/attention_mass.py --model ~/models/Qwen3-4B --tokens 32768

Reads a generated text with a needle in it, asks for the needle with dense attention, records the
queries on the way, and takes the softmax mass of each layer's exact best rows (topkv.mass). It is
what retrieval of k rows can keep at best. Writes attention_mass.csv and .png into --output.
"""

from __future__ import annotations

import argparse
import csv
from contextlib import contextmanager
from pathlib import Path

import torch
from needles import NEEDLE_14M, load_tokenizer, make_needles, text_with
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import topkv.hf
import topkv.plot
from topkv.mass import attention_mass


@contextmanager
def recorded_queries(model):
    """Yields {layer: queries [1, heads, tokens, head_dim]} of the calls made within it."""
    name = model.config.get_text_config()._attn_implementation
    attend, queries = ALL_ATTENTION_FUNCTIONS[name], {}

    def attend_and_record(module, query, *args, **kwargs):
        queries[module.layer_idx] = query.detach()
        return attend(module, query, *args, **kwargs)

    AttentionInterface.register(name, attend_and_record)
    try:
        yield queries
    finally:
        AttentionInterface.register(name, attend)


def full_attention_layers(config) -> list[int]:
    """Numbers of the layers whose rows topkv keeps, in the order in which it keeps them."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    return [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=str(NEEDLE_14M))
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--k", default="1,4,16,64,256,1024")
    parser.add_argument("--depth", type=float, default=40, help="of the needle, in percent")
    parser.add_argument("--chunk", type=int, default=8192, help="tokens read at a time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/attention_mass"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(args.model)
    dtype = torch.float32 if args.device == "cpu" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).to(args.device).eval()
    ks = [int(k) for k in args.k.split(",")]

    (needle,) = make_needles(1)
    needle.depth = args.depth / 100
    text = torch.tensor([text_with([needle], args.tokens, tokenizer)], device=model.device)
    asked = tokenizer.encode(needle.question, add_special_tokens=False)
    question = torch.tensor([asked], device=model.device)
    layers = full_attention_layers(model.config)
    cache = topkv.hf.TopkCache(model.config, max_cache_len=text.shape[1])
    with torch.inference_mode():
        for begin in range(0, text.shape[1], args.chunk):
            model(text[:, begin : begin + args.chunk], past_key_values=cache, logits_to_keep=1)
        cache.freeze()
        with recorded_queries(model) as queries:
            dense = cache.session(dense_layers=len(layers))
            model(question, past_key_values=dense, logits_to_keep=1)

    shares = {}
    for number, layer in enumerate(layers):
        recorded = queries[layer][0].transpose(0, 1).float().cpu().numpy()
        shares[layer] = attention_mass(cache.context, number, recorded, ks)
        best = "  ".join(f"{k}: {100 * part.mean():.0f} %" for k, part in zip(ks, shares[layer]))
        print(f"layer {layer}: best rows hold  {best}", flush=True)

    with open(args.output / "attention_mass.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("layer", "k", "query", "head", "share"))
        for layer, values in shares.items():
            for k, of_k in zip(ks, values):
                for query, of_query in enumerate(of_k):
                    for head, part in enumerate(of_query):
                        writer.writerow((layer, k, query, head, f"{part:.6f}"))
    ax = topkv.plot.mass_kept(
        shares, ks, title=f"Attention mass of the best k of {text.shape[1]} rows"
    )
    ax.figure.savefig(args.output / "attention_mass.png", dpi=150)
    print(f"{args.output / 'attention_mass.csv'}, {args.output / 'attention_mass.png'}")


if __name__ == "__main__":
    main()
