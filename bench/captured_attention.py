"""Queries, keys and values of a model's full attention over a text, as attention sees them, for
measurements of single query heads. transformers runs the model in float32.

    parser = argparse.ArgumentParser()
    add_arguments(parser, queries=32)
    for one in layers_of(parser.parse_args()):
        one.keys        # [kv_heads, tokens, head_dim], one object for each layer of full attention
"""

import dataclasses
import lzma
import pathlib

import numpy as np
import torch
import transformers


@dataclasses.dataclass
class Layer:
    """One layer: the queries of the last tokens of a text, and the rows of all its tokens."""

    queries: np.ndarray  # [tokens, q_heads, head_dim]
    keys: np.ndarray  # [kv_heads, all tokens, head_dim]
    values: np.ndarray  # the same shape
    scale: float


def add_arguments(parser, queries):
    """Adds the arguments of layers_of and of sessions over its rows. queries: the default of --queries."""
    parser.add_argument("-m", "--model", default="models/needle-14m", help="a folder or a GGUF file")
    parser.add_argument("-c", "--tokens", type=int, default=16000)
    parser.add_argument("--skip", type=int, default=0, help="tokens of the text to leave out at its begin")
    parser.add_argument("--queries", type=int, default=queries, help="last tokens, which attend")
    parser.add_argument("--layers", type=int, default=1, help="take each n-th layer")
    parser.add_argument("-k", type=int, default=64)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("files", nargs="+")


def layers_of(given):
    """Returns the Layers of the model and the text that these arguments name."""
    return captured(given.model, text_of(given.files), given.tokens, given.queries, given.skip)


def text_of(files):
    """Returns the text of files, of which some may be packed by xz."""
    opened = (lzma.open(file, "rt") if file.suffix == ".xz" else open(file) for file in map(pathlib.Path, files))
    return "\n".join(file.read() for file in opened)


@torch.no_grad()
def captured(path, text, tokens, queries, skip=0):
    """Returns the Layers of a checkpoint's folder or GGUF file, over `tokens` tokens of the text from
    token `skip` on. Their queries are those of the last `queries` tokens."""
    path = pathlib.Path(path)
    of = {"pretrained_model_name_or_path": path}
    if path.suffix == ".gguf":
        of = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    layers = []

    def keep(module, query, key, value, mask, scaling=None, sliding_window=None, **others):
        if not sliding_window:
            layers.append(
                Layer(
                    query[0, :, -queries:].transpose(0, 1).float().numpy().copy(),
                    key[0].float().numpy().copy(),
                    value[0].float().numpy().copy(),
                    float(scaling),
                )
            )
        others.pop("is_causal", None)
        return transformers.integrations.sdpa_attention.sdpa_attention_forward(
            module, query, key, value, mask, scaling=scaling, **others
        )

    transformers.AttentionInterface.register("captured", keep)
    transformers.AttentionMaskInterface.register("captured", transformers.masking_utils.sdpa_mask)
    tokenizer = transformers.AutoTokenizer.from_pretrained(**of)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **of, dtype=torch.float32, attn_implementation="captured"
    ).eval()
    ids = tokenizer(text)["input_ids"][skip : skip + tokens]
    if len(ids) < tokens:
        raise SystemExit(f"the text has {len(ids)} tokens from token {skip} on; {tokens} are wanted")
    model.model(torch.tensor([ids]), use_cache=False)
    return layers


def joined(layers):
    """Returns layers with heads of twice the dims: each head of an even layer beside that of the next
    layer. Scores are the sums of both, scaled for the dims."""
    both = []
    for a, b in zip(layers[::2], layers[1::2]):
        parts = [np.concatenate((getattr(a, name), getattr(b, name)), axis=-1)
                 for name in ("queries", "keys", "values")]
        both.append(Layer(*parts, a.scale * 2**-0.5))
    return both
