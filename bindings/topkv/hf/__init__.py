"""topkv inside Hugging Face transformers.

    cache = topkv.hf.TopkCache(model.config, k=256)
    model.generate(**inputs, past_key_values=cache, prefill_chunk_size=8192)

or, once for all calls::

    topkv.hf.install(model, k=256)
    model.generate(**inputs)

Needs torch and transformers 5.17. Families: ``topkv.hf.FAMILIES``.
"""

from topkv import Unsupported

try:
    import torch  # noqa: F401
    import transformers
except ImportError as error:
    raise ImportError(f'topkv.hf needs PyTorch and transformers ({error}): pip install "topkv[hf]"')

if transformers.__version__.split(".")[:2] != ["5", "17"]:
    raise Unsupported(
        f"topkv.hf reads internals of transformers and works with 5.17; {transformers.__version__} is "
        'installed: pip install "topkv[hf]"'
    )

from topkv.hf.cache import CacheMemory, TopkCache, TopkLayer
from topkv.hf.families import FAMILIES, check
from topkv.hf.install import install, uninstall
from topkv.hf.rows import close_devices

__all__ = [
    "CacheMemory",
    "FAMILIES",
    "TopkCache",
    "TopkLayer",
    "check",
    "close_devices",
    "install",
    "uninstall",
]
