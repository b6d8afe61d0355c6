"""Kernels that vanish unless x = y: no sum is left."""

import dataclasses
from typing import final

from torch import Tensor
from torch.nn.functional import linear

from fredholm.evaluation.evaluation import Queries, Route
from fredholm.evaluation.integral import Integral
from fredholm.kernels import Pointwise


@final
@dataclasses.dataclass(frozen=True)
class AtThePoint(Route[Pointwise]):
    """For `Pointwise`: one matrix product for all points."""

    marker = Pointwise
    queries = Queries.AT_POINTS

    def refusals(self, integral: Integral[Pointwise]) -> list[str]:
        """Refuses nothing; see `Route.refusals`."""
        return []

    def compute(self, integral: Integral[Pointwise]) -> Tensor:
        """See `Route.compute`."""
        kernel, u, domain = integral.kernel, integral.u, integral.domain
        if domain.mask is not None or not domain.is_uniform:
            u = u * kernel.measure(domain)[..., None].to(u.dtype)
        return linear(u, kernel.weight)
