"""Layers that cache a latent instead of K and V (MLA): DeepSeek V2 and V3, GLM-4.7-Flash, Kimi Linear.

transformers caches two vectors for each token and layer: the latent, and the part of the key that RoPE turns, which
all heads share. The layer's method ``expand_kv`` computes K and V of all heads from them, by the matrix
``kv_b_proj``. That would need the latents of all tokens in each call. topkv stores both vectors as one row
and multiplies kv_b_proj into queries and outputs instead (DeepSeek-V2, arXiv 2405.04434, section 2.1.2):

    row of a token      [latent | rotated key]
    query of a head     [W_keys^T q | rotated q]
    output of a head    W_values (the first elements of what attention gives)

Attention then has one KV head, whose key is its value (``AttentionShape.keys_are_values``).

The cache gives a layer a ``Handle``. ``expand_kv`` is wrapped when the first TopkCache of a model type is made: it
passes a Handle on, so that attention gets it.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

import torch

from topkv import Unsupported
from topkv.hf import plain
from topkv.hf.handle import Handle

_EXPAND, _WRAPPED = "expand_kv", "_topkv_wrapped"

#: How far outputs of kv_b_proj may be from outputs by its matrix, as a part of the largest element. A quantised
#: projection may round activations to 8 bits, which topkv does not.
_ALLOWED_OF_PROJECTION = 0.05

#: How far K and V of expand_kv may be from outputs of kv_b_proj, as a multiple of the dtype's eps. Both have the
#: projection's rounding, and a layer may multiply in another order: partial sums may then be rounded differently.
_ALLOWED_EPS = 2

#: A GPU may multiply float32 as TF32, whose mantissa has 10 bits.
_LEAST_EPS = 2.0**-10


def expanding_layers(code: ModuleType) -> list[type]:
    """The classes of a model's code that compute K and V from latents in a method that topkv knows."""
    kinds = [x for x in vars(code).values() if inspect.isclass(x) and issubclass(x, torch.nn.Module)]
    return [kind for kind in kinds if callable(getattr(kind, _EXPAND, None))]


