"""Sums and multiples of kernels: every part by its own fastest route."""

import dataclasses
from collections.abc import Callable
from typing import final

from torch import Tensor

from fredholm.domains import Domain
from fredholm.evaluation.evaluation import Evaluation
from fredholm.kernels import Kernel, Scaled, Sum

Select = Callable[[Kernel, Tensor, Domain, Tensor | None, Domain | None], Evaluation]


@final
@dataclasses.dataclass(frozen=True)
class TermByTerm(Evaluation):
    """For `Sum` and `Scaled`: the integral is linear in κ, so each part takes the fastest route that fits it.

    Args:
        select: picks the route of a part.
    """

    select: Select
    marker = Sum | Scaled
    weighs_pairs = True

    def refusals(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> list[str]:
        """Refuses nothing; see `Evaluation.unsupported_reasons`."""
        return []

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        if isinstance(kernel, Scaled):
            return kernel.gate * self._part(kernel.kernel, u, domain, query, query_domain)
        assert isinstance(kernel, Sum)
        first, *others = (self._part(term, u, domain, query, query_domain) for term in kernel.kernels)
        for other in others:
            first = first + other
        return first

    def _part(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> Tensor:
        route = self.select(kernel, u, domain, query, query_domain)
        return route.integrate(kernel, u, domain, query, query_domain)
