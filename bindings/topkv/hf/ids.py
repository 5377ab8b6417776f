"""The ids of the tokens that a cache holds: they distinguish a continuation of its text from another."""

from __future__ import annotations

from typing import Any

import torch

from topkv import InvalidArgument

#: The id of a token that was given as an embedding, or in a call that topkv does not see.
UNKNOWN = -1


class HeldIds:
    """Ids of a text, shared by its sessions, and ids of the tokens that follow it, a row per batch row.

    A batch of texts has a row per text too. Padding keeps the ids that it was given.

    The ids stay on the device of the given ids, so that a decode step does not wait for it. Ids beyond
    the cache's count are left over from failed calls, and are written over.
    """

    def __init__(self, text: torch.Tensor | None = None, own: torch.Tensor | None = None):
        self._text = torch.empty(1, 0, dtype=torch.int64) if text is None else text  # [1 or rows, n]
        self._own = own  # [rows, room]

    @staticmethod
    def of_text(tokens: Any, count: int) -> torch.Tensor:
        """The ids of a text, from any sequence, [count]; tokens None: unknown."""
        if tokens is None:
            return torch.full((count,), UNKNOWN)
        try:
            ids = torch.as_tensor(tokens).detach().reshape(-1)
        except (TypeError, ValueError, RuntimeError):
            ids = torch.empty(0)
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise InvalidArgument(
                f"tokens is {type(tokens).__name__}; expected the ids of the context's text as whole "
                "numbers"
            )
        if ids.shape[0] != count:
            raise InvalidArgument(
                f"tokens has {ids.shape[0]} ids and the context has {count} tokens; give one id for "
                "each token of its text"
            )
        return ids.to(torch.int64).clone()

    def put(self, at: int, ids: torch.Tensor | None, rows: int, tokens: int) -> None:
        """Sets the ids of the tokens from number `at` on, [rows, tokens]; None: unknown."""
        if ids is None or ids.shape != (rows, tokens):
            where = self._text.device if self._own is None else self._own.device
            ids = torch.full((rows, tokens), UNKNOWN, device=where)
        first = at - self._text.shape[1]
        if self._own is None or self._own.shape[1] < first + tokens:
            # Not an inference tensor: those cannot be written to outside of inference mode.
            with torch.inference_mode(False):
                room = max(256, 2 * (first + tokens))
                larger = torch.full((rows, room), UNKNOWN, device=ids.device)
                if self._own is not None and first > 0:
                    larger[:, :first] = self._own[:, :first]
            self._own = larger
        self._own[:, first : first + tokens] = ids

    def text(self, tokens: int) -> torch.Tensor:
        """The first `tokens` ids of each row: [rows, tokens]."""
        if self._own is None:
            return self._text
        text = self._text.to(self._own.device).expand(self._own.shape[0], -1)
        return torch.cat((text, self._own), dim=1)[:, :tokens].clone()

    def of_rows(self, rows: list[int]) -> HeldIds:
        """The ids with row rows[i] as batch row i."""
        text = self._text if self._text.shape[0] == 1 else self._text[rows]
        if self._own is None:
            return HeldIds(text)
        with torch.inference_mode(False):  # as in put()
            return HeldIds(text, self._own[rows])

    def check_begin(self, given: torch.Tensor, tokens: int) -> None:
        """Raises InvalidArgument unless `given` [rows, n] begins with the first `tokens` of the
        ids held, as far as they are known."""
        own = tokens - self._text.shape[1]
        parts = [(0, self._text[:, :tokens])]
        if self._own is not None and own > 0:
            parts.append((self._text.shape[1], self._own[:, :own]))
        for first, held in parts:
            mine = held.to(given.device)
            theirs = given[:, first : first + held.shape[1]]
            if 1 not in (mine.shape[0], theirs.shape[0]) and mine.shape[0] != theirs.shape[0]:
                if mine.shape[0] % theirs.shape[0]:
                    continue  # the batch is refused by itself
                theirs = theirs.repeat_interleave(mine.shape[0] // theirs.shape[0], dim=0)  # beams
            differ = (mine != theirs) & (mine != UNKNOWN)
            if not bool(differ.any()):
                continue
            row, at = (int(x) for x in differ.nonzero()[0])
            of = f" of row {row}" if differ.shape[0] > 1 else ""
            mine, theirs = (int(x.expand_as(differ)[row, at]) for x in (mine, theirs))
            raise InvalidArgument(
                f"the cache holds another text: its token {first + at}{of} is {mine}, and the given "
                f"ids have {theirs} there. Give generate the tokens that the cache holds and the "
                "tokens that follow; for another question about its text use cache.session(), for "
                "another text cache.reset()"
            )
