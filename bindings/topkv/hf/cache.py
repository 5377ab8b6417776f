"""TopkCache: a transformers cache whose full-attention layers live in topkv."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, Cache, CacheLayerMixin

import topkv
from topkv import InvalidArgument, Unsupported
from topkv.hf import families
from topkv.hf.attention import Handle, base_of, implementation_over
from topkv.hf.engine import Engine, Options, check_options
from topkv.hf.layer import TopkLayer
from topkv.hf.mask import Length
from topkv.hf.rows import ROW_DTYPES
from topkv.hf.sharding import SequenceShards


@dataclass(frozen=True)
class CacheMemory:
    """Bytes of a TopkCache. rows and index: host memory of the context, shared by its sessions
    (0 while the text is being read); sliding: tensors of layers with a sliding window."""

    rows: int
    index: int
    sliding: int


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
      kv_dtype: "f32", "f16" or "bf16" rows, or PyTorch's dtype; None: the model's dtype, and bf16 on a CUDA device.
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
        kv_dtype: str | torch.dtype | None = None,
        max_cache_len: int = 0,
        session_capacity: int = 16384,
        device_memory: int = 0,
        attend_on: str = "automatic",
        measure_recall: bool = False,
        shard: str | None = None,
        process_group: Any = None,
    ):
        if not hasattr(config, "get_text_config"):
            raise InvalidArgument(
                f"config is a {type(config).__name__}; expected the model's own config object, "
                "model.config"
            )
        families.check(config)
        if shard not in (None, "sequence"):
            raise InvalidArgument(f'shard is {shard!r}; it can be "sequence" or None')
        options = Options(
            layers=families.layer_types(config)[0].count(families.FULL),
            prefill={"prefill": prefill, "window": window, "sinks": sinks},
            session={
                "index": index,
                "k": k,
                "select_by": select_by,
                "dense_layers": dense_layers,
                "window": window,
                "sinks": sinks,
                "capacity": session_capacity,
                "measure_recall": measure_recall,
                "attend_on": attend_on,
            },
            kv_dtype=ROW_DTYPES.get(kv_dtype, kv_dtype),
            max_cache_len=max_cache_len,
            device_memory=device_memory,
            shards=SequenceShards(process_group) if shard else None,
        )
        check_options(options)
        text = families.text_config(config)
        if base_of(text._attn_implementation) is None:
            text._attn_implementation = implementation_over(text._attn_implementation or "eager")
        self.config = config
        self._start(Engine(options))

    def _start(self, engine: Engine) -> None:
        """Begins with the engine's text, if it has one."""
        self._engine = engine
        self._context_tokens = 0 if engine.context is None else engine.context.tokens
        self._sliding_at_freeze: list[tuple[int, torch.Tensor, torch.Tensor, int]] = []
        self._may_be_cropped = False
        super().__init__(layers=self._make_layers())

    def _make_layers(self) -> list[CacheLayerMixin]:
        types, kwargs = families.layer_types(self.config)
        layers: list[CacheLayerMixin] = []
        for kind in types:
            if kind == families.FULL:
                number = sum(isinstance(layer, TopkLayer) for layer in layers)
                layers.append(TopkLayer(self._engine, number, self._context_tokens))
            else:
                layers.append(DYNAMIC_LAYER_TYPE_MAPPING[kind](**kwargs))
        return layers

    def _sliding_layers(self) -> list[tuple[int, Any]]:
        return [(i, x) for i, x in enumerate(self.layers) if not isinstance(x, TopkLayer)]

    # ---- the text and its sessions ----

    @classmethod
    def from_context(cls, config: Any, context: topkv.Context, **options: Any) -> TopkCache:
        """A cache over a text that was read elsewhere: by topkv.Model, or a ContextBuilder of
        one's own. For models whose layers are all full attention, with the context's rows."""
        cache = cls(config, **options)
        if cache._sliding_layers():
            raise Unsupported(
                "from_context of a model with sliding-window layers: a context has no state of "
                "theirs; read the text with the model"
            )
        if context.shape.layers != cache._engine.options.layers:
            raise InvalidArgument(
                f"the context has {context.shape.layers} layers, the model "
                f"{cache._engine.options.layers}"
            )
        engine = Engine(cache._engine.options, context)
        engine.freeze()
        cache._start(engine)
        return cache

    @property
    def context(self) -> topkv.Context | None:
        """The text once it is frozen."""
        return self._engine.context

    @property
    def device(self) -> topkv.Device | None:
        """topkv's device once something was attended; its memory() says what it took."""
        return self._engine.device

    @property
    def sessions(self) -> list[topkv.Session]:
        """One per batch row; empty until a token was attended after the text."""
        return self._engine.sessions

    def freeze(self, index: str | None = None) -> TopkCache:
        """Ends the text: turns the rows into a context and builds the index (`index`, or the
        cache's own). Happens by itself before the first single token. Called again with another
        index it builds that one too, for sessions made after that."""
        engine = self._engine
        if index is not None:
            topkv.KeyIndex(index)  # refuses the spec before anything changes
            session = engine.options.session | {"index": index}
            engine.options = replace(engine.options, session=session)
        reading = engine.context is None
        engine.freeze()
        if reading:
            self._context_tokens = self.get_seq_length()
            for number, layer in self._sliding_layers():
                last = slice(1 - layer.sliding_window, None)
                keys, values = (x[:, :, last].clone() for x in (layer.keys, layer.values))
                self._sliding_at_freeze.append((number, keys, values, layer.cumulative_length))
        return self

    def session(self, batch: int = 1, **options: Any) -> TopkCache:
        """A cache that goes on after the text with a question of its own; freezes the text if it
        is not frozen yet. Any number may be in use at once, and the rows are shared.

        Give ``generate`` the ids of text and question together, and no prefill_chunk_size: only
        what the cache lacks is run. With `batch`, as many equally long questions (or samples, or
        beams). `options` replace the cache's: k, index (one that freeze() built), window, sinks,
        select_by, dense_layers, capacity, measure_recall, attend_on.
        """
        known = self._engine.options.session
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise InvalidArgument(
                f"session() has no option {', '.join(unknown)}; it has {', '.join(known)}"
            )
        if batch < 1:
            raise InvalidArgument(f"batch is {batch}; it must be at least 1")
        if self.context is None:
            self.freeze()
        new = object.__new__(TopkCache)
        new.config = self.config
        new._start(self._engine.fork(batch, **options))
        # Of a context sharded by sequence this rank has some tokens only.
        new._context_tokens = self._context_tokens
        new.layers = new._make_layers()
        new._sliding_at_freeze = self._sliding_at_freeze
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
        if self.context is not None:
            held = self.context.memory()
            rows, index = held.rows_bytes, held.index_bytes
        tensors = [x for _, layer in self._sliding_layers() for x in (layer.keys, layer.values)]
        sliding = sum(x.numel() * x.element_size() for x in tensors if x is not None)
        return CacheMemory(rows, index, sliding)

    def stats(self) -> list[Any]:
        """topkv.SessionStats per batch row: rows retrieved, time, recall when it is measured."""
        return [session.stats() for session in self.sessions]

    # ---- what transformers calls ----

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        if layer_idx == 0:  # a forward pass begins
            tokens = key_states.shape[-2]
            if self.context is None and self.get_seq_length() > 0:
                if tokens == 1 or self._may_be_cropped:
                    self.freeze()
            self._engine.begin(key_states.shape[0], tokens)
        keys, values = self.layers[layer_idx].update(key_states, value_states, *args, **kwargs)
        if isinstance(keys, Handle):
            return keys, values
        handle = Handle(None, keys, values)
        return handle, handle

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        keys, offset = super().get_mask_sizes(query_length, layer_idx)
        return Length(keys), offset

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
        own = self.get_seq_length() - self._context_tokens
        if -tokens_to_remove > own:
            raise InvalidArgument(
                f"crop by {-tokens_to_remove} tokens: the last {own} can be removed, those before "
                "them are the frozen context"
            )
        if tokens_to_remove < 0:
            for _, layer in self._sliding_layers():
                if layer.get_seq_length() >= layer.sliding_window and not layer.record_past:
                    raise InvalidArgument(
                        "crop of a cache with sliding-window layers: call "
                        "activate_past_recording() before the tokens that may be taken back"
                    )
            self._engine.remove(-tokens_to_remove)
        super().crop(tokens_to_remove)

    def reset(self) -> None:
        """Forgets everything, the text too; sessions over it are not touched."""
        self._start(Engine(self._engine.options))

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._engine.select(beam_idx.tolist())
        super().reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._freeze_text()
        self._engine.select([row for row in range(self._engine.batch) for _ in range(repeats)])
        super().batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._freeze_text()
        rows = torch.arange(self._engine.batch)[indices.cpu()].tolist()  # numbers, or a mask
        self._engine.select(rows)
        super().batch_select_indices(indices)

    def _freeze_text(self) -> None:
        """Before its batch changes: a text is read by one row."""
        if self.context is None and self.get_seq_length() > 0:
            self.freeze()
