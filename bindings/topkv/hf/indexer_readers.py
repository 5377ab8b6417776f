"""How the indexers of each family in transformers are read."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

from topkv import Unsupported
from topkv.hf import compat
from topkv.hf.indexers import Choice, Indexers, Parts, Reader, Rule, shrunk


def _rotation(module: Any, name: str) -> Any:
    """A function of the file of a module's class that applies RoPE."""
    return getattr(sys.modules[type(module).__module__], name)


#: The argument of a forward without a cache.
_NO_CACHE = {compat.cache_argument(): None}


def _only(parts: Parts) -> torch.Tensor:
    """The key of a token, which is all of its group: [keys, dim]."""
    return parts["keys"][:, 0]


def _choosers(text: Any) -> tuple[int, ...]:
    """Indexers.choosers of a config with indexer_types: "full" chooses, and "shared" attends the last choice."""
    kinds = getattr(text, "indexer_types", None) or ["full"] * text.num_hidden_layers
    choosers, last = [], -1
    for layer, (kind, layer_type) in enumerate(zip(kinds, text.layer_types, strict=True)):
        if layer_type == "linear_attention":
            choosers.append(-1)
            continue
        last = layer if kind == "full" else last
        if kind not in ("full", "shared") or last < 0:
            raise Unsupported(f"layer {layer} has an indexer of type {kind!r}")
        choosers.append(last)
    return tuple(choosers)


