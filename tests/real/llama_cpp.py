"""Logits of llama.cpp for a GGUF file, by the library within the package xllamacpp, whose own interface gives none."""

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int8, c_int32, c_void_p
from pathlib import Path

import numpy as np
import xllamacpp

MOST = 512  # tokens of a new context, unless one asks for more


class Settings(ctypes.Structure):
    """Those of a model or a context, passed on as llama.cpp's defaults: larger than either is."""
    _fields_ = [("bytes", ctypes.c_uint8 * 1024)]


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", c_int32), ("token", POINTER(c_int32)), ("embd", POINTER(c_float)),
                ("pos", POINTER(c_int32)), ("n_seq_id", POINTER(c_int32)), ("seq_id", POINTER(POINTER(c_int32))),
                ("logits", POINTER(c_int8))]


library = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))))
for name, result, arguments in (
        ("llama_backend_init", None, ()),
        ("llama_model_default_params", Settings, ()),
        ("llama_context_default_params", Settings, ()),
        ("llama_model_load_from_file", c_void_p, (c_char_p, Settings)),
        ("llama_init_from_model", c_void_p, (c_void_p, Settings)),
        ("llama_batch_init", Batch, (c_int32, c_int32, c_int32)),
        ("llama_decode", c_int32, (c_void_p, Batch)),
        ("llama_get_logits_ith", POINTER(c_float), (c_void_p, c_int32)),
        ("llama_model_get_vocab", c_void_p, (c_void_p,)),
        ("llama_vocab_n_tokens", c_int32, (c_void_p,)),
        ("llama_free", None, (c_void_p,)),
        ("llama_model_free", None, (c_void_p,))):
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments


def logits_of(path, tokens):
    """Of each token of a text of at most MOST tokens, float32 [tokens, vocabulary]; rows of K and V are float16."""
    if not 0 < len(tokens) <= MOST:
        raise SystemExit(f"{len(tokens)} tokens; expected 1 to {MOST}")
    library.llama_backend_init()
    model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
    if not model:
        raise SystemExit(f"{path}: llama.cpp cannot load it")
    context = library.llama_init_from_model(model, library.llama_context_default_params())
    if not context:
        raise SystemExit(f"{path}: llama.cpp has no context for it")
    batch = library.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    if status := library.llama_decode(context, batch):
        raise SystemExit(f"{path}: llama_decode returned {status}")
    vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
    rows = [np.ctypeslib.as_array(library.llama_get_logits_ith(context, i), (vocabulary,)).copy()
            for i in range(len(tokens))]
    library.llama_free(context)
    library.llama_model_free(model)
    return np.stack(rows)
