"""topkv inside Hugging Face transformers.

    cache = topkv.hf.TopkCache(model.config, k=128)
    model.generate(**inputs, past_key_values=cache, prefill_chunk_size=8192)

or, once for all calls::

    topkv.hf.install(model, k=128)
    model.generate(**inputs)

Needs torch and transformers 5.17 or newer. TopkCache says which models it serves.
"""

try:
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"topkv.hf needs PyTorch and transformers ({error}): "
        'pip install torch "transformers>=5.17,<5.25"'
    )

from topkv.hf import compat

compat.require()

from topkv.hf.cache import CacheMemory, TopkCache, TopkLayer
from topkv.hf.families import FAMILIES, check
from topkv.hf.install import install, uninstall
from topkv.hf.method import Method, PreparedMethod
from topkv.hf.rows import close_devices
from topkv.hf.selfcheck import SelfCheck, self_check, try_unknown_version

if compat.version() >= compat.UNKNOWN:
    try_unknown_version()

__all__ = [
    "CacheMemory",
    "FAMILIES",
    "Method",
    "PreparedMethod",
    "SelfCheck",
    "TopkCache",
    "TopkLayer",
    "check",
    "close_devices",
    "install",
    "self_check",
    "uninstall",
]