class Lightning(Reader):
    """DeepSeek Sparse Attention: a key per token, ReLU scores of heads with weights by the token (DeepSeek-V3.2).

    A layer of type "shared" attends the choice of the last layer before it of type "full"."""

    arguments = ("hidden_states", "q_resid", "position_embeddings")

    def __init__(self, indexer: str, rotation: str, rotates_last: bool = False):
        """rotation: the function that applies RoPE. rotates_last: it turns the last dims of a head, else the first."""
        self.indexer, self._rotation, self._rotates_last = indexer, rotation, rotates_last

    def reason(self, code: ModuleType) -> str:
        if compat.version() < (5, 18):
            return f"{code.__name__} caches latents from transformers 5.18 on, and this is {compat.installed()}"
        return super().reason(code)

    def indexers(self, text: Any) -> Indexers:
        rule = Rule(dim=text.index_head_dim, heads=text.index_n_heads, top=text.index_topk)
        return Indexers(rule, _choosers(text))

    def rule(self, module: Any) -> Rule:
        return Rule(dim=module.head_dim, heads=module.n_heads, top=module.index_topk)

    def _turned(self, module: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """x [batch, tokens, heads, dim] with RoPE."""
        rotate, rope = _rotation(module, self._rotation), module.qk_rope_head_dim
        sizes = (x.shape[-1] - rope, rope) if self._rotates_last else (rope, x.shape[-1] - rope)
        parts = list(x.split(sizes, dim=-1))
        turned = 1 if self._rotates_last else 0
        parts[turned], _ = rotate(parts[turned], parts[turned], cos, sin, unsqueeze_dim=2)
        return torch.cat(parts, dim=-1)

    def read(self, module: Any, given: dict[str, Any]) -> Choice:
        hidden, (cos, sin) = given["hidden_states"], given["position_embeddings"]
        q = module.wq_b(given["q_resid"]).unflatten(-1, (module.n_heads, module.head_dim))
        k = module.k_norm(module.wk(hidden).to(module.k_norm.weight.dtype)).to(hidden.dtype)
        weights = module.weights_proj(hidden.to(module.weights_proj.weight.dtype)).float()
        return Choice(
            layer=module.layer_idx,
            queries=self._turned(module, q, cos, sin),
            weights=weights * (module.n_heads**-0.5 * module.softmax_scale),
            parts={"keys": self._turned(module, k[:, :, None], cos, sin)[:, :, 0]},
            pool=_only,
        )

    def with_few(self, module: Any) -> Any:
        return shrunk(module, index_topk=5)

    def own_choice(self, module: Any, forward: Any, given: dict[str, Any]) -> torch.Tensor:
        hidden = given["hidden_states"]
        tokens = hidden.shape[1]
        seen = torch.ones(tokens, tokens, dtype=torch.bool, device=hidden.device).tril()
        mask = torch.zeros(1, tokens, tokens, device=hidden.device)
        mask = mask.masked_fill(~seen, torch.finfo(mask.dtype).min)
        chosen = forward(module, **given, attention_mask=mask, position_ids=None)
        return torch.zeros_like(seen)[None].scatter(-1, chosen.long(), True) & seen


class Blocks(Reader):
    """MiniMax-M3: a key per token, one choice of blocks of keys for each KV head, by the largest product in a block."""

    indexer = "MiniMaxM3VLIndexer"
    arguments = ("hidden_states", "position_embeddings", "position_ids")
    caches = ("MiniMaxM3VLSparseCacheLayer", "MiniMaxM3VLSparseStaticCacheLayer")

    def indexers(self, text: Any) -> Indexers | None:
        choosers = [i if x == "minimax_m3_sparse" else -1 for i, x in enumerate(text.layer_types)]
        if max(choosers) < 0:
            return None
        if text.index_n_heads not in (1, text.num_key_value_heads):
            raise Unsupported(
                f"its indexer makes {text.index_n_heads} choices for {text.num_key_value_heads} KV heads; topkv "
                "needs one, or one for each KV head"
            )
        rule = Rule(
            dim=text.index_head_dim,
            heads=text.index_n_heads,
            choices=text.index_n_heads,
            score="dot",
            block=text.index_block_size,
            top=text.index_topk_blocks,
            local_blocks=text.index_local_blocks,
        )
        return Indexers(rule, tuple(choosers))

    def rule(self, module: Any) -> Rule:
        return Rule(
            dim=module.head_dim,
            heads=module.num_heads,
            choices=module.num_heads,
            score="dot",
            block=module.block_size,
            top=module.topk_blocks,
            local_blocks=module.local_blocks,
        )

    def read(self, module: Any, given: dict[str, Any]) -> Choice:
        hidden = given["hidden_states"]
        cos, sin = (x[..., : module.head_dim] for x in given["position_embeddings"])
        q = module.q_norm(module.q_proj(hidden).unflatten(-1, (-1, module.head_dim))).transpose(1, 2)
        k = module.k_norm(module.k_proj(hidden).unflatten(-1, (-1, module.head_dim))).transpose(1, 2)
        q, k = _rotation(module, "apply_rotary_pos_emb")(q, k, cos, sin)
        q = q.transpose(1, 2)
        return Choice(
            layer=module.layer_idx,
            queries=q,
            weights=q.new_ones(q.shape[:-1], dtype=torch.float32),
            parts={"keys": k[:, 0]},
            pool=_only,
        )

    def with_few(self, module: Any) -> Any:
        return shrunk(module, block_size=4, topk_blocks=2, local_blocks=min(module.local_blocks, 1))

    def own_choice(self, module: Any, forward: Any, given: dict[str, Any]) -> torch.Tensor:
        tokens = given["hidden_states"].shape[1]
        positions = torch.arange(tokens, device=given["hidden_states"].device)[None]
        blocks = forward(module, **given | {"position_ids": positions} | _NO_CACHE)[0]
        units = -(-tokens // module.block_size)
        chosen = torch.zeros(*blocks.shape[:2], units + 1, dtype=torch.bool, device=blocks.device)
        return chosen.scatter(-1, blocks.where(blocks >= 0, units), True)[..., :units]


class Groups(Reader):
    """Qwen4-Exp: a key per group of tokens, the mean of their keys with the group's first position; ReLU scores."""

    indexer = "Qwen4ExpTextQSAIndexer"
    arguments = ("hidden_states", "position_embeddings")

    def indexers(self, text: Any) -> Indexers:
        if text.indexer_n_heads is None:
            raise Unsupported("its config has layers with an indexer, and no indexer_n_heads")
        size = text.indexer_compress_ratio
        rule = Rule(
            dim=text.indexer_head_dim,
            heads=text.indexer_n_heads,
            tokens_per_key=size,
            top=text.indexer_budget // size,
        )
        kinds = enumerate(text.layer_types)
        choosers = tuple(-1 if kind == "linear_attention" else i for i, kind in kinds)
        return Indexers(rule, choosers, part_names=("keys", "cos", "sin"))

    def rule(self, module: Any) -> Rule:
        return Rule(
            dim=module.index_head_dim,
            heads=module.index_n_heads,
            tokens_per_key=module.compress_ratio,
            top=module.block_topk,
        )

    def read(self, module: Any, given: dict[str, Any]) -> Choice:
        hidden, rotate = given["hidden_states"], _rotation(module, "apply_rotary_pos_emb")
        batch, tokens = hidden.shape[:2]
        cos, sin = (x[:, -tokens:].expand(batch, -1, -1) for x in given["position_embeddings"])
        both = module.index_qk_proj(hidden).unflatten(-1, (-1, module.index_head_dim))
        q, k = both[:, :, : module.index_n_heads], both[:, :, module.index_n_heads]
        q = rotate(module.q_layernorm(q), cos=cos, sin=sin, unsqueeze_dim=2)

        def pool(parts: Parts) -> torch.Tensor:
            mean = module.k_layernorm(parts["keys"].float().mean(dim=1).to(parts["keys"].dtype))
            cos, sin = parts["cos"][:, 0], parts["sin"][:, 0]
            return rotate(mean[:, None], cos=cos, sin=sin)[:, 0]

        return Choice(
            layer=module.layer_idx,
            queries=q,
            weights=q.new_full(q.shape[:-1], module.index_head_dim**-0.5, dtype=torch.float32),
            parts={"keys": k, "cos": cos, "sin": sin},
            pool=pool,
        )

    def with_few(self, module: Any) -> Any:
        size = module.compress_ratio
        return shrunk(module, token_budget=2 * size, block_topk=2)

    def own_choice(self, module: Any, forward: Any, given: dict[str, Any]) -> torch.Tensor:
        hidden, size = given["hidden_states"], module.compress_ratio
        tokens = hidden.shape[1]
        mask = torch.ones(1, 1, tokens, tokens, dtype=torch.bool, device=hidden.device).tril()
        chosen = forward(module, **given | _NO_CACHE, attention_mask=mask)[0]
        return torch.nn.functional.pad(chosen, (0, -tokens % size)).unflatten(-1, (-1, size)).any(dim=-1)


class Pools(Reader):
    """GLM-5.3-Flash: a key per group of tokens, the mean of their keys weighted by gates; ReLU scores of heads with
    weights by the token. It has no RoPE."""

    indexer = "Glm5NextTextIndexer"
    arguments = ("hidden_states", "q_resid", "attention_mask")
    mask_maker = ("Glm5NextTextAttention", "build_attention_mask_from_topk")

    def indexers(self, text: Any) -> Indexers:
        size = text.index_kpool
        if not text.index_kpool_always_select_tail:
            raise Unsupported("its indexer leaves out the tokens of an unfinished group, and topkv attends them")
        rule = Rule(
            dim=text.index_head_dim,
            heads=text.index_n_heads,
            tokens_per_key=size,
            top=text.index_topk // size,
        )
        return Indexers(rule, _choosers(text), part_names=("keys", "gates"))

    def rule(self, module: Any) -> Rule:
        return Rule(
            dim=module.head_dim,
            heads=module.n_heads,
            tokens_per_key=module.index_kpool,
            top=module.index_topk // module.index_kpool,
        )

    def read(self, module: Any, given: dict[str, Any]) -> Choice:
        if not bool(given["attention_mask"].all()):
            raise Unsupported(
                "padding in a call of a model that gives its attention layers no mask; give texts of one length, or "
                "each text alone"
            )
        hidden = given["hidden_states"]
        q = module.wq_b(given["q_resid"]).unflatten(-1, (module.n_heads, module.head_dim))
        weights = module.weights_proj(hidden.to(module.weights_proj.weight.dtype)).float()

        def pool(parts: Parts) -> torch.Tensor:
            logits = parts["gates"].float() + module.index_kpool_compress_ape.float()
            return (logits.softmax(dim=1).to(parts["keys"].dtype) * parts["keys"]).sum(dim=1)

        return Choice(
            layer=module.layer_idx,
            queries=q,
            weights=weights * (module.n_heads**-0.5 * module.softmax_scale),
            parts={
                "keys": module.k_norm(module.wk(hidden)),
                "gates": torch.nn.functional.linear(hidden, module.index_kpool_compress_gate),
            },
            pool=pool,
        )

    def with_few(self, module: Any) -> Any:
        return shrunk(module, index_topk=2 * module.index_kpool)

    def own_choice(self, module: Any, forward: Any, given: dict[str, Any]) -> torch.Tensor:
        tokens, size = given["hidden_states"].shape[1], module.index_kpool
        at = forward(module, **given | _NO_CACHE).long()
        chosen = torch.zeros(1, tokens, tokens + 1, dtype=torch.bool, device=at.device)
        chosen = chosen.scatter(-1, at.where(at >= 0, tokens), True)[..., :tokens]
        return torch.nn.functional.pad(chosen, (0, -tokens % size)).unflatten(-1, (-1, size)).any(dim=-1)


#: By model_type of the text config.
READERS: dict[str, Reader] = {
    "axk2": Lightning("AXK2Indexer", "apply_rotary_pos_emb"),
    "deepseek_v32": Lightning("DeepseekV32Indexer", "apply_rotary_pos_emb"),
    "glm5_next_text": Pools(),
    "glm_moe_dsa": Lightning("GlmMoeDsaIndexer", "apply_rotary_pos_emb_interleave"),
    "hy_v4": Lightning("HYV4Indexer", "apply_rotary_pos_emb", rotates_last=True),
    "minimax_m3_vl_text": Blocks(),
    "qwen4_exp_text": Groups(),
}


def reader_of(text: Any) -> Reader | None:
    """The reader of the indexers of a text config's model; None: there is none."""
    return READERS.get(getattr(text, "model_type", ""))
