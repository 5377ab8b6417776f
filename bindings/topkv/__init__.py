"""topkv: decode over a million tokens with the KV cache in host memory behind vector indices.

The K and V of every layer and KV head (the *rows*) stay in host memory. Each new token attends the
first tokens (*sinks*), the last tokens (*window*) and a few rows that an index retrieves. One exact
softmax covers all of them.

    find_model       finds a downloaded model by its name
    Model            a checkpoint: prefill() makes a Context; generate() and stream() decode with a Session
    DraftModel       a smaller checkpoint that drafts tokens for a Model
    ContextBuilder   for an application that owns its network: takes K and V, returns attention
    Context          one prefilled text, immutable, shared by sessions; has indices over its keys
    Session          one reader of a context: attend() is the decode step
    KeyIndex         an index over keys by itself
    IndexSpec        the name of an index, and whether one can be built
    register_index   makes an index that is written in Python available under a name
    Partial, merge, attend_rows   attention as a merge of partials
    ChatTemplate     renders a conversation as the text that a checkpoint was trained on
    Device           the host's cores, or a CUDA device with a memory limit

Arguments are arrays with the buffer protocol or __dlpack__ (NumPy, PyTorch on CPU and CUDA). They are
never copied. uint16 arrays hold bf16. Results are NumPy arrays, or the array passed as `out`. Every
exception raised on purpose is a topkv.Error.

These modules are imported on demand and need their own packages (`pip install '.[hf,plot]'` in a
checkout of topkv):

    topkv.hf         puts topkv into Hugging Face transformers
    topkv.eval       compares methods through transformers
    topkv.plot       draws results
    topkv.mass       computes the attention mass of the best rows
"""

import importlib as _importlib

try:
    from topkv._core import (
        AttentionShape,
        ChatTemplate,
        Context,
        ContextBuilder,
        ContextFileInfo,
        ContextMemory,
        Device,
        DeviceMemory,
        DevicePlan,
        DraftModel,
        Error,
        FileError,
        ForwardTimes,
        GenerateResult,
        IndexSpec,
        IndexerShape,
        InvalidArgument,
        KeyIndex,
        LoadedContext,
        MemoryPlan,
        Model,
        ModelConfig,
        OutOfMemory,
        Partial,
        PlacePlan,
        PrefillShare,
        Progress,
        QueryBlock,
        SamplingOptions,
        SearchResult,
        Session,
        SessionStats,
        StepTimes,
        TailFigures,
        TokenLogprobs,
        Tokenizer,
        Unsupported,
        __version__,
        attend_rows,
        context_file_info,
        cuda_built,
        empty_lse,
        find_model,
        load_context,
        memory_plans,
        merge,
        merge_into,
        register_index,
        resolve_prefill,
        unregister_index,
        verify_context,
    )
except ImportError as _error:
    if "libcublas" in str(_error):
        raise ImportError(
            f"{_error}; topkv was built with CUDA and needs cuBLAS 13: "
            "pip install nvidia-cublas, or add its folder to LD_LIBRARY_PATH"
        ) from _error
    raise

from topkv import _stream

Model.stream = _stream.stream
Model.astream = _stream.astream

_ON_DEMAND = ("eval", "hf", "plot", "mass")

__all__ = [
    "AttentionShape",
    "ChatTemplate",
    "Context",
    "ContextBuilder",
    "ContextFileInfo",
    "ContextMemory",
    "Device",
    "DeviceMemory",
    "DevicePlan",
    "DraftModel",
    "Error",
    "FileError",
    "ForwardTimes",
    "GenerateResult",
    "IndexSpec",
    "IndexerShape",
    "InvalidArgument",
    "KeyIndex",
    "LoadedContext",
    "MemoryPlan",
    "Model",
    "ModelConfig",
    "OutOfMemory",
    "Partial",
    "PlacePlan",
    "PrefillShare",
    "Progress",
    "QueryBlock",
    "SamplingOptions",
    "SearchResult",
    "Session",
    "SessionStats",
    "StepTimes",
    "TailFigures",
    "TokenLogprobs",
    "Tokenizer",
    "Unsupported",
    "__version__",
    "attend_rows",
    "context_file_info",
    "cuda_built",
    "empty_lse",
    "find_model",
    "load_context",
    "memory_plans",
    "merge",
    "merge_into",
    "register_index",
    "resolve_prefill",
    "unregister_index",
    "verify_context",
]


def __getattr__(name: str) -> object:
    """Imports topkv.hf, topkv.eval, topkv.plot and topkv.mass when they are first used."""
    if name in _ON_DEMAND:
        return _importlib.import_module(f"topkv.{name}")
    raise AttributeError(f"module 'topkv' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *_ON_DEMAND])
