"""TopkCache: a transformers cache whose full-attention layers live in topkv."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, CacheLayerMixin

import topkv
from topkv import InvalidArgument, Unsupported
from topkv.hf import families, indexers, kept, latent, texts
from topkv.hf.attention import base_of, implementation_over
from topkv.hf.calls import CacheCalls
from topkv.hf.engine import Engine
from topkv.hf.indexer_readers import reader_of
from topkv.hf.layer import PoolingTopkLayer, RecurrentTopkLayer, TopkLayer
from topkv.hf.method import Method, PreparedMethod, check_session
from topkv.hf.method_rows import MethodRows
from topkv.hf.options import flag, integer, left_to_indexers, make_options, text
from topkv.hf.state import CacheMemory, State
from topkv.hf.texts_read import TextsRead
from topkv.hf.watch import watch


class TopkCache(CacheCalls):
    """A cache for ``model.generate(..., past_key_values=cache)`` that keeps K and V in topkv.

    The constructor changes the attention implementation of `config`, which the model's modules share,
    to topkv's (``topkv:`` and the earlier name). Every other cache is still served by the earlier
    implementation. ``topkv.hf.uninstall(model)`` restores it.

    While the text is read (calls of several tokens), it is attended densely. The first call of a
    single token freezes the text into a ``topkv.Context``. From then on each token attends the first
    `sinks` tokens, the last `window` tokens, and the `k` rows that `index` retrieves among the rest.
    Layers with a sliding window, a recurrence or a convolution keep transformers' own cache layers.

    Layers with a trained indexer attend what it chooses, in a prefill and in a step. The options of
    retrieval and of the prefill have no effect in these layers, and topkv warns if all layers are such.

    A call that fails leaves the cache as it was before; call again. The ids given to ``generate``
    must begin with the text that the cache holds; another text is refused.

    Args:
      config: the model's own config object (``model.config``).
      index: spec of the index, such as "codes", "exact", "hnsw:M=16" or "faiss:IVF1024,SQ8". None:
        codes with a size that suits the model's heads (``topkv.IndexSpec.default_for``).
      tail: estimate for the rows that are not retrieved: "codes" (the codes of `index`, if it has
        some) or another index that codes values; "mean", the mean value of rows; "none"; or "", the
        tail of `index`.
      k: rows retrieved per query head: a number, a list, or a schedule such as "uniform:512". Lists
        and sums are over the full-attention layers.
      mass: with a tail, retrieve a sixteenth of `k` rows if they hold this share of a query head's
        attention, by the tail's estimate. None: `k` rows.
      error: with a tail, retrieve more rows, in the end all, if a layer's output for a token is
        expected to be off by more than this, as |out - dense| / |dense|. The true error may be
        larger than the expected one. With `mass` or `error` the host searches, also for a GPU.
        ``stats()`` counts how often they took more rows.
      guarantee: (epsilon, delta), on a CPU and without `tail`: a random sample of the rows that are
        not retrieved stands for them. It is so large that |out - dense| / |dense| of a query head is
        above epsilon with probability delta at most, as the sample estimates it.
      window, sinks: tokens attended exactly, at the end and at the beginning.
      select_by: "query_head", or "group" to share the rows among the heads of a group.
      dense_layers: the first n full-attention layers attend every token.
      prefill: what tokens attend while the text is read. "dense": all earlier tokens. "window": the
        `sinks` and `window` tokens only. "sparse": these, and blocks of 64 keys that each block of
        128 tokens chooses for itself. "auto": "sparse", but "dense" with `shard`, and for a text
        that is known to be so short that little is gained (``topkv.resolve_prefill``).
        A text's length is known from ``generate`` or `max_cache_len`. "auto" is "dense", with a warning,
        if all rows of one layer do not fit into the memory of the CUDA device. A text of unknown length
        may outgrow that memory: it is read on densely. `prefill_mode` says how a text is read.
      prefill_keys: with "sparse", the most keys that a block of tokens chooses.
      prefill_least: with "sparse", the fewest; None: 512, or prefill_keys if that is less.
      prefill_mass: with "sparse", no more keys are chosen once this share of attention is met; 1:
        always prefill_keys.
      kv_dtype: "f32", "f16" or "bf16" rows, or PyTorch's dtype; "q8", "q4" or "q8/q4" (keys/values)
        for rows of half the size and less. None: the model's dtype, and bf16 on a CUDA device.
      max_cache_len: tokens of the text, to reserve rows once; 0: as many as ``generate`` is given, else
        rows grow with the text.
      session_capacity: tokens that can follow the text.
      device_memory: limit of topkv's GPU memory in bytes; 0: the free memory.
      measure_recall: compare every search with exact search, which is slow; see ``stats()``.
      host_search: the host searches although a GPU could, so that codes and key summaries take no
        GPU memory; slower.
      shard: "sequence": ranks of `process_group` each keep the rows of a part of the text.
      progress: report on stderr how far a text is read or an index built, if that takes more than
        some seconds. None: follow transformers' progress bars.
      trust: accept a model whose code cannot be looked at, or attends in a way of its own; see
        ``self_check``. Refusals by its config or by a call remain.

    Raises topkv.Unsupported, with the reason, for other models. Supported is attention that is
    softmax over grouped-query K and V of all earlier tokens, or of those that a known indexer chooses,
    through transformers' attention interface.

    A batch of texts, padded on the left, is read side by side. Each row is a text of its own, with an
    index of its own. Beams and samples of a prompt share its rows.

    Not safe to share between threads.
    """

    def __init__(
        self,
        config: Any,
        *,
        index: str | None = None,
        tail: str = "",
        k: int | str | list[int] = 128,
        mass: float | None = None,
        error: float | None = None,
        guarantee: tuple[float, float] | None = None,
        window: int = 1024,
        sinks: int = 4,
        select_by: str = "query_head",
        dense_layers: int = 0,
        prefill: str = "dense",
        prefill_keys: int = 8192,
        prefill_least: int | None = None,
        prefill_mass: float = 0.98,
        kv_dtype: str | torch.dtype | None = None,
        max_cache_len: int = 0,
        session_capacity: int = 16384,
        device_memory: int = 0,
        measure_recall: bool = False,
        host_search: bool = False,
        shard: str | None = None,
        process_group: Any = None,
        progress: bool | None = None,
        trust: bool = False,
    ):
        given = {name: value for name, value in locals().items() if name != "self"}
        if not hasattr(config, "get_text_config"):
            raise InvalidArgument(
                f"config is a {type(config).__name__}; expected the model's own config object, "
                "model.config"
            )
        families.check(config, flag("trust", trust))
        indexed = families.indexers(config)
        chosen = families.indexers_choose_all(config)
        if index is None:
            wide = families.head_dim(config)
            given["index"] = "exact" if chosen else topkv.IndexSpec.default_for(wide).text
        layers = len(families.served(config)) + len(families.shared_rows(config))
        has_latents = families.has_latents(config)
        if indexed is not None and shard is not None:
            raise Unsupported(
                'shard="sequence" of a model whose indexers choose rows: a rank has only the rows of its own part; '
                "leave shard out"
            )
        made = make_options(layers, given, has_latents)
        if chosen:
            made = left_to_indexers(made, given)
        engine = Engine(State(made))
        inner = families.text_config(config)
        if base_of(inner._attn_implementation) is None:
            inner._attn_implementation = implementation_over(inner._attn_implementation or "eager")
        watch()
        if has_latents:
            latent.watch_layers(families.model_code(inner))
        if indexed is not None:
            indexers.watch(reader_of(inner), families.model_code(inner))
        self._start(config, engine)

    def _start(self, config: Any, engine: Engine) -> None:
        self.config = config
        self._engine = engine
        engine.restarts = families.restarting_layer(config)
        engine.indexers = families.indexers(config)
        shared = families.shared_rows(config)
        served = sorted((*families.served(config), *shared))
        engine.numbers = {layer: number for number, layer in enumerate(served)}
        if shared:
            engine.row_layer = [engine.numbers[shared.get(layer, layer)] for layer in served]
        super().__init__(layers=self._make_layers())
        attending = [i for i, x in enumerate(self.layers) if kept.is_sliding(x)]
        engine.set_layers(self.layers, sorted((*attending, *served)))

    def _make_layers(self) -> list[CacheLayerMixin]:
        layers: list[CacheLayerMixin] = []
        indexed = self._engine.indexers
        pools = indexed is not None and indexed.rule.tokens_per_key > 1
        for index, (kind, kwargs) in enumerate(zip(*families.layer_types(self.config))):
            number = self._engine.numbers.get(index, -1)
            if kind == families.FULL:
                make = PoolingTopkLayer if pools and indexed.has_own(index) else TopkLayer
                layers.append(make(self._engine, index, number))
            elif kind == families.FULL_AND_RECURRENT:
                layers.append(RecurrentTopkLayer(self._engine, index, number, **kwargs))
            else:
                layers.append(DYNAMIC_LAYER_TYPE_MAPPING[kind](**kwargs))
        return layers

    def __repr__(self) -> str:
        state = self._engine.state
        what = [f"{self.get_seq_length()} tokens"]
        if state.text is None:
            what.append("a text being read" if state.texts == 1 else f"{state.texts} texts being read")
        else:
            what.append(f"the text {state.text_tokens} of them")
            what.append(f"index {state.options.session['index']}")
        if state.batch != 1:
            what.append(f"{state.batch} rows")
        return f"<TopkCache of a {self.config.model_type} model: {', '.join(what)}>"

    # ---- the text and its sessions ----

    @classmethod
    def from_context(
        cls, config: Any, context: topkv.Context, tokens: Any = None, **options: Any
    ) -> TopkCache:
        """Returns a cache over a text that topkv.Model, or your own ContextBuilder, has read.

        For models whose layers are all full attention over K and V: a context has no state of other
        layers, and rows of latents have no one order.

        tokens: all ids of the text. With them generate refuses another text; without them nothing
        checks it."""
        cache = cls(config, **options)
        texts.check_origin(cache, context)
        return texts.over(cache, context, tokens)

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        model: Any,
        *,
        mapped: bool = False,
        memory_budget: int = 0,
        check_model: bool = True,
        **options: Any,
    ) -> TopkCache:
        """Returns a cache over the text that save() wrote. It answers as the saved cache, to the bit.

        The options of the saved cache apply, except those given here. An index that the file lacks is
        built. A file of another program (``topkv.Context.save``) has no options.

        mapped, memory_budget: as of ``topkv.load_context``. check_model: refuse a file whose rows
        another model made; False accepts every file with matching heads.

        Raises topkv.FileError for a damaged file, topkv.InvalidArgument for another model, with both
        fingerprints, and topkv.OutOfMemory."""
        how = {"mapped": flag("mapped", mapped), "memory_budget": memory_budget}
        return texts.load(cls, path, model, flag("check_model", check_model), options, **how)

    def save(self, path: str | os.PathLike[str], model: Any, *, text_only: bool = False) -> None:
        """Writes the text to a file for from_file(). Freezes the text if it is not frozen yet.

        The file has rows, indices, options, ids if all are known, the states of layers that transformers
        keeps, and a fingerprint of `model`, the model that read the text.

        Tokens that follow the text are not saved. If there are some, save() refuses, unless text_only
        leaves them out. The file takes its name when it is whole; an earlier file stays until then.

        Raises topkv.FileError. Raises topkv.Unsupported for texts sharded by sequence."""
        texts.save(self, path, model, flag("text_only", text_only))

    @property
    def text_ids(self) -> torch.Tensor | None:
        """Ids of the frozen text, [1, tokens], as generate takes them; None: unknown.

        A batch of texts has [texts, tokens], with padding."""
        ids = texts.known_ids(self._engine.state.text)
        return None if ids is None else ids.clone()

    @property
    def context(self) -> topkv.Context | None:
        """The frozen text; None before that. Raises InvalidArgument for several texts."""
        text = self._engine.state.text
        return None if text is None else text.context

    @property
    def contexts(self) -> list[topkv.Context]:
        """The frozen texts: one that all batch rows share, or one for each batch row."""
        text = self._engine.state.text
        return [] if text is None else list(text.contexts)

    @property
    def prefill_mode(self) -> str | None:
        """How the text is read, or was read: "dense", "sparse" or "window". With "auto" this is what was
        decided. None: nothing was read yet, or the text came from a file or a context. Of several texts,
        "dense" if one of them is read so."""
        state = self._engine.state
        if state.text is not None:
            return state.text.prefill
        return state.rows.mode if isinstance(state.rows, TextsRead) else None

    @property
    def device(self) -> topkv.Device | None:
        """topkv's device; None before the first attention. Its memory() reports the memory it takes."""
        return self._engine.device

    @property
    def sessions(self) -> list[topkv.Session]:
        """The sessions, one per batch row; empty until a token was attended after the text."""
        return self._engine.sessions

    def freeze(self, index: str | None = None) -> TopkCache:
        """Ends the text: makes the rows a context and builds the index (`index`, or the cache's own).

        The first single token does this by itself. Another call builds a further index, for sessions
        made after that.

        If it fails, or Ctrl-C ends it, the cache is as before. A text that was being read can be read
        on, or frozen with another index."""
        if index is not None:
            topkv.KeyIndex(text("index", index))  # refuses the spec before any work
        self._engine.freeze(index)
        return self

    def prepare(
        self, method: Callable[[], Method], *, sinks: int | None = None, device: Any = None
    ) -> PreparedMethod:
        """Gives your own method the text, for session(method=...). Freezes the text if necessary.

        method: a class with the methods of topkv.hf.Method. sinks: sinks of the sessions; None: the
        cache's. device: the device of the method's tensors; None: where the text was read."""
        if self._engine.options.shards is not None:
            raise Unsupported("a method written in Python cannot search a text sharded by sequence; use an index")
        if self._engine.indexers is not None:
            raise Unsupported("a method written in Python for a model whose own indexers choose the rows; leave it out")
        if self._engine.state.text is None:
            self.freeze()
        engine = self._engine
        where = torch.device(device or engine.torch_device or "cpu")
        sinks = engine.options.session["sinks"] if sinks is None else integer("sinks", sinks, 0)
        return PreparedMethod(engine.state.text, method, sinks, where)

    def session(
        self, batch: int = 1, *, method: PreparedMethod | None = None, **given: Any
    ) -> TopkCache:
        """Returns a cache that continues after the text. Freezes the text if it is not frozen yet.

        Any number of sessions may be in use at once; they share the rows.

        Give ``generate`` the ids of text and question together, and no prefill_chunk_size. Only the
        tokens that the cache lacks are run.

        batch: the number of questions, samples or beams; for a batch of texts, the number for each
        text. Questions of different lengths are padded on the left, between text and question.
        method: a result of prepare(); it finds the rows in place of an index.
        given: options that replace the cache's own: k, index (one that freeze() built; None: the
        cache's), tail (built if it is not there), mass, error, guarantee, window, sinks, select_by,
        dense_layers, session_capacity, measure_recall, host_search.
        """
        batch = integer("batch", batch, 1)
        options = self._engine.options_with(given)  # refused before the text is frozen
        if method is not None:
            check_session(method, self._engine.state.text, given, options.session, batch)
        if self._engine.state.text is None:
            self.freeze()
        self._engine.add_tail(options)
        new = object.__new__(TopkCache)
        new._start(self.config, self._engine.fork(batch, options))
        new._engine.method = method
        state = new._engine.state
        for number, one in state.text.kept_of(state.batch).items():
            kept.put(new.layers[number], one)
        return new

    def memory(self) -> CacheMemory:
        """The cache's bytes in host memory. ``cache.device.memory()`` has the bytes on the GPU."""
        rows = index = 0
        for context in {id(context): context for context in self.contexts}.values():
            held = context.memory()
            rows, index = rows + held.rows_bytes, index + held.index_bytes
        sliding, states = (
            sum(kept.tensor_bytes(kept.members(layer)) for _, layer in layers)
            for layers in (self._engine.sliding_layers(), self._engine.layers_with_states())
        )
        return CacheMemory(rows, index, sliding, states)

    def stats(self) -> list[Any]:
        """topkv.SessionStats per batch row: rows retrieved, times, and the recall if it is measured."""
        if isinstance(self._engine.state.rows, MethodRows):
            return [self._engine.state.rows.stats()]
        return [session.stats() for session in self.sessions]

    def _refuse_copy(self, *_: Any) -> NoReturn:
        raise Unsupported(
            "a TopkCache cannot be copied or pickled: its rows are in topkv's memory. "
            "cache.session() gives another reader of this text. cache.save(path, model) writes "
            "the text to a file for another process"
        )

    __copy__ = __deepcopy__ = __reduce_ex__ = __reduce__ = _refuse_copy
