"""Some points of a domain, as a domain of their own."""

from torch import Tensor

from fredholm.domains.domain import Domain
from fredholm.domains.points import Points


def subset(domain: Domain, index: Tensor, weights: Tensor, times: Tensor | None = None) -> Points:
    """The points of a domain that `index` names, perhaps some of them more than once.

    Args:
        domain: N points.
        index: `(B, M)` int64 in [0, N).
        weights: mass of each, `(B, M)`, >= 0; 0 removes a point.
        times: when each point of the domain is, `(N,)` or `(B, N)`, non-decreasing along `index`; None: no order.
    """
    pos = domain.pos if domain.pos.ndim == 3 else domain.pos.expand(len(index), -1, -1)
    chosen = pos.gather(1, index[..., None].expand(-1, -1, pos.shape[-1]))
    if times is not None:
        times = times.expand(len(index), -1).gather(1, index)
    return Points.derived(domain, chosen, weights, times)
