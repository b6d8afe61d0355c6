"""How much shorter contexts are trusted beside longer ones, by how often these came (Jelinek and Mercer, 1980)."""

import torch
from torch import Tensor

_TIMES, _KINDS = 10, 6
NUM_BINS = _TIMES * _KINDS
"""Of how often a context came, by powers of 2, and of how many tokens came after it."""
_ITERATIONS = 50


def bins(times: Tensor, kinds: Tensor) -> Tensor:
    """By how often contexts came, and how many kinds followed; of those that did not come, any."""
    of_times = torch.zeros_like(times, dtype=torch.int64)
    for power in range(1, _TIMES):  # logarithms of powers of 2 are rounded elsewhere
        of_times = of_times + (times >= 2**power).long()
    return of_times * _KINDS + kinds.long().clamp(1, _KINDS) - 1


def interpolation(of_place: Tensor, shorter: Tensor, share: Tensor) -> Tensor:
    """λ of each bin by which what came is likeliest, as if each had one more of either.

    Args:
        of_place: int64 `(n,)`, the bins of some places.
        shorter, share: `(n,)`, the probability of what came there by shorter contexts, and its share after this one.
    """
    weight = torch.full((NUM_BINS,), 0.5, dtype=torch.float64)
    count = of_place.bincount(minlength=NUM_BINS)
    for _ in range(_ITERATIONS):
        part = weight[of_place] * shorter
        of_shorter = part / (part + (1 - weight[of_place]) * share)
        weight = (of_shorter.new_zeros(NUM_BINS).index_add(0, of_place, of_shorter) + 1) / (count + 2)
    return weight
