"""A method of one's own for finding rows, as `python -m topkv.eval` takes it.

    python -m topkv.eval -m models/needle-14m --tasks niah_single_2 --lengths 4K --samples 3 \\
        --methods "dense;exact;examples/python/own_method.py:Pages" --budgets 64

does what this file does by itself; further flags go to it.

Pages of 16 rows, of which those are attended whose mean key scores highest; for all other rows their
mean value stands. (A sketch after Quest, Tang et al. 2024, which bounds a page's scores instead.)
"""

import math
import sys
from pathlib import Path

import torch

PAGE = 16


class Pages:
    """Each layer and KV head has an object of its own."""

    def prepare(self, keys, values):
        """Once for a text: keys and values [n, dim] are all rows that may be asked for."""
        self.means = torch.stack([page.mean(0) for page in keys.split(PAGE)])

    def search(self, queries, keys, k, scale):
        """Positions of at most k of the keys [n, dim], for the queries [group, dim] of a token: here
        the same for all of a group, [<= k]. The first n rows of the text are there, up to the window."""
        pages = len(keys) // PAGE  # whole ones; what is left of the last is in no page
        best = (queries @ self.means[:pages].T).amax(0).topk(min(k // PAGE, pages)).indices
        rows = best[:, None] * PAGE + torch.arange(PAGE, device=keys.device)
        return rows.flatten()

    def tail(self, queries, keys, values, selected, scale):
        """What stands for all other rows: out [group, dim] and lse [group], the natural log of their
        sum of exp(scale * q k). Here each has the score and the value of their mean."""
        left = torch.ones(len(keys), dtype=torch.bool, device=keys.device)
        left[selected] = False
        if not left.any():
            return torch.zeros_like(queries), queries.new_full((len(queries),), -math.inf)
        lse = scale * queries @ keys[left].mean(0) + math.log(int(left.sum()))
        return values[left].mean(0).expand_as(queries), lse


def main() -> int:
    from topkv.eval.__main__ import main as evaluate

    model = Path(__file__).resolve().parents[2] / "models" / "needle-14m"
    flags = ["-m", str(model), "--tasks", "niah_single_2", "--lengths", "4K", "--samples", "3"]
    flags += ["--methods", f"dense;exact;{__file__}:Pages", "--budgets", "64"]
    return evaluate([*flags, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
