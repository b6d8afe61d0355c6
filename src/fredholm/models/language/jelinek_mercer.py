"""Interpolation weights of n-gram models, by counts of contexts (Jelinek and Mercer, 1980)."""

import torch
from torch import Tensor

_TIMES, _KINDS = 10, 6
NUM_BINS = _TIMES * _KINDS
"""Number of bins of contexts: by their count, in powers of 2, and by the number of distinct next tokens."""
_ITERATIONS = 50


def bins(times: Tensor, kinds: Tensor) -> Tensor:
    """Bins of contexts by their counts and numbers of distinct next tokens; arbitrary for counts of 0."""
    of_times = torch.zeros_like(times, dtype=torch.int64)
    for power in range(1, _TIMES):  # not by log2, which rounds powers of 2 on some devices
        of_times = of_times + (times >= 2**power).long()
    return of_times * _KINDS + kinds.long().clamp(1, _KINDS) - 1


def interpolation(of_place: Tensor, shorter: Tensor, share: Tensor) -> Tensor:
    """Maximum-likelihood λ of each bin, with one pseudo-count for either case.

    Args:
        of_place: int64 `(n,)`, bins of n positions.
        shorter, share: `(n,)`, probability of the next token by shorter contexts, and its relative frequency after
            the position's context.
    """
    weight = torch.full((NUM_BINS,), 0.5, dtype=torch.float64)
    count = of_place.bincount(minlength=NUM_BINS)
    for _ in range(_ITERATIONS):
        part = weight[of_place] * shorter
        of_shorter = part / (part + (1 - weight[of_place]) * share)
        weight = (of_shorter.new_zeros(NUM_BINS).index_add(0, of_place, of_shorter) + 1) / (count + 2)
    return weight
