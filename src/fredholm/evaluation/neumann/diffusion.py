"""Diffusion along the edges of a graph, step by step. Legend: `kernels/neumann/diffusion.py`."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm._precision import wide_dtype
from fredholm.evaluation.evaluation import Queries, Route
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.listed import Gathered, per_point, row_by_row, spread
from fredholm.kernels import Diffusion


@final
@dataclasses.dataclass(frozen=True)
class Walk(Route[Diffusion]):
    """For `Diffusion`: K sums over the edges, one after the other; O(K·E·C) time and O(K·N·C) memory backward."""

    marker = Diffusion
    queries = Queries.AT_POINTS

    def refusals(self, integral: Integral[Diffusion]) -> list[str]:
        """Refuses nothing; see `Route.refusals`."""
        return []

    def compute(self, integral: Integral[Diffusion]) -> Tensor:
        """See `Route.compute`."""
        kernel, domain, dtype = integral.kernel, integral.domain, wide_dtype(integral.u)
        pairs, own = kernel.walk(domain, integral.u.shape[0])
        counted = torch.atleast_2d(kernel.measure(domain))[..., None] > 0
        start = torch.where(counted, integral.u.to(dtype), 0.0)
        v, channels = start, start.shape[-1]
        for _ in range(kernel.num_steps):
            rows = []
            for queries, points, shares, _ in pairs.groups:
                inputs = {
                    "v": per_point(v, points, domain.num_points),
                    "shares": Gathered(shares.to(dtype), torch.arange(queries.shape[0], device=v.device)),
                }
                rows.append(row_by_row(_shared, inputs, channels))
            near = spread(rows, pairs, v, channels) + own[..., None].to(dtype) * v
            v = kernel.gamma * near + (1 - kernel.gamma) * start
        return torch.where(counted, v, v / kernel.gamma).to(integral.u.dtype)


def _shared(*, v: Tensor, shares: Tensor) -> Tensor:
    """Σ_k share_k v_k, `(n, C)`."""
    return (shares[:, None] @ v)[:, 0]
