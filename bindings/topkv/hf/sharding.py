"""A context sharded by sequence: every rank holds the rows of its part of the tokens.

All ranks run one model on the same tokens, and each has all queries. Each rank stores K and V of its
part and attends its own rows. The ranks' (out, lse) are merged, which gives attention over the union
(see topkv/attention.h).
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from topkv import InvalidArgument


class SequenceShards:
    """This process's place among the processes that share a context."""

    def __init__(self, group: dist.ProcessGroup | None = None):
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidArgument(
                'shard="sequence" works across processes: start with torchrun and call '
                "torch.distributed.init_process_group() first"
            )
        self._group = group
        self._rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)

    def prefill_part(self, tokens: int) -> tuple[int, int]:
        """The first token and the number of tokens of a prefill call that this rank stores."""
        first = tokens * self._rank // self.ranks
        return first, tokens * (self._rank + 1) // self.ranks - first

    def session_part(self, tokens: int) -> tuple[int, int]:
        """The same pair for a session's own tokens; the last rank stores all of them."""
        return (0, tokens) if self.has_own_tokens() else (0, 0)

    @property
    def is_first(self) -> bool:
        return self._rank == 0

    def has_own_tokens(self) -> bool:
        return self._rank == self.ranks - 1

    def merge(self, out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention over the rows of all ranks, by one all-gather, with equal bits on each rank.

        out [..., head_dim] and lse [...], float32; a rank without rows has lse -inf.
        """
        mine = torch.cat((out, lse.unsqueeze(-1)), dim=-1)
        parts = mine.new_empty((self.ranks, *mine.shape))
        dist.all_gather_into_tensor(parts.view(-1), mine.view(-1), group=self._group)
        all_lse = parts[..., -1]
        total = torch.logsumexp(all_lse, dim=0)
        weights = torch.exp(all_lse - total)
        return (parts[..., :-1] * weights.unsqueeze(-1)).sum(dim=0), total
