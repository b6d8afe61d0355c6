"""The parts of a sharded integral: the points of each process, and the queries held here."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from fredholm.distributed.shard import Shard
from fredholm.domains import Domain, Points, past_mass
from fredholm.evaluation.integral import Integral, order_read
from fredholm.kernels import Kernel


def shard_of(integral: Integral[Kernel]) -> Shard:
    """The `Shard` of a sharded integral.

    Raises:
        TypeError: its domain is no `Shard`.
    """
    if not isinstance(integral.domain, Shard):
        raise TypeError(f"{integral.domain!r} is no Shard")
    return integral.domain


def whole_of(domain: Domain) -> Domain:
    """The whole domain of a shard; else the domain itself."""
    return domain if domain.whole is None else domain.whole


class Places(NamedTuple):
    """Positions, masses and times of all points and of the queries held here, and the slice of each process."""

    pos: Tensor  # (1 or B, N, s)
    weights: Tensor  # (B', N)
    query_pos: Tensor  # (1 or B, Nq, s), of the queries held here
    times: Tensor | None  # (B', N)
    query_times: Tensor | None  # (B', Nq)
    past: Tensor | None  # mass of the points that the queries may see: (B', Nq)

    @classmethod
    def of(cls, integral: Integral[Kernel]) -> Self:
        """The `Places` of a sharded integral."""
        whole, query_domain, kernel = whole_of(integral.domain), whole_of(integral.query_domain), integral.kernel
        query_times, times = order_read(kernel, query_domain, whole)
        past = past_mass(query_domain, whole) if kernel.averages_past else None
        here = integral.query_domain.held
        return cls(
            _batched(whole.pos, 3),
            _batched(whole.weights, 2),
            _batched(query_domain.pos, 3)[:, here],
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

    def queries(self, query_domain: Domain) -> Points:
        """The queries held here."""
        ones = self.query_pos.new_ones(self.query_pos.shape[:2])
        scale = ones.new_ones(1, 1)  # the masses of queries are not used
        return Points.derived(
            whole_of(query_domain), self.query_pos, ones, self.query_times, self.past, counts_per_mass=scale
        )


def _batched(values: Tensor, ndim: int) -> Tensor:
    return values if values.ndim == ndim else values[None]
