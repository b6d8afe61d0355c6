"""What an integral over the points of all processes is made of: the points of each, and the queries held here."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from fredholm.distributed.shard import Shard
from fredholm.domains import Domain, Points, past_mass
from fredholm.evaluation.integral import Integral, order_read
from fredholm.kernels import Kernel


def shard_of(integral: Integral[Kernel]) -> Shard:
    """The domain of an integral that is shared.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(integral.domain, Shard):
        raise TypeError(f"{integral.domain!r} is no Shard")
    return integral.domain


def whole_of(domain: Domain) -> Domain:
    """All points, where a domain holds some of them; else itself."""
    return domain if domain.whole is None else domain.whole


class Places(NamedTuple):
    """Tensors that say where points are and what they weigh, alike on all processes, and which of them go together."""

    pos: Tensor  # (1 or B, N, s)
    weights: Tensor  # (B', N)
    query_pos: Tensor  # (1 or B, Nq, s), of the queries held here
    times: Tensor | None  # (B', N)
    query_times: Tensor | None  # (B', Nq)
    past: Tensor | None  # what the queries may see weighs: (B', Nq)

    @classmethod
    def of(cls, integral: Integral[Kernel]) -> Self:
        """Those of a shared integral."""
        whole, asked, kernel = whole_of(integral.domain), whole_of(integral.query_domain), integral.kernel
        query_times, times = order_read(kernel, asked, whole)
        past = past_mass(asked, whole) if kernel.averages_past else None
        here = integral.query_domain.held
        return cls(
            _batched(whole.pos, 3),
            _batched(whole.weights, 2),
            _batched(asked.pos, 3)[:, here],
            times,
            None if query_times is None else query_times[:, here],
            None if past is None else past[:, here],
        )

    def points(self, shard: Shard, owner: int) -> Points:
        """The points of one process."""
        start = sum(shard.sizes[:owner])
        at = slice(start, start + shard.sizes[owner])
        times = None if self.times is None else self.times[:, at]
        scale = torch.atleast_2d(shard.counts_per_mass)
        return Points.derived(shard.whole, self.pos[:, at], self.weights[:, at], times, counts_per_mass=scale)

    def queries(self, asked: Domain) -> Points:
        """The queries held here."""
        ones = self.query_pos.new_ones(self.query_pos.shape[:2])
        scale = ones.new_ones(1, 1)  # nobody asks what a query weighs
        return Points.derived(whole_of(asked), self.query_pos, ones, self.query_times, self.past, counts_per_mass=scale)


def _batched(values: Tensor, ndim: int) -> Tensor:
    return values if values.ndim == ndim else values[None]
