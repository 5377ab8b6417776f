"""A Llama in plain torch whose state dict has the names of Hugging Face's LlamaForCausalLM.

Weights are float32; the caller wraps the forward pass in bfloat16 autocast on a GPU. Blocks and
the loss are checkpointed: a row of 256 Ki tokens keeps one hidden state per block.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass
class Shape:
    vocab: int = 4096
    hidden: int = 384
    intermediate: int = 1024
    layers: int = 8
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    theta: float = 1e10
    eps: float = 1e-5
    reach: int = 1 << 20  # positions

    def check(self):
        if self.heads % self.kv_heads:
            raise SystemExit(f"--heads {self.heads} is no multiple of --kv-heads {self.kv_heads}")
        if self.head_dim % 2:
            raise SystemExit(f"--head-dim {self.head_dim} must be even")


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x, cos, sin):
        """x [rows, tokens, hidden]; cos, sin [rows, 1, tokens, head_dim]."""
        def split(y):
            return y.unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)

        def rotate(y):
            a, b = y.chunk(2, dim=-1)
            return (y * cos + torch.cat((-b, a), dim=-1) * sin).to(y.dtype)

        q, k = rotate(split(self.q_proj(x))), rotate(split(self.k_proj(x)))
        v = split(self.v_proj(x))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                             enable_gqa=self.shape.heads != self.shape.kv_heads)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.mlp = Mlp(shape)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)


class Llama(nn.Module):
    """Embeddings are tied: the state dict has no lm_head."""

    LOSS_CHUNK = 16384  # tokens whose logits exist at a time

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # What is added to the residual stream starts smaller (GPT-2).
                small = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * shape.layers) ** 0.5 if small else 0.02)

    def hidden(self, ids, position_ids):
        """ids, position_ids [rows, tokens] -> [rows, tokens, hidden], after the last norm."""
        # Angles in float32, as inference frameworks have them: at position 2^20 they are rounded,
        # and the model should meet that rounding in training.
        dim = torch.arange(0, self.shape.head_dim, 2, device=ids.device, dtype=torch.float32)
        angles = position_ids[..., None].float() * self.shape.theta ** -(dim / self.shape.head_dim)
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        cos, sin = angles.cos(), angles.sin()
        x = self.model.embed_tokens(ids)
        for block in self.model.layers:
            if self.training:
                x = checkpoint(block, x, cos, sin, use_reentrant=False)
            else:
                x = block(x, cos, sin)
        return self.model.norm(x)

    def logits(self, hidden):
        return F.linear(hidden, self.model.embed_tokens.weight)

    def losses(self, ids, position_ids):
        """Cross entropy of each next token, float32 [rows, tokens - 1]."""
        hidden = self.hidden(ids, position_ids)[:, :-1].flatten(0, 1)
        target = ids[:, 1:].flatten()

        def chunk(h, t):
            return F.cross_entropy(self.logits(h).float(), t, reduction="none")

        parts = [checkpoint(chunk, h, t, use_reentrant=False)
                 for h, t in zip(hidden.split(self.LOSS_CHUNK), target.split(self.LOSS_CHUNK))]
        return torch.cat(parts).view(ids.shape[0], -1)


def save(model, tokenizer, folder, bos, eos):
    """Writes a Hugging Face directory with bfloat16 weights."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shape = model.shape
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "vocab_size": shape.vocab, "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim, "hidden_act": "silu", "rms_norm_eps": shape.eps,
        "max_position_embeddings": shape.reach, "attention_bias": False, "mlp_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.theta},
        "tie_word_embeddings": True, "bos_token_id": bos, "eos_token_id": eos, "use_cache": True,
    }
    weights = {name: weight.detach().to("cpu", torch.bfloat16).contiguous()
               for name, weight in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": bos, "eos_token_id": eos, "use_cache": True}, indent=2) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"))
