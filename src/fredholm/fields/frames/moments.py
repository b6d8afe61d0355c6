"""What frames read of a set of samples: weighted moments, and what is missing for them.

Legend
    p_i      share of sample i in the weight of its set       μ      Σ p_i x_i
    s²       Σ p_i ‖x_i - μ‖²
"""

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.domains.checks import values_can_be_read


class Moments(NamedTuple):
    """Of B sets in R^s, float64."""

    shares: Tensor
    """p, `(B, N)`; sums to 1, or is all 0 in an empty set."""
    mean: Tensor
    """μ, `(B, s)`."""
    centred: Tensor
    """x - μ, `(B, N, s)`; 0 where a sample has no weight."""
    variance: Tensor
    """s², `(B)`; 1 where all samples coincide."""
    is_point: Tensor
    """Whether samples coincide up to rounding, `(B)` bool; true for one sample and for none."""


def moments(domain: Domain) -> Moments:
    """The moments of each set."""
    pos = (domain.pos if domain.pos.ndim == 3 else domain.pos[None]).double()
    weights = (domain.weights if domain.weights.ndim == 2 else domain.weights[None]).double()
    total = weights.sum(-1, keepdim=True)
    shares = weights / torch.where(total > 0, total, 1.0)
    batch = max(pos.shape[0], shares.shape[0])
    pos, shares = pos.expand(batch, -1, -1), shares.expand(batch, -1)
    mean = (shares[..., None] * pos).sum(-2)
    counts = (shares > 0)[..., None]
    centred = torch.where(counts, pos - mean[:, None], 0.0)
    variance = (shares * centred.square().sum(-1)).sum(-1)
    size = torch.where(counts, pos, 0.0).detach().abs().flatten(1)
    largest = size.amax(-1) if size.shape[-1] else size.new_zeros(batch)
    rounding = 64 * torch.finfo(pos.dtype).eps * largest
    is_point = variance.detach() <= rounding.square()
    return Moments(shares, mean, centred, torch.where(is_point, 1.0, variance), is_point)


def warn(name: str, found: dict[str, Tensor]) -> None:
    """One RuntimeWarning in the name of a frame: in how many sets each of `found` happened. None if in no set."""
    if not values_can_be_read(*found.values()):
        return
    told = [
        f"{what} in {int(where.sum())} of {where.shape[0]} sets" for what, where in found.items() if bool(where.any())
    ]
    if told:
        warnings.warn(f"fields.{name}: {'; '.join(told)}", RuntimeWarning, stacklevel=4)
