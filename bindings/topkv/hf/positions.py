"""Checks that the positions of a call continue after the tokens that the cache holds."""

from __future__ import annotations

from typing import Any

import torch

from topkv import InvalidArgument


def _require_one_text(position_ids: torch.Tensor) -> None:
    """Raises if positions begin again within a call. A TopkCache would attend across the texts, as
    transformers does over any other cache."""
    falls = (position_ids.diff(dim=-1) < 0).reshape(-1, position_ids.shape[-1] - 1).any(dim=0)
    if falls.any():
        at = int(falls.nonzero()[0]) + 1
        before, there = (int(position_ids[..., x].flatten()[0]) for x in (at - 1, at))
        raise InvalidArgument(
            f"positions of this call fall from {before} to {there} at its token {at}, as in several "
            "texts packed into one. A batch row of a TopkCache holds one text; read each text into a "
            "row of its own"
        )


def require_continuation(layer: Any, position_ids: Any) -> None:
    """Raises unless positions continue after the tokens that the cache holds.

    Some versions of generate read a prompt from its beginning again, in chunks or with an assistant.
    position_ids: [..., rows or 1, tokens]; positions of padding may have any value."""
    if not isinstance(position_ids, torch.Tensor) or not position_ids.numel():
        return
    starts = layer.starts()
    rows, tokens = position_ids.shape[-2:] if position_ids.ndim > 1 else (1, position_ids.numel())
    is_padded = any(first > 0 for first, _ in starts) or len({held for _, held in starts}) > 1
    # Else the rows go on alike.
    for row, (first, held) in enumerate(starts if is_padded else starts[:1]):
        own = position_ids
        if is_padded and rows == len(starts):
            own = position_ids.reshape(-1, rows, tokens)[:, row]
        own = own[..., first:]
        if own.shape[-1] > 1:
            _require_one_text(own)
        if held and own.numel() and not own.flatten()[0]:
            raise InvalidArgument(
                f"positions of this call begin at 0, and the cache holds {held} tokens. To continue "
                "after them, give generate the whole text, old and new, and no prefill_chunk_size; "
                "for another question use cache.session(), for another text cache.reset()"
            )
