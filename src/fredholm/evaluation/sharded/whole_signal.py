"""Integrals that need all points at once: every process gathers the whole signal, and keeps its queries' part."""

import dataclasses
from typing import final

from torch import Tensor

from fredholm.distributed.collectives import gathered
from fredholm.distributed.shard import Shard
from fredholm.evaluation.evaluation import Evaluation, Route
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.sharded.parts import Places, shard_of, whole_of
from fredholm.kernels import Kernel, Scaled, Sum


@final
@dataclasses.dataclass(frozen=True)
class WholeSignal(Route[Kernel]):
    """For any kernel on a sharded signal: each process gathers all points, so it needs the memory of a single process.

    A pairwise kernel that is not causal is evaluated only at the queries held here. For others, such as a convolution
    by transforms or a series of hops, every process computes the whole.

    Args:
        parts: evaluation of the whole.
    """

    spans_processes = needs_processes = True
    parts: Evaluation

    def refusals(self, integral: Integral[Kernel]) -> list[str]:
        """Refuses sums and multiples; see `Route.refusals`."""
        return ["each term takes its own route"] if isinstance(integral.kernel, Sum | Scaled) else []

    def compute(self, integral: Integral[Kernel]) -> Tensor:
        """See `Route.compute`."""
        whole = self._whole(integral)
        found = self.parts.integrate(whole)
        return found if whole.num_queries == integral.num_queries else found[:, integral.query_domain.held]

    def details(self, integral: Integral[Kernel]) -> list[str]:
        """The share that each process computes."""
        own = "its own queries" if _asks_alone(integral.kernel) else "all queries"
        return [f"each of {len(shard_of(integral).sizes)} processes holds all points, and computes {own}"]

    def _whole(self, integral: Integral[Kernel]) -> Integral[Kernel]:
        shard, query_domain, kernel = shard_of(integral), integral.query_domain, integral.kernel
        u = gathered(integral.u, shard.sizes, shard.group)
        if _asks_alone(kernel):
            query = integral.query if integral.has_query_signal else None
            found = Integral(kernel, u, shard.whole, query, Places.of(integral).queries(query_domain))
        elif integral.own_queries:
            found = Integral(kernel, u, shard.whole)
        else:
            known = integral.has_query_signal
            query = integral.query if known else None
            if query is not None and isinstance(query_domain, Shard):
                query = gathered(query, query_domain.sizes, query_domain.group)
            found = Integral(kernel, u, shard.whole, query, whole_of(query_domain))
        return found.differentiable_as(integral)


def _asks_alone(kernel: Kernel) -> bool:
    """Whether the integral at some queries does not depend on the others."""
    return kernel.is_pairwise and not kernel.is_causal
