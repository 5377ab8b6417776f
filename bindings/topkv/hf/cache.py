"""TopkCache: a transformers cache whose full-attention layers live in topkv."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, Cache, CacheLayerMixin

import topkv
from topkv import InvalidArgument, Unsupported
from topkv.hf import families
from topkv.hf.attention import Handle, base_of, implementation_over
from topkv.hf.rows import (
    PrefillRows,
    SessionRows,
    Step,
    core_layout,
    open_device,
    row_dtype,
)
from topkv.hf.sharding import SequenceShards

#: Options of a session, which cache.session() can change.
_SESSION_OPTIONS = (
    "index",
    "k",
    "select_by",
    "dense_layers",
    "window",
    "sinks",
    "capacity",
    "measure_recall",
    "attend_on",
)


@dataclass(frozen=True)
class CacheMemory:
    """Bytes of a TopkCache. rows and index: host memory of the context, shared by its sessions
    (0 while the text is being read); sliding: tensors of layers with a sliding window."""

    rows: int
    index: int
    sliding: int


class TopkLayer(CacheLayerMixin):
    """A full-attention layer of a TopkCache: counts tokens; the rows are the cache's."""

    is_compileable = False
    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self, cache: TopkCache, number: int):
        super().__init__()
        self._cache = cache
        self.number = number  # among the topkv layers
        self.tokens = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        self.is_initialized = True
        self.tokens += key_states.shape[-2]
        handle = Handle(self, key_states, value_states)
        return handle, handle

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **how: Any):
        return self._cache._attend(self.number, query, keys, values, **how)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.tokens + query_length, 0

    def get_seq_length(self) -> int:
        return self.tokens

    def get_max_length(self) -> int:
        return -1

    # The cache does these for all of its topkv layers at once.
    def reset(self) -> None:
        self.tokens = 0

    def crop(self, tokens_to_remove: int) -> None:
        self.tokens -= abs(tokens_to_remove)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None: ...
    def batch_repeat_interleave(self, repeats: int) -> None: ...
    def batch_select_indices(self, indices: torch.Tensor) -> None: ...
    def offload(self) -> None: ...
    def prefetch(self) -> None: ...


