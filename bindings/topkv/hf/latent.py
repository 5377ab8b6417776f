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

#: How far K and V of expand_kv may be from K and V by the matrix, as a part of the largest element, if
#: kv_b_proj is quantised, an adapter, or a rank's part. It may round activations to 8 bits.
_ALLOWED_IF_QUANTISED = 0.05

#: The same for a plain linear layer, as a multiple of the dtype's eps. A result is rounded once, which is half
#: an eps, and partial sums may be rounded too.
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


def _allowed(projection: torch.nn.Module, dtype: torch.dtype) -> float:
    """How far K and V of expand_kv, of a dtype, may be from K and V by the matrix of a layer, as a part of
    the largest element."""
    if not _is_plain(projection):
        return _ALLOWED_IF_QUANTISED
    return _ALLOWED_EPS * max(torch.finfo(dtype).eps, _LEAST_EPS)


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
        keys, values = both.split((self._nope, both.shape[-1] - self._nope), dim=-1)
        keys = torch.cat((keys, rotated.double().expand(-1, keys.shape[1], -1, -1)), dim=-1)
        if not keys.isfinite().all() or not values.isfinite().all():
            return  # weights are broken, or on their way
        found = self._module.expand_kv(latents, rotated)
        for name, x, expected in zip(("keys", "values"), found, (keys, values)):
            alike = x.shape == expected.shape
            error = (x.double() - expected).abs().max() if alike else torch.inf
            if not error <= _allowed(self._module.kv_b_proj, x.dtype) * expected.abs().max():
                raise Unsupported(
                    f"{type(self._module).__name__} computes other {name} from its latents than kv_b_proj "
                    "gives; use another cache"
                )
        plain.require_formula(self._module, self._query, keys, values, how, given)
