"""Train an indexer for a model that was trained without one, and write it beside the checkpoint.

    python examples/python/train_indexer.py SmolLM2-135M train.txt -o indexer.safetensors
    topkv perplexity -m SmolLM2-135M -f test.txt --indexer indexer.safetensors --kv-topk 64

The indexer of a layer projects the input of the layer's attention to index queries, one index key and weights, like
the lightning indexer of DeepSeek-V3.2 (arXiv 2512.02556, section 2.1). It learns the distribution of dense attention,
summed over the query heads that share a choice: the loss is the KL divergence from it to the softmax of the scores, as
in the warm-up stage there. The model itself stays as it is.

The last --local tokens are always attended, so the loss leaves them out. Layers are trained at the same time and do
not depend on each other. Attention of the training texts is computed once and kept in memory: --pieces times --length
tokens, times the layers and the hidden size, times 2 bytes. The file is docs/reference/indexer-files.md's.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


def rotate(x: torch.Tensor, positions: torch.Tensor, dim: int, theta: float) -> torch.Tensor:
    """Turns the first `dim` elements of x [tokens, ..., elements]: pairs (i, i + dim / 2)."""
    if dim == 0:
        return x
    frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = (positions[:, None].double() * frequencies).float()
    angles = angles.view(len(x), *[1] * (x.ndim - 2), dim // 2)
    cos, sin = angles.cos(), angles.sin()
    first, second, rest = x[..., : dim // 2], x[..., dim // 2 : dim], x[..., dim:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


class Indexer(nn.Module):
    """The indexer of one layer. Tensors have the names of the file."""

    def __init__(self, hidden: int, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        self.wq = nn.Linear(hidden, args.heads * args.dim, bias=False)
        self.wk = nn.Linear(hidden, args.dim, bias=False)
        self.k_norm = nn.LayerNorm(args.dim, eps=1e-6)
        self.weights_proj = nn.Linear(hidden, args.heads, bias=False)

    def scores(self, x: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        """Scores of all tokens for the tokens at positions `asked`: [choices, asked, tokens]. x: [tokens, hidden]."""
        args, tokens = self.args, torch.arange(len(x))
        k = rotate(self.k_norm(self.wk(x)), tokens, args.rope_dim, args.rope_theta)
        q = self.wq(x[asked]).unflatten(-1, (args.heads, args.dim))
        q = rotate(q, asked, args.rope_dim, args.rope_theta)
        products = torch.einsum("thd,kd->htk", q, k)
        products = products.relu() if args.score == "relu" else products
        products = products * self.weights_proj(x[asked]).T[..., None]
        return products.unflatten(0, (args.choices, -1)).sum(dim=1)


@dataclass
class Piece:
    """What is learnt from one piece of text, of each layer."""

    asked: torch.Tensor  # positions of the queries
    inputs: list[torch.Tensor]  # [tokens, hidden]
    targets: list[torch.Tensor]  # [choices, asked, tokens]: attention to tokens before the local ones


def hidden_keys(asked: torch.Tensor, tokens: int, local: int) -> torch.Tensor:
    """The keys that no choice is asked about, bool [asked, tokens]: local and later ones."""
    return torch.arange(tokens) > asked[:, None] - local


@torch.no_grad()
def read(model: nn.Module, ids: torch.Tensor, args: argparse.Namespace) -> Piece:
    """Runs the model densely over a piece of text."""
    asked = torch.randperm(len(ids) - args.local - 1)[: args.queries].sort().values + args.local + 1
    hidden = hidden_keys(asked, len(ids), args.local)
    piece = Piece(asked, [], [])
    name = model.config._attn_implementation
    attend = ALL_ATTENTION_FUNCTIONS[name]

    def attend_and_keep(module, query, key, value, mask, scaling=None, **kwargs):
        q, k = query[0][:, asked].float(), key[0].float()
        q = q.unflatten(0, (len(k), -1)) * (scaling or q.shape[-1] ** -0.5)
        scores = q @ k[:, None].mT
        later = torch.arange(len(ids)) > asked[:, None]
        mass = scores.masked_fill(later, -torch.inf).softmax(dim=-1).masked_fill(hidden, 0)
        mass = mass.flatten(0, 1).unflatten(0, (args.choices, -1)).sum(dim=1)
        piece.targets.append((mass / mass.sum(dim=-1, keepdim=True).clamp(min=1e-20)).half())
        return attend(module, query, key, value, mask, scaling=scaling, **kwargs)

    hooks = [
        layer.self_attn.register_forward_pre_hook(
            lambda module, given, kwargs: piece.inputs.append(kwargs["hidden_states"][0].bfloat16()), with_kwargs=True
        )
        for layer in model.model.layers
    ]
    AttentionInterface.register(name, attend_and_keep)
    try:
        model.model(ids[None], use_cache=False)
    finally:
        AttentionInterface.register(name, attend)
        for hook in hooks:
            hook.remove()
    return piece


def loss_of(indexer: Indexer, piece: Piece, layer: int) -> torch.Tensor:
    """The mean KL divergence of a layer, in nats."""
    x, target = piece.inputs[layer].float(), piece.targets[layer].float()
    scores = indexer.scores(x, piece.asked)
    hidden = hidden_keys(piece.asked, len(x), indexer.args.local)
    log_p = scores.masked_fill(hidden, -torch.inf).log_softmax(dim=-1)
    log_p = log_p.masked_fill(hidden, 0)
    return (target * (target.clamp(min=1e-9).log() - log_p)).sum(dim=-1).mean()


def best_keys(scores: torch.Tensor, top: int) -> torch.Tensor:
    """The positions of the best `top` scores, or of all if there are fewer. If scores are equal, the earlier key wins,
    as in topkv. With relu, a key without a positive product scores 0."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :top]