class TopkCache(Cache):
    """A cache for ``model.generate(..., past_key_values=cache)`` that keeps K and V in topkv.

    Making one turns the attention implementation of `config`, which the model's modules share, to
    topkv's (``topkv:`` and the earlier name). Under it every other cache is served by the earlier
    implementation as before; ``topkv.hf.uninstall(model)`` turns it back.

    The text is attended densely while it is read: every call of several tokens. The first call of
    a single token freezes what was read into a ``topkv.Context``; from then on each token attends
    the first `sinks` tokens, the last `window`, and the `k` rows that `index` finds among the
    rest. Layers with a sliding window keep transformers' own cache layers.

    Args:
      config: the model's own config object (``model.config``).
      index: spec of the index, such as "exact", "hnsw:M=16" or "faiss:IVF1024,SQ8".
      k: rows retrieved per query head (a number, a list, or a schedule such as "uniform:512"; lists
        and sums are over the full-attention layers).
      window, sinks: tokens attended exactly, at the end and at the beginning.
      select_by: "query_head", or "group" to share the rows among the heads of a group.
      dense_layers: the first n full-attention layers attend every token.
      prefill: "dense", or "window": while reading, tokens attend `sinks` and `window` only.
      kv_dtype: "f32", "f16" or "bf16" rows; None: the model's dtype, and bf16 on a CUDA device.
      max_cache_len: tokens of the text, to reserve rows once; 0: grown as it comes.
      session_capacity: tokens that can follow the text.
      device_memory: most bytes topkv may take of the GPU; 0: what is free.
      attend_on: "automatic", "host" or "device": where rows found are attended.
      measure_recall: compare every search with exact search (slow); see ``stats()``.
      shard: "sequence": ranks of `process_group` each keep the rows of a part of the text.

    Not safe to share between threads. One text at a time: prefill takes batches of one.
    """

    def __init__(
        self,
        config: Any,
        *,
        index: str = "exact",
        k: int | str | list[int] = 256,
        window: int = 1024,
        sinks: int = 4,
        select_by: str = "query_head",
        dense_layers: int = 0,
        prefill: str = "dense",
        kv_dtype: str | None = None,
        max_cache_len: int = 0,
        session_capacity: int = 16384,
        device_memory: int = 0,
        attend_on: str = "automatic",
        measure_recall: bool = False,
        shard: str | None = None,
        process_group: Any = None,
    ):
        families.check(config)
        if shard not in (None, "sequence"):
            raise InvalidArgument(f'shard is {shard!r}; it can be "sequence" or None')
        self.config = config
        self._session_options = {
            "index": index,
            "k": k,
            "select_by": select_by,
            "dense_layers": dense_layers,
            "window": window,
            "sinks": sinks,
            "capacity": session_capacity,
            "measure_recall": measure_recall,
            "attend_on": attend_on,
        }
        self._prefill_options = {"prefill": prefill, "window": window, "sinks": sinks}
        self._kv_dtype = kv_dtype
        self._max_cache_len = max_cache_len
        self._device_memory = device_memory
        self._shards = SequenceShards(process_group) if shard else None
        self._clear()
        super().__init__(layers=self._make_layers())
        self._use_topkv_attention()

    def _clear(self) -> None:
        self._rows: PrefillRows | SessionRows | None = None
        self._context: topkv.Context | None = None
        self._device: topkv.Device | None = None
        self._torch_device: torch.device | None = None
        self._context_tokens = 0
        self._sliding_at_freeze: list[tuple[int, torch.Tensor, torch.Tensor, int]] = []
        self._may_be_cropped = False
        self._batch = 1

    def _make_layers(self) -> list[CacheLayerMixin]:
        types, kwargs = families.layer_types(self.config)
        layers: list[CacheLayerMixin] = []
        self._topkv_layers: list[TopkLayer] = []
        for kind in types:
            if kind == families.FULL:
                self._topkv_layers.append(TopkLayer(self, len(self._topkv_layers)))
                layers.append(self._topkv_layers[-1])
            else:
                layers.append(DYNAMIC_LAYER_TYPE_MAPPING[kind](**kwargs))
        return layers

    def _use_topkv_attention(self) -> None:
        text = families.text_config(self.config)
        if base_of(text._attn_implementation) is None:
            text._attn_implementation = implementation_over(text._attn_implementation or "eager")

    # ---- what transformers calls ----

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        if layer_idx == 0:
            self._begin(key_states.shape[0], key_states.shape[-2])
        keys, values = self.layers[layer_idx].update(key_states, value_states, *args, **kwargs)
        if isinstance(keys, Handle):
            return keys, values
        handle = Handle(None, keys, values)
        return handle, handle

    def _begin(self, batch: int, tokens: int) -> None:
        """A forward pass begins: decides whether it still reads the text."""
        before = self.get_seq_length()
        if self._context is None and before > 0 and (tokens == 1 or self._may_be_cropped):
            self.freeze()
        if self._context is not None:
            if batch != self._batch:
                raise InvalidArgument(
                    f"a batch of {batch} for a cache of {self._batch} rows: make one with "
                    f"cache.session(batch={batch})"
                )
            return
        if batch != 1:
            raise InvalidArgument(
                f"a batch of {batch}: topkv reads one text at a time. Read it once with a batch "
                f"of 1, then use cache.session(batch={batch}) for several questions, samples or "
                "beams"
            )
        if isinstance(self._rows, PrefillRows):
            self._rows.make_room(self._part(tokens)[1])

    def _part(self, tokens: int) -> tuple[int, int]:
        """Which of a call's tokens have their rows here."""
        if self._shards is None:
            return 0, tokens
        if self._context is None:
            return self._shards.prefill_part(tokens)
        return self._shards.session_part(tokens)

    def _attend(
        self,
        layer: int,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        softcap: float,
        sink_scores: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attention of one topkv layer. query [batch, q_heads, tokens, head_dim], keys and values
        [batch, kv_heads, tokens, head_dim] -> [batch, tokens, q_heads, head_dim]."""
        if self._rows is None:
            self._rows = self._make_rows(query, keys, values, scale, softcap)
        shape = self._rows.shape
        if (scale, softcap) != (shape.scale, shape.softcap) and (
            abs(scale - shape.scale) > 1e-6 * scale or abs(softcap - shape.softcap) > 1e-6 * softcap
        ):
            raise Unsupported("layers of this model scale or cap their scores differently")
        if query.device != self._torch_device:
            raise Unsupported(
                f"layers of this model are on {self._torch_device} and {query.device}: topkv "
                "serves a model on one device"
            )
        q, k, v = (core_layout(x) for x in (query, keys, values))
        out = torch.empty_like(q)
        lse = q.new_empty(q.shape[:-1]) if self._shards or sink_scores is not None else None
        first, count = self._part(q.shape[1])
        self._rows.attend(Step(layer, q, k, v, out, lse, first, count))
        if self._shards is not None:
            out, lse = self._shards.merge(out, lse)
        if sink_scores is not None:
            # A sink is one more score under the softmax, of a row whose value is zero.
            out = out * torch.sigmoid(lse - sink_scores.to(lse.dtype)).unsqueeze(-1)
        return out.to(query.dtype)

    def _make_rows(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        softcap: float,
    ) -> PrefillRows | SessionRows:
        self._torch_device = query.device
        self._device = open_device(query.device, self._device_memory)
        if self._context is not None:
            return SessionRows([self._new_session() for _ in range(self._batch)])
        if values.shape != keys.shape or query.shape[-1] != keys.shape[-1]:
            raise Unsupported(
                f"head dimensions of q, k and v are {query.shape[-1]}, {keys.shape[-1]} and "
                f"{values.shape[-1]}; topkv needs them equal"
            )
        shape = topkv.AttentionShape(
            layers=len(self._topkv_layers),
            q_heads=query.shape[1],
            kv_heads=keys.shape[1],
            head_dim=query.shape[-1],
            scale=scale,
            softcap=softcap,
        )
        ranks = 1 if self._shards is None else self._shards.ranks
        return PrefillRows(
            shape,
            self._device,
            capacity=max(keys.shape[-2], -(-self._max_cache_len // ranks)),
            dtype=self._kv_dtype or row_dtype(keys.dtype, keys.device),
            **self._prefill_options,
        )

    def _new_session(self) -> topkv.Session:
        return topkv.Session(self._context, device=self._device, **self._session_options)

    # ---- the text, its sessions ----

    @property
    def context(self) -> topkv.Context | None:
        """The text once it is frozen."""
        return self._context

    @property
    def sessions(self) -> list[topkv.Session]:
        """One per batch row; empty until a token was attended after the text."""
        return self._rows.sessions if isinstance(self._rows, SessionRows) else []

    def freeze(self, index: str | None = None) -> TopkCache:
        """Ends the text: turns the rows into a context and builds the index (`index`, or the
        cache's own). Happens by itself before the first single token. Called again with another
        index it builds that one too, for sessions made after that."""
        if self._context is None:
            if not isinstance(self._rows, PrefillRows):
                raise InvalidArgument("freeze() of a cache that has read nothing")
            self._context = self._rows.freeze()
            self._context_tokens = self.get_seq_length()
            self._rows = None
            for number, layer in enumerate(self.layers):
                if not isinstance(layer, TopkLayer):
                    last = slice(1 - layer.sliding_window, None)
                    keys, values = (x[:, :, last].clone() for x in (layer.keys, layer.values))
                    self._sliding_at_freeze.append((number, keys, values, layer.cumulative_length))
        if index is not None:
            self._session_options = self._session_options | {"index": index}
        spec = self._session_options["index"]
        if spec not in self._context.indices():
            self._context = self._context.with_index(spec)
        return self

    def session(self, batch: int = 1, **options: Any) -> TopkCache:
        """A cache that goes on after the text with a question of its own; freezes the text if it
        is not frozen yet. Any number may be in use at once, and the rows are shared.

        Give ``generate`` the ids of text and question together, and no prefill_chunk_size: only
        what the cache lacks is run. With `batch`, as many equally long questions (or samples, or
        beams). `options` replace the cache's: k, index (one that was built), window, sinks,
        select_by, dense_layers, capacity, measure_recall, attend_on.
        """
        unknown = sorted(set(options) - set(_SESSION_OPTIONS))
        if unknown:
            raise InvalidArgument(
                f"session() has no option {', '.join(unknown)}; it has {', '.join(_SESSION_OPTIONS)}"
            )
        if batch < 1:
            raise InvalidArgument(f"batch is {batch}; it must be at least 1")
        if self._context is None:
            self.freeze()
        new = object.__new__(TopkCache)
        new.__dict__.update(self.__dict__)
        new._rows = None
        new._batch = batch
        new._may_be_cropped = False
        new._session_options = self._session_options | options
        Cache.__init__(new, layers=new._make_layers())
        for layer in new._topkv_layers:
            layer.tokens, layer.is_initialized = self._context_tokens, True
        for number, keys, values, tokens in self._sliding_at_freeze:
            layer = new.layers[number]
            layer.lazy_initialization(keys, values)
            layer.keys = keys.repeat_interleave(batch, dim=0)
            layer.values = values.repeat_interleave(batch, dim=0)
            layer.cumulative_length = tokens
        return new

    def memory(self) -> CacheMemory:
        """Where its bytes are; those on the GPU are in ``cache.device.memory()``."""
        rows = index = 0
        if self._context is not None:
            held = self._context.memory()
            rows, index = held.rows_bytes, held.index_bytes
        tensors = (
            x
            for layer in self.layers
            if not isinstance(layer, TopkLayer)
            for x in (layer.keys, layer.values)
            if x is not None
        )
        return CacheMemory(rows, index, sum(x.numel() * x.element_size() for x in tensors))

    @property
    def device(self) -> topkv.Device | None:
        """topkv's device once something was attended; its memory() says what it took."""
        return self._device

    def stats(self) -> list[Any]:
        """topkv.SessionStats per batch row: rows retrieved, time, recall when it is measured."""
        return [session.stats() for session in self.sessions]

    # ---- changes that transformers asks for ----

    def activate_past_recording(self) -> None:
        """Tokens may be taken back (speculative decoding): several tokens at once after the first
        call are no longer taken for a part of the text."""
        self._may_be_cropped = True
        super().activate_past_recording()

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last tokens (a negative number, as in transformers)."""
        tokens_to_remove = int(tokens_to_remove)  # transformers gives a tensor
        if tokens_to_remove > 0:
            raise InvalidArgument(
                f"crop({tokens_to_remove}): give the number of tokens to remove as a negative one"
            )
        remove = -tokens_to_remove
        own = self.get_seq_length() - self._context_tokens
        if remove > own:
            raise InvalidArgument(
                f"crop by {remove} tokens: the last {own} can be removed, those before them are "
                "the frozen context"
            )
        if remove > 0 and self._shards is not None and self._context is None:
            raise Unsupported("crop of a text that is sharded by sequence: freeze() it first")
        super().crop(tokens_to_remove)
        if remove > 0 and (self._shards is None or self._shards.has_own_tokens()):
            self._rows.remove(remove)

    def reset(self) -> None:
        """Forgets everything, the text too; sessions over it are not touched."""
        self._clear()
        self.layers = self._make_layers()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._select(beam_idx.tolist())
        super().reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select([row for row in range(self._batch) for _ in range(repeats)])
        super().batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        rows = torch.arange(self._batch)[indices.cpu()].tolist()  # numbers or a boolean mask
        self._select(rows)
        super().batch_select_indices(indices)

    def _select(self, rows: list[int]) -> None:
        if self._context is None and self.get_seq_length() > 0:
            self.freeze()
        if isinstance(self._rows, SessionRows):
            self._rows.select(rows)
        self._batch = len(rows)
