"""The C++ library as topkv re-exports it. The module's own docstrings have more details."""

import os
import pathlib
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

__version__: str
cuda_built: bool
empty_lse: float

class _Dlpack(Protocol):
    def __dlpack__(self, **kwargs: Any) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

Array = NDArray[Any] | _Dlpack | memoryview
"""Any object with the buffer protocol or __dlpack__; uint16 arrays hold bf16."""

_Out = TypeVar("_Out")
_Ints = Sequence[int] | NDArray[np.integer] | _Dlpack
_Path = str | os.PathLike[str]

class Error(Exception):
    """Base of all exceptions that topkv raises on purpose."""

class InvalidArgument(Error, ValueError):
    """An argument, option, array or spec that cannot be used as given."""

class FileError(Error, OSError):
    """A file cannot be read, or its contents are invalid."""

class Unsupported(Error, NotImplementedError):
    """A well-formed request or model that topkv does not implement."""

class OutOfMemory(Error, MemoryError):
    """Not enough memory; refused before work started."""

    wanted_bytes: int
    available_bytes: int

class Progress:
    """One report of long work: `done` of `total`, counted in `unit`; `stage` names the work."""

    @property
    def stage(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...

class IndexerShape:
    """The shape of a trained indexer, which chooses the rows that a token attends."""

    def __init__(
        self,
        dim: int = 128,
        heads: int = 1,
        choices: int = 1,
        score: str = "relu",
        tokens_per_key: int = 1,
        block: int = 1,
        top: int = 2048,
        local_blocks: int = 0,
        dtype: str = "f32",
    ) -> None: ...
    @property
    def dim(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def choices(self) -> int: ...
    @property
    def score(self) -> str: ...
    @property
    def tokens_per_key(self) -> int: ...
    @property
    def block(self) -> int: ...
    @property
    def top(self) -> int: ...
    @property
    def local_blocks(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    def completed(self, first: int, tokens: int) -> int:
        """The number of index keys that `tokens` tokens from position `first` on complete."""

class AttentionShape:
    """The shape of a model's attention, and what each layer attends and keeps."""

    def __init__(
        self,
        layers: int,
        q_heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float = 0.0,
        softcap: float = 0.0,
        sliding_window: Sequence[int] = [],
        chunk_len: int = 0,
        row_layer: Sequence[int] = [],
        state_size: Sequence[int] = [],
        sliding_kv_heads: int = 0,
        sliding_head_dim: int = 0,
        keys_are_values: bool = False,
        indexer: IndexerShape | None = None,
        indexer_layer: Sequence[int] = [],
    ) -> None: ...
    @property
    def layers(self) -> int: ...
    @property
    def q_heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def scale(self) -> float: ...
    @property
    def softcap(self) -> float: ...
    @property
    def sliding_window(self) -> list[int]: ...
    @property
    def chunk_len(self) -> int: ...
    @property
    def row_layer(self) -> list[int]: ...
    @property
    def state_size(self) -> list[int]: ...
    @property
    def sliding_kv_heads(self) -> int: ...
    @property
    def sliding_head_dim(self) -> int: ...
    @property
    def keys_are_values(self) -> bool: ...
    @property
    def indexer(self) -> IndexerShape | None: ...
    @property
    def indexer_layer(self) -> list[int]: ...
    @property
    def group(self) -> int:
        """Query heads per KV head."""

    @property
    def softmax_scale(self) -> float:
        """scale, or 1 / sqrt(head_dim) if scale is 0."""

class DeviceMemory:
    """Bytes of a CUDA device's memory; all 0 for the host."""

    @property
    def ceiling(self) -> int: ...
    @property
    def libraries(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def peak(self) -> int: ...
    @property
    def driver(self) -> int: ...
    @property
    def items(self) -> list[tuple[str, int]]: ...

class Device:
    """A device that runs a network's arithmetic; Device() is the host's cores."""

    def __init__(self) -> None: ...
    @staticmethod
    def open(spec: str, memory_ceiling: int = 0) -> Device:
        """Opens "cpu", "cuda", "cuda:N" or "auto". memory_ceiling: bytes; 0: 0.9 of the free memory."""

    @property
    def is_cuda(self) -> bool: ...
    @property
    def name(self) -> str: ...
    def memory(self) -> DeviceMemory: ...

class SearchResult:
    """Up to k positions for each query, best first. len() is the number of queries."""

    def __len__(self) -> int: ...
    @property
    def k(self) -> int: ...
    def positions(self, query: int) -> NDArray[np.int64]: ...
    def scores(self, query: int) -> NDArray[np.float32]: ...

class IndexSpec:
    def __init__(self, text: str) -> None: ...
    @staticmethod
    def default_for(dim: int) -> IndexSpec: ...
    @property
    def text(self) -> str: ...
    @property
    def grows(self) -> bool: ...
    @property
    def has_code_tail(self) -> bool: ...
    @property
    def has_tail(self) -> bool: ...
    @property
    def learns_queries(self) -> bool: ...
    def check(self, dim: int, keys: int) -> None: ...
    def __hash__(self) -> int: ...

class KeyIndex:
    """Finds the keys with the largest inner product with a query. Keeps its key arrays alive."""

    def __init__(self, spec: str) -> None: ...
    def add(self, keys: Array) -> None:
        """Adds keys [n, dim]; the first one gets the number `size`."""

    def build(self) -> None: ...
    def search(self, queries: Array, k: int, allowed: Array | None = None) -> SearchResult:
        """Searches for queries [m, dim], f32. allowed: int64 [m, 2], the range of positions for each query."""

    @property
    def size(self) -> int: ...
    @property
    def memory(self) -> int: ...
    @property
    def spec(self) -> str: ...
    def __len__(self) -> int: ...

class QueryBlock:
    """The queries that topkv asks an index of the application for (register_index)."""

    @property
    def data(self) -> NDArray[np.float32]:
        """The queries, [n, dim]."""

    @property
    def allowed(self) -> NDArray[np.int64]:
        """The half-open range of positions that each query may find: [n, 2]."""

    @property
    def group(self) -> int:
        """The number of consecutive queries that belong to one token's heads. They have one range."""

    @property
    def tokens(self) -> int:
        """The number of consecutive groups that form a step of several tokens."""

    @property
    def scale(self) -> float:
        """The factor on q·k in attention."""

def register_index(
    name: str,
    cls: type,
    *,
    factory: Callable[[str], object] | None = None,
    ranks_keys: bool = False,
) -> None:
    """Registers an index that is written in Python. "name" and "name:params" are then specs.

    cls(params) makes an index for one layer and KV head. Objects have build(keys) and
    search(queries, k), and optionally build_tail(values) and tail(queries, attended, scale, softcap),
    save() and load(keys, saved), memory and spec. help(topkv.register_index) describes them.
    """

def unregister_index(name: str) -> bool:
    """Forgets a registered index. Contexts and sessions that have the index keep it, but new sessions
    cannot name it. Returns False when no index with this name is registered."""

class Partial:
    """Attention over a subset of the keys: out [heads, head_dim] and lse [heads], float32."""

    def __init__(self, out: Array, lse: Array) -> None: ...
    @staticmethod
    def empty(heads: int, head_dim: int) -> Partial:
        """The partial over no keys."""

    @property
    def out(self) -> Any: ...
    @property
    def lse(self) -> Any: ...

def merge(a: Partial, b: Partial) -> Partial:
    """Returns the partial over the union of two disjoint key sets."""

def merge_into(into: Partial, other: Partial) -> None:
    """Merges in place: writes to the arrays of `into`."""

def attend_rows(
    queries: Array,
    keys: Array,
    values: Array,
    positions: _Ints,
    scale: float,
    softcap: float = 0.0,
) -> Partial:
    """Returns the partial of queries [heads, head_dim] over the rows at these positions."""

class PrefillShare:
    """What the tokens of a sparse prefill attended in a layer."""

    @property
    def queries(self) -> int: ...
    @property
    def mass(self) -> float: ...
    @property
    def keys(self) -> float: ...

def resolve_prefill(
    prefill: str,
    tokens: int,
    device: Device | str | None = None,
    *,
    shape: AttentionShape | None = None,
    keys: int = 8192,
    memory: int | None = None,
    chunk: int = 8192,
    capacity: int = 0,
    dtype: str = "bf16",
    window: int = 1024,
    sinks: int = 4,
) -> str:
    """The prefill of a text of `tokens` tokens: "sparse" or "dense" for "auto".

    memory: the bytes of a CUDA device that a sparse prefill may take; None: any number."""

class ContextBuilder:
    """Collects the rows of a context as the network produces them."""

    def __init__(
        self,
        shape: AttentionShape,
        capacity: int,
        dtype: str = "bf16",
        memory_budget: int = 0,
        prefill: str = "dense",
        window: int = 1024,
        sinks: int = 4,
        device: Device | str | None = None,
        *,
        prefill_keys: int = 8192,
        prefill_least: int | None = None,
        prefill_mass: float = 0.98,
        prefill_measure: bool = False,
    ) -> None: ...
    def reserve(self, tokens: int, chunk: int = 0) -> None:
        """Makes room for `tokens` tokens in total, and for steps of `chunk` tokens on a CUDA device."""

    def synchronize(self) -> None:
        """Waits until all rows given to a CUDA device are in host memory."""

    def advance(self, layer: int, tokens: int, state: Array) -> None:
        """Gives a layer its recurrent state after its next `tokens` tokens."""

    def state(self, layer: int) -> NDArray[np.float32]:
        """A copy of the recurrent state of a layer after the last token."""

    def snapshot(self) -> None:
        """Keeps the present recurrent states, so that truncate() can come back to this token."""

    def reachable(self, tokens: int) -> int:
        """The most tokens, at most `tokens`, that truncate() can keep."""

    def truncate(self, tokens: int) -> None:
        """Forgets the tokens from this number on, in all layers."""

    def resume(self, context: Context) -> None:
        """Takes a copy of all that a context holds; the builder has no tokens yet."""

    def append(self, layer: int, keys: Array, values: Array | None) -> None:
        """Appends K and V of a layer's next tokens: [tokens, kv_heads, head_dim], strided, in host memory."""

    @overload
    def attend(
        self,
        layer: int,
        q: Array,
        k: Array | None,
        v: Array | None,
        out: None = None,
        lse: Array | None = None,
        kv_first: int = 0,
        kv_tokens: int = -1,
        stream: int = 0,
        q_next: Array | None = None,
        q_far: Array | None = None,
        *,
        index_q: Array | None = None,
        index_k: Array | None = None,
        index_weights: Array | None = None,
    ) -> NDArray[np.float32]: ...
    @overload
    def attend(
        self,
        layer: int,
        q: Array,
        k: Array | None,
        v: Array | None,
        out: _Out,
        lse: Array | None = None,
        kv_first: int = 0,
        kv_tokens: int = -1,
        stream: int = 0,
        q_next: Array | None = None,
        q_far: Array | None = None,
        *,
        index_q: Array | None = None,
        index_k: Array | None = None,
        index_weights: Array | None = None,
    ) -> _Out:
        """Appends k and v, and writes the causal attention of these tokens to `out`."""

    def tokens(self, layer: int) -> int: ...
    def share(self, layer: int) -> PrefillShare:
        """What the tokens given to attend() attended in a layer of a sparse prefill."""

    @property
    def capacity(self) -> int: ...
    @property
    def shape(self) -> AttentionShape: ...
    @property
    def device(self) -> Device: ...
    def freeze(self) -> Context:
        """Makes the rows a Context; the builder is empty afterwards."""

class ContextMemory:
    @property
    def rows_bytes(self) -> int: ...
    @property
    def index_bytes(self) -> int: ...
    @property
    def queries_bytes(self) -> int: ...
    @property
    def states_bytes(self) -> int: ...

class Context:
    """One prefilled text: rows in host memory, and indices over the keys. Immutable."""

    @property
    def shape(self) -> AttentionShape: ...
    @property
    def tokens(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    def memory(self) -> ContextMemory: ...
    def indices(self) -> list[str]:
        """Specs of the context's indices, with all defaults spelled out."""

    def has_index(self, spec: str) -> bool:
        """Whether the context has the index of this spec, in any spelling."""

    def keys(self, layer: int, kv_head: int) -> NDArray[Any]:
        """Keys [tokens - first_row(layer), head_dim] in place, read-only; uint16 for bf16."""

    def values(self, layer: int, kv_head: int) -> NDArray[Any]: ...
    def first_row(self, layer: int) -> int:
        """The token of row 0: above 0 for a layer with a sliding window."""

    def state(self, layer: int) -> NDArray[np.float32]:
        """A copy of the recurrent state of a layer after the last token."""

    def index(self, spec: str, layer: int, kv_head: int) -> KeyIndex: ...
    def with_index(
        self,
        spec: str,
        progress: Callable[[Progress], object] | None = None,
        device: Device | str | None = None,
    ) -> Context:
        """Returns a context over these rows that has this index too.

        device: a device that prefilled the rows makes codes of them."""

    def with_tokens(self, tokens: _Ints) -> Context:
        """Returns a context over these rows that knows its tokens: sessions look in them for drafts."""

    @property
    def knows_tokens(self) -> bool: ...
    def ready_for(
        self,
        index: str = "exact",
        tail: str = "",
        progress: Callable[[Progress], object] | None = None,
        device: Device | str | None = None,
    ) -> Context:
        """Returns a context over these rows that sessions with this index and tail can open: it builds
        what this context lacks. Returns this context itself when it lacks nothing.

        index, tail: as for Session. The tails "" and "none" need nothing to be built.
        progress: its stage is "index", then "tail".
        Raises InvalidArgument for an invalid index or tail before anything is built."""

    def save(
        self,
        path: _Path,
        *,
        model: str = "",
        made_with: str = "",
        length: int = 0,
        tokens: _Ints | None = None,
        text_left: str = "",
        chat: bool = False,
        system: str = "",
        application_data: bytes | bytearray | memoryview = b"",
        progress: Callable[[Progress], object] | None = None,
    ) -> None:
        """Writes the context to a file, which takes its name when it is whole.

        tokens: ids of the text, [tokens]. application_data: bytes of your own that the file keeps.
        Raises FileError, and InvalidArgument for another number of ids."""

class LoadedContext:
    """A context loaded from a file, and the file's description of its rows."""

    @property
    def context(self) -> Context: ...
    @property
    def model(self) -> str:
        """The saver's name of the network that made the rows; "": none."""

    @property
    def made_with(self) -> str: ...
    @property
    def length(self) -> int:
        """The length that Model.load was given, for which keys are rotated; 0: none, or unknown."""

    @property
    def tokens(self) -> NDArray[np.int32] | None:
        """A copy of the text's ids, [tokens]; None: not in the file."""

    @property
    def text_left(self) -> str:
        """The text after the last token; a prompt begins with it."""

    @property
    def chat(self) -> bool:
        """Whether the text is in a question of the model's chat template."""

    @property
    def system(self) -> str: ...
    @property
    def application_data(self) -> bytes:
        """A copy of the bytes that Context.save was given as application_data."""

class ContextFileInfo:
    """The description in a context file."""

    @property
    def version(self) -> int: ...
    @property
    def writer(self) -> str: ...
    @property
    def shape(self) -> AttentionShape: ...
    @property
    def dtype(self) -> str: ...
    @property
    def tokens(self) -> int: ...
    @property
    def tokens_before(self) -> int | None:
        """Tokens of the session's context, if the rows are a session's own; else None."""

    @property
    def indices(self) -> list[str]: ...
    @property
    def unknown_indices(self) -> list[str]:
        """Specs that this topkv does not know. If there are some, load_context needs `indices`."""

    @property
    def has_queries(self) -> bool: ...
    @property
    def model(self) -> str: ...
    @property
    def made_with(self) -> str: ...
    @property
    def length(self) -> int: ...
    @property
    def has_token_ids(self) -> bool: ...
    @property
    def file_bytes(self) -> int: ...
    @property
    def rows_bytes(self) -> int: ...
    @property
    def index_bytes(self) -> int: ...
    @property
    def queries_bytes(self) -> int: ...
    @property
    def states_bytes(self) -> int: ...
    @property
    def application_bytes(self) -> int: ...

def load_context(
    path: _Path,
    *,
    mapped: bool = False,
    memory_budget: int = 0,
    indices: Sequence[str] | None = None,
    device: Device | str | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> LoadedContext:
    """Loads the context that Context.save wrote, to the bit.

    mapped: rows stay in the file, which must not be changed.
    indices: specs of the indices to load; None: all.
    device: a CUDA device; rows in memory are page-locked for its sessions.
    Raises FileError for a damaged file, and OutOfMemory."""

def context_file_info(path: _Path) -> ContextFileInfo:
    """Reads the description from the beginning of a context file. Raises FileError."""

def verify_context(path: _Path, progress: Callable[[Progress], object] | None = None) -> None:
    """Reads the whole file. Raises FileError, which names the first damaged part."""

class SessionStats:
    """Counts and times of a session, summed over its life."""

    @property
    def steps(self) -> int: ...
    @property
    def retrieving_steps(self) -> int:
        """The part of steps in layers that retrieve rows."""

    @property
    def rows_retrieved(self) -> int: ...
    @property
    def rows_sampled(self) -> int: ...
    @property
    def retrieved_more(self) -> int: ...
    @property
    def went_dense(self) -> int: ...
    @property
    def search_seconds(self) -> float: ...
    @property
    def attend_seconds(self) -> float: ...
    @property
    def coded_tokens(self) -> int: ...
    @property
    def coded_bytes(self) -> int: ...
    @property
    def device_row_bytes(self) -> int: ...
    @property
    def device_index_bytes(self) -> int: ...
    @property
    def exact_rows(self) -> int: ...
    @property
    def exact_rows_found(self) -> int: ...
    @property
    def recall(self) -> float | None: ...
    def rows_per_head(self, q_heads: int) -> float:
        """Returns the mean rows_retrieved of a (token, layer, query head) triple, over all layers. Dense
        and sliding layers count with 0 rows. 0 before the first step."""

    def rows_per_retrieving_head(self, q_heads: int) -> float:
        """Returns the mean rows_retrieved of a (token, layer, query head) triple, over the layers that
        retrieve; 0 when no layer does."""

class TailFigures:
    """Estimates, without dense attention, of how good a layer's attention with a tail was."""

    @property
    def heads(self) -> int: ...
    @property
    def exact_mass(self) -> float: ...
    @property
    def error(self) -> float: ...
    @property
    def mean_exact_mass(self) -> float | None: ...
    @property
    def mean_error(self) -> float | None: ...

class StepTimes:
    """Times of a session's steps in one layer, by part, in seconds."""

    @property
    def q_out(self) -> float: ...
    @property
    def append(self) -> float: ...
    @property
    def window(self) -> float: ...
    @property
    def search(self) -> float: ...
    @property
    def attend(self) -> float: ...
    @property
    def tail(self) -> float: ...
    @property
    def merge(self) -> float: ...
    @property
    def total(self) -> float: ...

class Session:
    """One reader of a context, with tokens of its own. One thread at a time."""

    def __init__(
        self,
        context: Context,
        device: Device | str | None = None,
        *,
        index: str = "exact",
        tail: str = "",
        k: int | Sequence[int] | str = 64,
        mass: float | None = None,
        error: float | None = None,
        guarantee: tuple[float, float] | None = None,
        select_by: str = "query_head",
        dense_layers: int = 0,
        window: int = 1024,
        sinks: int = 4,
        capacity: int = 16384,
        measure_recall: bool = False,
        measure_attention: bool = False,
        memory_budget: int = 0,
        host_search: bool = False,
        device_rows: int = 0,
        turns: str | None = None,
        turn_window: int = 1024,
        turn_keys: int = 8192,
        turn_least: int | None = None,
        turn_mass: float = 0.98,
        indexer_top: int | None = None,
        indexer_local_blocks: int | None = None,
    ) -> None: ...
    @overload
    def attend(
        self,
        layer: int,
        q: Array,
        k: Array | None,
        v: Array | None,
        out: None = None,
        lse: Array | None = None,
        kv_first: int = 0,
        kv_tokens: int = -1,
        stream: int = 0,
        q_next: Array | None = None,
        q_far: Array | None = None,
        *,
        index_q: Array | None = None,
        index_k: Array | None = None,
        index_weights: Array | None = None,
    ) -> NDArray[np.float32]: ...
    @overload
    def attend(
        self,
        layer: int,
        q: Array,
        k: Array | None,
        v: Array | None,
        out: _Out,
        lse: Array | None = None,
        kv_first: int = 0,
        kv_tokens: int = -1,
        stream: int = 0,
        q_next: Array | None = None,
        q_far: Array | None = None,
        *,
        index_q: Array | None = None,
        index_k: Array | None = None,
        index_weights: Array | None = None,
    ) -> _Out:
        """The decode step of one layer: takes q, k and v of the next tokens, returns attention."""

    @overload
    @staticmethod
    def attend_together(
        sessions: Iterable[Session],
        layer: int,
        q: Array,
        k: Array | None,
        v: Array | None,
        out: None = None,
        lse: Array | None = None,
        kv_tokens: int = -1,
        stream: int = 0,
        q_next: Array | None = None,
        q_far: Array | None = None,
        *,
        index_q: Array | None = None,
        index_k: Array | None = None,
        index_weights: Array | None = None,
    ) -> NDArray[np.float32]: ...
    @overload
    @staticmethod
    def attend_together(
        sessions: Iterable[Session],
        layer: int,
        q: Array,
        k: Array | None,
        v: Array | None,
        out: _Out,
        lse: Array | None = None,
        kv_tokens: int = -1,
        stream: int = 0,
        q_next: Array | None = None,
        q_far: Array | None = None,
        *,
        index_q: Array | None = None,
        index_k: Array | None = None,
        index_weights: Array | None = None,
    ) -> _Out:
        """Runs the decode step of several sessions over one context; arrays have a first axis of sessions."""

    def advance(self, layer: int, tokens: int, state: Array) -> None:
        """Gives a layer its recurrent state after its next `tokens` tokens."""

    def state(self, layer: int) -> NDArray[np.float32]:
        """A copy of the recurrent state of a layer after the last token."""

    def snapshot(self) -> None:
        """Keeps the present recurrent states, so that truncate() can come back to this token."""

    def reachable(self, own_tokens: int) -> int:
        """The most tokens, at most `own_tokens`, that truncate() can keep."""

    def truncate(self, own_tokens: int) -> None:
        """Forgets the session's own tokens from this number on."""

    def own_rows(self) -> Context:
        """Returns the session's own rows as a Context, to be saved beside the context's file."""

    def resume(self, own_rows: Context) -> None:
        """Continues from the session whose own_rows() these are."""

    def fork(self) -> Session: ...
    @property
    def tokens(self) -> int: ...
    @property
    def own_tokens(self) -> int: ...
    @property
    def context(self) -> Context: ...
    @property
    def device(self) -> Device: ...
    @property
    def index(self) -> str: ...
    @property
    def tail(self) -> str: ...
    def stats(self) -> SessionStats: ...
    def step_times(self) -> list[StepTimes]: ...
    def tail_figures(self) -> list[TailFigures]: ...
    def attention_by_position(self) -> NDArray[np.float64]:
        """The attention that each position got, the context's positions first: [tokens]."""

    def reset_attention(self) -> None:
        """Sets the sums of attention_by_position() to 0."""

    def turn_shares(self) -> list[PrefillShare]: ...

class Tokenizer:
    """The tokenizer of a tokenizer.json or a GGUF file: BPE of bytes or pieces, or Unigram."""

    @staticmethod
    def load(tokenizer_json: _Path) -> Tokenizer: ...
    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]: ...
    def beginning_tokens(self) -> list[int]: ...
    def left_out(self, text: str) -> str: ...
    def decode(self, tokens: _Ints) -> str: ...
    def bytes_of_token(self, token: int) -> bytes: ...
    def content_of_token(self, token: int) -> str: ...
    def find(self, content: str) -> int: ...
    @property
    def vocab_size(self) -> int: ...

class ChatTemplate:
    """The chat template of a model directory or a GGUF file, rendered as by apply_chat_template."""

    @staticmethod
    def load(directory: _Path) -> ChatTemplate: ...
    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str: ...
    @property
    def source(self) -> str: ...

class SamplingOptions:
    """The options by which the next token is chosen."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def top_p(self) -> float: ...
    @property
    def min_p(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...

class ModelConfig:
    """config.json, reduced to what changes the forward pass."""

    @staticmethod
    def load(directory: _Path, length: int = 0) -> ModelConfig:
        """Reads a model's configuration. length: the most tokens that contexts and sessions will hold."""

    @property
    def model_type(self) -> str: ...
    @property
    def attention(self) -> AttentionShape: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def experts(self) -> int:
        """Experts of a layer that has a mixture of experts; 0: the model has no experts."""
    @property
    def experts_per_token(self) -> int:
        """Experts that a token goes through."""
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_position(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...
    @property
    def rope_theta(self) -> float: ...
    @property
    def qkv_bias(self) -> bool: ...
    @property
    def o_bias(self) -> bool: ...
    @property
    def mlp_bias(self) -> bool: ...
    @property
    def qk_norm(self) -> bool: ...
    @property
    def tied_embeddings(self) -> bool: ...
    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> list[int]: ...
    @property
    def rotary_dim(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def sampling(self) -> SamplingOptions: ...
    @property
    def sampling_warning(self) -> str: ...
    @property
    def warnings(self) -> list[str]: ...
    @property
    def reach(self) -> int: ...
    def kv_bytes_per_token(self, dtype: str = "bf16") -> int: ...

class ForwardTimes:
    """Times of a forward pass, by part, in seconds."""

    @property
    def matmul(self) -> float: ...
    @property
    def attention(self) -> float: ...
    @property
    def search(self) -> float: ...
    @property
    def other(self) -> float: ...
    @property
    def indexing(self) -> float: ...
    @property
    def total(self) -> float: ...

class TokenLogprobs:
    """Natural logs of the probabilities of a token and of the likeliest tokens, in the model's own
    distribution."""

    @property
    def token(self) -> int: ...
    @property
    def logprob(self) -> float: ...
    @property
    def top(self) -> list[tuple[int, float]]:
        """(token, logprob) of the likeliest tokens, in order."""

class GenerateResult:
    @property
    def tokens(self) -> list[int]: ...
    @property
    def text(self) -> str:
        """The text up to a stop text; only with on_text or stop."""
    @property
    def logprobs(self) -> list[TokenLogprobs]: ...
    @property
    def end_logprobs(self) -> TokenLogprobs | None: ...
    @property
    def prompt_logprobs(self) -> list[TokenLogprobs]: ...
    @property
    def finish(self) -> str:
        """Why it ended: "end_token", "stop_text", "length" or "caller"."""
    @property
    def ended(self) -> bool: ...
    @property
    def steps(self) -> int:
        """Tokens fed after the prompt, without drafted tokens that were rejected."""
    @property
    def drafted(self) -> int: ...
    @property
    def accepted(self) -> int:
        """Tokens of drafts that were chosen."""
    @property
    def model_drafted(self) -> int:
        """Tokens of drafts that the draft model or the draft layer drafted."""
    @property
    def model_accepted(self) -> int:
        """Tokens that the draft model or the draft layer drafted and that were chosen."""
    @property
    def prompt_seconds(self) -> float: ...
    @property
    def decode_seconds(self) -> float: ...
    @property
    def times(self) -> ForwardTimes: ...

class DraftModel:
    """A model that drafts tokens for another model of the same vocabulary, which verifies them."""

    def __init__(self, model: Model, of: Model, *, window: int = 1024, kv_dtype: str = "bf16") -> None:
        """Opens `model` to draft for `of`; it reads the last `window` tokens of a text."""
    @property
    def window(self) -> int: ...
    @property
    def session_bytes(self) -> int:
        """Host memory that the rows of one session take, in bytes."""

class DevicePlan:
    """The device memory that a prefill and a session would take, computed before any work."""

    @property
    def items(self) -> list[tuple[str, int]]: ...
    @property
    def peak(self) -> int: ...
    @property
    def ceiling(self) -> int: ...
    @property
    def chunk(self) -> int: ...
    @property
    def prefill(self) -> str: ...
    @property
    def weights_bytes(self) -> int: ...
    @property
    def quantised(self) -> str:
        """The quantisation of the checkpoint's matrices; empty: plain."""

    @property
    def fits(self) -> bool: ...

class PlacePlan:
    """The bytes that one memory has to hold."""

    @property
    def items(self) -> list[tuple[str, int]]: ...
    @property
    def peak(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def reads(self) -> int: ...
    @property
    def fits(self) -> bool: ...

class MemoryPlan:
    """One way of holding a model and a context."""

    @property
    def weights(self) -> str: ...
    @property
    def kv_dtype(self) -> str: ...
    @property
    def kv_index(self) -> str: ...
    @property
    def prefill(self) -> str: ...
    @property
    def gpu(self) -> PlacePlan: ...
    @property
    def host(self) -> PlacePlan: ...
    @property
    def loss(self) -> float: ...
    @property
    def fits(self) -> bool: ...
    @property
    def missing(self) -> int: ...
    @property
    def flags(self) -> str: ...

def memory_plans(
    directory: _Path,
    tokens: int,
    *,
    gpu_memory: int = 0,
    memory: int = 0,
    prefill: str = "dense",
    weights: str | None = None,
    kv_dtype: str | None = None,
    kv_index: str | None = None,
    host_search: bool = False,
) -> list[MemoryPlan]:
    """Returns every way of holding a model and a context, the most exact first."""

def find_model(model: _Path, *, weights: bool = True) -> pathlib.Path:
    """Finds a model: a path, or "org/name" in Hugging Face's cache folder."""

class Model:
    """A loaded checkpoint in Hugging Face layout (directory), or a GGUF file."""

    @staticmethod
    def load(
        directory: _Path,
        device: Device | str | None = None,
        *,
        weights: str = "stored",
        progress: Callable[[Progress], object] | None = None,
        length: int = 0,
        indexer: _Path | None = None,
    ) -> Model:
        """Loads a checkpoint.

        weights: "stored", as in the checkpoint (quantised weights by their codes); or "int8" or
        "int4", rounded while they are loaded.
        indexer: a file with a trained indexer for this model, on a CPU."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def device(self) -> Device: ...
    @property
    def weights(self) -> str: ...
    @property
    def draft_layer_bytes(self) -> int:
        """Host memory that a session keeps for the model's own draft layer, in bytes; 0: there is none."""
    def fingerprint(self) -> str:
        """Returns 16 characters that identify everything that rows of this model depend on.

        These are configuration, tokenizer, chat template and weights, the format in which weights are
        held, and the length for which keys are rotated. topkv prefill and topkv ask name a model so:
        pass it as model= to Context.save. Reads a few MiB. Raises FileError."""

    def check_reach(self, tokens: int) -> None: ...
    def tokenizer(self) -> Tokenizer: ...
    def prefill(
        self,
        tokens: _Ints,
        prefill: str = "dense",
        *,
        window: int = 1024,
        sinks: int = 4,
        chunk: int = 0,
        kv_dtype: str = "bf16",
        memory_budget: int = 0,
        indices: Sequence[str] = [],
        progress: Callable[[Progress], object] | None = None,
        prefill_keys: int = 8192,
        prefill_least: int | None = None,
        prefill_mass: float = 0.98,
        prefill_measure: bool = False,
        shares: list[PrefillShare] | None = None,
        indexer_top: int | None = None,
    ) -> Context:
        """Runs the tokens through the network into a new Context.

        indexer_top: in layers with a trained indexer, the blocks of index keys that a token chooses; 2**40: `prefill`
        says what these layers attend, as in other layers."""

    def generate(
        self,
        session: Session,
        prompt: _Ints,
        max_tokens: int = 128,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        on_token: Callable[[int], object] | None = None,
        *,
        progress: Callable[[Progress], object] | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        stop: Sequence[str] = [],
        logprobs: int | None = None,
        on_text: Callable[[str], object] | None = None,
        before: _Ints | None = None,
        logit_bias: Mapping[int, float] | None = None,
        prompt_logprobs: int | None = None,
        draft: str = "auto",
        draft_model: DraftModel | None = None,
        json_schema: str | Mapping[str, Any] | None = None,
    ) -> GenerateResult:
        """Feeds the prompt to the session, then generates.

        Options that are None follow config.sampling. progress: called while the prompt is read."""

    def generate_together(
        self,
        sessions: Sequence[Session],
        prompts: Sequence[_Ints],
        max_tokens: int = 128,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        on_token: Callable[[int, int], object] | None = None,
        *,
        progress: Callable[[Progress], object] | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        stop: Sequence[str] = [],
        logprobs: int | None = None,
        on_text: Callable[[int, str], object] | None = None,
        before: _Ints | None = None,
        logit_bias: Mapping[int, float] | None = None,
        prompt_logprobs: int | None = None,
        draft: str = "auto",
        draft_model: DraftModel | None = None,
        json_schema: str | Mapping[str, Any] | None = None,
    ) -> list[GenerateResult]:
        """Generates for several sessions over one context, like generate().

        on_token and on_text are also given the number of the session."""

    def stream(
        self,
        session: Session,
        prompt: _Ints,
        max_tokens: int = 128,
        *,
        on_token: Callable[[int], object] | None = None,
        progress: Callable[[Progress], object] | None = None,
        **options: Any,
    ) -> Generator[str, None, GenerateResult]:
        """Yields the answer's text piece by piece, with the options of generate(); leaving ends it."""

    def astream(
        self,
        session: Session,
        prompt: _Ints,
        max_tokens: int = 128,
        *,
        on_token: Callable[[int], object] | None = None,
        progress: Callable[[Progress], object] | None = None,
        **options: Any,
    ) -> AsyncGenerator[str, None]:
        """Yields the answer's text piece by piece for asyncio, with the options of generate()."""

    @overload
    def logits(self, tokens: _Ints) -> NDArray[np.float32]:
        """Returns the logits of a dense forward pass, float32 [tokens, vocab_size]."""

    @overload
    def logits(self, session: Session, tokens: _Ints) -> NDArray[np.float32]:
        """Feeds tokens to a session and returns their logits."""

    @staticmethod
    def plan(
        directory: _Path,
        device: Device | str | None = None,
        prefill: str = "dense",
        *,
        window: int = 1024,
        sinks: int = 4,
        chunk: int = 0,
        capacity: int = 16384,
        weights: str = "stored",
    ) -> DevicePlan:
        """Plans the device memory of a prefill and a session, and checks the weights."""
