"""Some points of a domain, as a domain of their own."""

import torch
from torch import Tensor

from fredholm.domains.domain import Domain
from fredholm.domains.points import Points


def subset(domain: Domain, index: Tensor, weights: Tensor, times: Tensor | None = None) -> Points:
    """The points of a domain that `index` names, perhaps some of them more than once.

    Args:
        domain: N points.
        index: `(M,)` or `(B, M)` int64 in [0, N).
        weights: mass of each, of the shape of `index`, >= 0; 0 removes a point.
        times: when each point of the domain is, `(N,)` or `(B, N)`, non-decreasing along `index`; None: no order.
    """
    coordinates = domain.pos.movedim(-1, 0)  # (s, N) or (s, B, N)
    if coordinates.ndim == index.ndim == 2:
        coordinates = coordinates[:, None]
    chosen = _at(coordinates, index).movedim(0, -1)
    return Points.derived(domain, chosen, weights, None if times is None else _at(times, index))


def _at(values: Tensor, index: Tensor) -> Tensor:
    """`(..., N)` at `(..., M)`, with the axes before broadcast."""
    batch = torch.broadcast_shapes(values.shape[:-1], index.shape[:-1])
    return values.expand(*batch, -1).gather(-1, index.expand(*batch, -1))
