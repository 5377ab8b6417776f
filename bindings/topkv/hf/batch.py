"""The rows of a batch: their number, which of them are alike, and their columns of padding.

A batch of texts, or of questions about a text, is padded on the left. transformers counts columns.
The rows that topkv holds leave out a batch row's padding, before its text or between the text and the
tokens that follow it.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from topkv import InvalidArgument
from topkv.hf.state import State
from topkv.hf.texts_read import TextsRead


def check_batch(state: State, batch: int) -> None:
    """Raises InvalidArgument unless the batch has the number of rows that the cache holds."""
    if batch == state.batch or state.is_empty:
        return
    texts = 1 if state.text is None else len(state.text.contexts)
    what = f"give each call {state.batch} rows, or read all texts into another cache"
    if batch % texts == 0 and (state.text is not None or state.batch == 1):
        what = f"make one with cache.session(batch={batch // texts})"
    raise InvalidArgument(f"a batch of {batch} for a cache of {state.batch} rows: {what}")


def rows_alike(
    state: State,
    prompts: int,
    ids: torch.Tensor | None,
    pads: tuple[int, ...],
) -> int:
    """How many consecutive batch rows have one text: beams and samples of a prompt.

    ids [batch, tokens], pads: of the call that reads. prompts: number of prompts that generate was
    given; 0: unknown."""
    alike = 1
    if isinstance(state.rows, TextsRead):
        alike = state.rows.alike
    elif prompts and state.batch % prompts == 0:
        alike = state.batch // prompts
    if alike == 1:
        return 1
    first = [row - row % alike for row in range(state.batch)]
    if ids is not None and ids.shape[0] == state.batch and bool((ids == ids[first]).all()):
        if pads == tuple(pads[row] for row in first):
            return alike
    if isinstance(state.rows, TextsRead):
        raise InvalidArgument(
            f"batch rows 0 to {alike - 1} were read as one prompt of generate, and this call gives "
            "them different tokens; call cache.freeze() first"
        )
    return 1


def _refuse(mask: torch.Tensor, wrong: torch.Tensor, first: int) -> NoReturn:
    """wrong: bool [batch, columns], for the columns from number `first` on."""
    row, at = (int(x) for x in wrong.nonzero()[0])
    does = "shows" if mask[row, first + at] else "hides"
    raise InvalidArgument(
        f"attention_mask {does} token {first + at} of batch row {row}, unlike the cache or the tokens "
        "before it; expected padding on the left: before a text, or between a text that was read and "
        'new tokens, unchanged from call to call. Tokenize with padding_side="left", and give each '
        "call the mask of all tokens, old and new"
    )


def pads_after(state: State, mask: torch.Tensor | None, tokens: int) -> tuple[int, ...]:
    """Columns of padding in each batch row after a call adds `tokens` columns.

    Once the text is frozen, only the columns after it count; while texts are read, all count.
    mask: [batch, all columns]; None: no padding.

    Raises InvalidArgument for a mask that is not padded on the left, or differs from the cache."""
    ends = state.ends_text(tokens)
    text = state.tokens if ends else state.text_tokens
    of_text = _pads_of_text(state, ends)
    held = (0,) * state.batch if ends else state.pads
    if mask is None:
        if any(of_text) or any(held):
            raise InvalidArgument(
                "this cache holds padded rows and the call has no attention_mask; give it one of "
                f"shape [{state.batch}, {state.tokens + tokens}], for all tokens, old and new"
            )
        return held
    if not any(of_text) and not any(held) and bool(mask.all()):
        return held
    shown = mask.to("cpu", torch.bool)
    columns = torch.arange(text)
    wrong = shown[:, :text] != (columns >= torch.tensor(of_text)[:, None])
    if bool(wrong.any()):
        _refuse(shown, wrong, 0)
    behind = shown[:, text:]
    own = state.tokens - text  # columns held
    new = (~behind).long().cumprod(dim=1).sum(dim=1)
    # What is padding so far may go on; what has a token has no more of it.
    pads = torch.tensor([int(x) if before >= own else before for x, before in zip(new, held)])
    pads = torch.maximum(pads, torch.tensor(held))
    wrong = behind != (torch.arange(behind.shape[1]) >= pads[:, None])
    if bool(wrong.any()):
        _refuse(shown, wrong, text)
    return tuple(pads.tolist())


def _pads_of_text(state: State, ends: bool) -> tuple[int, ...]:
    if ends:
        return state.pads
    if state.text is None:
        return (0,) * state.batch
    return tuple(state.text.pads[state.text.of_row(row)] for row in range(state.batch))