def _wrap(expand: Any) -> Any:
    signature = inspect.signature(expand)

    @functools.wraps(expand)
    def expand_kv(self: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if not any(isinstance(x, Handle) for x in (*args, *kwargs.values())):
            return expand(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        others = [*bound.arguments][3:]
        if others:
            raise Unsupported(
                f"{type(self).__name__} computes K and V from its latents and from {', '.join(others)}, which "
                "topkv does not know; use another cache"
            )
        _, latents, rotated = bound.args
        latents.are_latents = True
        return latents, rotated

    setattr(expand_kv, _WRAPPED, True)
    return expand_kv


def watch_layers(code: ModuleType) -> None:
    """Wraps the methods that compute K and V from latents, once."""
    for kind in expanding_layers(code):
        owner = next(x for x in kind.__mro__ if _EXPAND in vars(x))
        method = vars(owner)[_EXPAND]
        if not getattr(method, _WRAPPED, False):
            setattr(owner, _EXPAND, _wrap(method))


def _is_plain(projection: torch.nn.Module) -> bool:
    """Whether a layer multiplies by its weight and does nothing else."""
    hooks = vars(projection).keys() & {"forward"} or projection._forward_hooks or projection._forward_pre_hooks
    weight = getattr(projection, "weight", None)
    return type(projection) is torch.nn.Linear and type(weight) is torch.nn.Parameter and not hooks


def _off(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, as a part of the largest element that is expected; infinite for other shapes."""
    if found.shape != expected.shape:
        return float("inf")
    difference, largest = (found.double() - expected).abs().max(), expected.abs().max()
    return float(difference / largest) if difference > 0 else float(difference)


def _matrix(projection: torch.nn.Module, latents: torch.Tensor) -> torch.Tensor:
    """The matrix of a linear layer in any format, [out_features, in_features].

    latents [..., in_features]: an input, for its dtype and device."""
    if getattr(projection, "bias", None) is not None:
        raise Unsupported("kv_b_proj has a bias, and topkv knows latents without one; use another cache")
    if _is_plain(projection):
        return projection.weight.detach()
    # Quantised, an adapter, or a rank's part: the columns are its outputs for unit vectors.
    size = latents.shape[-1]
    with torch.no_grad():
        return projection(torch.eye(size, dtype=latents.dtype, device=latents.device)).mT


class Absorbed:
    """One layer's call, with kv_b_proj multiplied into its queries and outputs.

    query [batch, q_heads, tokens, nope + rope]; latents [batch, 1, tokens, rank] and rotated [batch, 1,
    tokens, rope] of the new tokens. `nope` elements of a head are not rotated.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        latents: torch.Tensor,
        rotated: torch.Tensor,
    ):
        self._module, self._query, self._latents, self._rotated = module, query, latents, rotated
        heads, self._rank = query.shape[1], latents.shape[-1]
        self._nope = query.shape[-1] - rotated.shape[-1]
        projection = getattr(module, "kv_b_proj", None)
        if projection is None:
            raise Unsupported(f"{type(module).__name__} caches latents and has no kv_b_proj; use another cache")
        matrix = _matrix(projection, latents)
        if self._nope <= 0 or matrix.shape[-1] != self._rank or matrix.shape[0] % heads:
            raise Unsupported(
                f"{type(module).__name__} has queries of {heads} heads and {query.shape[-1]} dims, latents of "
                f"{self._rank}, rotated keys of {rotated.shape[-1]}, and a kv_b_proj of "
                f"{list(matrix.shape)}; topkv does not know such latents, use another cache"
            )
        #: [q_heads, nope + values, rank]
        self._matrix = matrix.reshape(heads, -1, self._rank)

    @property
    def rows(self) -> torch.Tensor:
        """The rows of the new tokens, [batch, 1, tokens, rank + rope]."""
        return torch.cat((self._latents, self._rotated.to(self._latents.dtype)), dim=-1)

    def query(self) -> torch.Tensor:
        """Queries of rows, [batch, q_heads, tokens, rank + rope]."""
        keys = self._matrix[:, : self._nope]
        plain_part = self._query[..., : self._nope].to(keys.dtype)
        absorbed = torch.einsum("bhtn,hnr->bhtr", plain_part, keys)
        return torch.cat((absorbed, self._query[..., self._nope :].to(keys.dtype)), dim=-1)

    def output(self, attended: torch.Tensor) -> torch.Tensor:
        """The output of heads, [batch, tokens, q_heads, values], from attention over rows, [batch, tokens,
        q_heads, rank + rope]."""
        values = self._matrix[:, self._nope :]
        out = torch.einsum("bthr,hvr->bthv", attended[..., : self._rank].to(values.dtype), values)
        return out.to(self._query.dtype)

    def require_formula(self, how: dict[str, Any], given: dict[str, Any]) -> None:
        """Raises topkv.Unsupported if the layer computes other K and V, or attends otherwise, than topkv.
        how, given: as of plain.require_formula."""
        tokens = plain.tokens_to_compare(self._module, self._query)
        if tokens == 0:
            return
        latents, rotated = (x[:1, :, :tokens].detach() for x in (self._latents, self._rotated))
        # In float64, so that what is left is a difference of kind.
        both = torch.einsum("btr,hdr->bhtd", latents[:, 0].double(), self._matrix.double())
        if not both.isfinite().all() or not rotated.isfinite().all():
            return  # weights are broken, or on their way
        with torch.no_grad():
            projected = self._module.kv_b_proj(latents)
            found = self._module.expand_kv(latents, rotated)
        projected = projected.reshape(1, tokens, both.shape[1], -1).transpose(1, 2).double()
        name = type(self._module).__name__
        if not _off(projected, both) <= _ALLOWED_OF_PROJECTION:
            raise Unsupported(
                f"kv_b_proj of {name} is not linear: its outputs are not those of its matrix; use another cache"
            )
        for kind, x, expected in zip(("keys", "values"), found, self._keys_and_values(projected, rotated)):
            if not _off(x, expected) <= _ALLOWED_EPS * max(torch.finfo(x.dtype).eps, _LEAST_EPS):
                raise Unsupported(
                    f"{name} computes other {kind} from its latents than kv_b_proj gives; use another cache"
                )
        plain.require_formula(self._module, self._query, *self._keys_and_values(both, rotated), how, given)

    def _keys_and_values(self, projected: torch.Tensor, rotated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of all heads in float64: outputs of kv_b_proj [batch, q_heads, tokens, nope + values] and
        rotated keys [batch, 1, tokens, rope] -> [batch, q_heads, tokens, nope + rope] and [..., values]."""
        keys, values = projected.split((self._nope, projected.shape[-1] - self._nope), dim=-1)
        turned = rotated.double().expand(-1, keys.shape[1], -1, -1)
        return torch.cat((keys, turned), dim=-1), values
