"""Kernels that vanish unless x = y: no sum is left."""

import dataclasses
from typing import final

from torch import Tensor
from torch.nn.functional import linear

from fredholm.domains import Domain
from fredholm.evaluation.evaluation import Evaluation
from fredholm.kernels import Kernel, Pointwise


@final
@dataclasses.dataclass(frozen=True)
class AtThePoint(Evaluation):
    """For `Pointwise`: one matrix product for all points."""

    marker = Pointwise

    def refusals(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> list[str]:
        """Refuses queries that are not the points of the signal."""
        assert isinstance(kernel, Pointwise)
        if query_domain is not None and query_domain is not domain:
            return ["the queries are not the points of the signal"]
        return []

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        assert isinstance(kernel, Pointwise)
        if domain.mask is not None or domain.uniform_parts is None or len(domain.uniform_parts) > 1:
            u = u * kernel.measure(domain)[..., None].to(u.dtype)
        return linear(u, kernel.weight)
