"""How texts are read: the mode of their prefill, by the length of the text and by the memory of a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import topkv

#: Tokens of a text whose length is not known.
_ANY_LENGTH = 2**62


@dataclass(frozen=True)
class PrefillMode:
    """Decides on the mode for texts of one cache.

    options: of the ContextBuilder, with the mode that was asked for. tokens: of a text; 0: not known.
    room: returns the bytes of the device's memory that are left."""

    options: dict[str, Any]
    shape: topkv.AttentionShape
    device: topkv.Device
    dtype: str
    tokens: int = 0
    room: Callable[[], int] = lambda: 0

    @property
    def asked(self) -> str:
        return self.options["prefill"]

    @property
    def takes_memory(self) -> bool:
        """Whether a text may keep all rows of one layer in the device's memory while it is read."""
        return self.device.is_cuda and self.asked in ("auto", "sparse")

    def of(self, capacity: int, chunk: int, texts: int = 1) -> str:
        """The mode for texts whose rows are reserved for `capacity` tokens, in calls of up to `chunk`
        tokens. texts: the number of texts that will take memory."""
        if self.asked != "auto":
            return self.asked
        by_length = self._auto(self.tokens or _ANY_LENGTH)
        if by_length != "sparse" or self.fits(capacity, chunk, texts):
            return by_length
        warnings.warn(
            f'prefill="auto" reads this text densely: a sparse prefill of {texts * capacity} tokens, in '
            f"calls of up to {chunk}, does not fit into the {self.room()} bytes of memory that "
            f"{self.device.name} has left. Shorter calls (prefill_chunk_size) take less; device_memory "
            "is topkv's limit",
            stacklevel=2,
        )
        return "dense"

    def fits(self, capacity: int, chunk: int, texts: int = 1) -> bool:
        """Whether the device has the memory for a sparse prefill."""
        if not self.takes_memory:
            return True
        has = {"memory": self.room() // texts, "capacity": capacity, "chunk": chunk, "dtype": self.dtype}
        return self._auto(_ANY_LENGTH, **has) == "sparse"

    def capacity_for(self, wanted: int, held: int, chunk: int, texts: int) -> int:
        """The capacity of a text that outgrows `held` tokens and needs `wanted`: twice as much, so that
        copying is linear, or a quarter more if only that fits. texts: as for `of`."""
        doubled = max(wanted, 2 * held)
        if not self.takes_memory or self.fits(doubled, chunk, texts):
            return doubled
        less = max(wanted, held + held // 4)
        if self.fits(less, chunk, texts):
            return less
        return doubled if self.asked == "auto" else wanted

    def _auto(self, tokens: int, **memory: Any) -> str:
        choice = {name: self.options[name] for name in ("window", "sinks")}
        choice["keys"] = self.options["prefill_keys"]
        return topkv.resolve_prefill("auto", tokens, self.device, shape=self.shape, **choice, **memory)


def room_of(device: topkv.Device, where: torch.device) -> int:
    """The bytes of memory that topkv may still take on a device, 0 on the host."""
    if not device.is_cuda:
        return 0
    memory = device.memory()
    free, _ = torch.cuda.mem_get_info(where)
    return max(0, min(memory.ceiling - memory.used, free))