@torch.no_grad()
def recall(indexer: Indexer, piece: Piece, layer: int, top: int) -> tuple[float, float]:
    """The attention, of all to tokens before the local ones, that the best `top` keys hold: by the indexer's scores,
    and by attention itself."""
    x, target = piece.inputs[layer].float(), piece.targets[layer].float()
    hidden = hidden_keys(piece.asked, len(x), indexer.args.local)
    scores = indexer.scores(x, piece.asked).masked_fill(hidden, -torch.inf)
    chosen = best_keys(scores, top)
    best = target.topk(min(top, target.shape[-1]), dim=-1).values
    return target.gather(-1, chosen).sum(dim=-1).mean().item(), best.sum(dim=-1).mean().item()


def write(path: Path, indexers: list[Indexer], args: argparse.Namespace) -> None:
    tensors = {}
    for layer, indexer in enumerate(indexers):
        for name, tensor in indexer.state_dict().items():
            tensors[f"layers.{layer}.{name}"] = tensor.contiguous()
    names = ("dim", "heads", "choices", "score", "rope_dim", "rope_theta", "top", "local", "key_dtype")
    save_file(tensors, path, metadata={"topkv_indexer": "1", **{x: str(getattr(args, x)) for x in names}})


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a GGUF file, a directory or a name at Hugging Face")
    parser.add_argument("text", nargs="+", type=Path, help="files to train on; pieces are drawn from all of them")
    parser.add_argument("--dim", type=int, default=24, help="elements of an index key")
    parser.add_argument("--heads", type=int, default=12, help="index queries of a token")
    parser.add_argument("--choices", type=int, default=3, help="1, or the KV heads of the model")
    parser.add_argument("--score", choices=("relu", "dot"), default="relu")
    parser.add_argument("--rope-dim", type=int, default=8, help="first elements that RoPE turns; even")
    parser.add_argument("--rope-theta", type=float, default=10000.0)
    parser.add_argument("--key-dtype", choices=("bf16", "f32"), default="bf16", help="of stored index keys")
    parser.add_argument("--local", type=int, default=64, help="last tokens that are always attended")
    parser.add_argument("--top", type=int, default=128, help="tokens that are chosen unless a command says, with local")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a piece of text")
    parser.add_argument("--pieces", type=int, default=32, help="pieces to train on")
    parser.add_argument("--queries", type=int, default=96, help="tokens of a piece that are learnt from")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("indexer.safetensors"))
    return parser.parse_args()


def main() -> None:
    args = parsed()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    path = Path(args.model)
    of = {"pretrained_model_name_or_path": args.model}
    if path.is_file():
        of = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**of)
    model = AutoModelForCausalLM.from_pretrained(**of, dtype=torch.float32).eval()
    text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in args.text)
    characters = args.length * 8  # more than a piece takes
    pieces = []
    begun = time.monotonic()
    while len(pieces) <= args.pieces:
        at = int(torch.randint(max(1, len(text) - characters), ()))
        ids = torch.tensor(tokenizer(text[at : at + characters])["input_ids"][: args.length])
        if len(ids) < min(args.length, 2 * args.local):
            continue
        pieces.append(read(model, ids, args))
        print(f"read piece {len(pieces)} of {args.pieces + 1}, {time.monotonic() - begun:.0f} s", flush=True)
    held_out = pieces.pop()
    layers = len(held_out.inputs)
    indexers = [Indexer(held_out.inputs[0].shape[-1], args) for _ in range(layers)]
    optimiser = torch.optim.Adam([p for one in indexers for p in one.parameters()], lr=args.lr, betas=(0.9, 0.98))
    steps = args.epochs * args.pieces
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, args.lr, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        order = torch.randperm(args.pieces) if step % args.pieces == 0 else order
        total = 0.0
        for layer, indexer in enumerate(indexers):
            loss = loss_of(indexer, pieces[order[step % args.pieces]], layer)
            loss.backward()
            total += loss.item() / layers
        nn.utils.clip_grad_norm_([p for one in indexers for p in one.parameters()], 10.0)
        optimiser.step()
        optimiser.zero_grad()
        rate.step()
        if step % 16 == 0 or step + 1 == steps:
            print(f"step {step + 1} of {steps}: KL {total:.4f}, {time.monotonic() - begun:.0f} s", flush=True)
    with torch.no_grad():
        kl = sum(loss_of(one, held_out, layer).item() for layer, one in enumerate(indexers)) / layers
    print(f"held-out piece: KL {kl:.4f}")
    for top in (16, 64, 256):
        found = torch.tensor([recall(one, held_out, layer, top) for layer, one in enumerate(indexers)])
        mine, best = found.mean(dim=0).tolist()
        print(f"held-out piece: {top} keys hold {mine:.3f} of attention beyond the local tokens; the best {best:.3f}")
    write(args.output, indexers, args)
    print(f"wrote {args.output}: {args.dim} elements a key, {args.heads} queries, {args.choices} choices")


if __name__ == "__main__":
    main()
