"""Kernels that factor through features of one point, on listed pairs. Legend: `features.py`, `evaluation/listed.py`."""

import dataclasses
from typing import final

import torch
from torch import Tensor

from fredholm._precision import wide_dtype, without_autocast
from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.listed import Gathered, pair_mass, per_point, row_by_row, spread
from fredholm.kernels import FeatureFactorised


@final
@dataclasses.dataclass(frozen=True)
class ListedFeatures(Route[FeatureFactorised]):
    """For `FeatureFactorised` kernels and listed pairs: features once per point, a sum and a table for each query.

    Cost per pair and head 2w·d flops, and per query that of mixing a sum; memory linear in points and pairs.
    """

    marker = FeatureFactorised
    lists_pairs = needs_list = True

    def refusals(self, integral: Integral[FeatureFactorised]) -> list[str]:
        """Refuses causal kernels; see `Route.refusals`."""
        return ["the kernel is causal"] if integral.kernel.is_causal else []

    def compute(self, integral: Integral[FeatureFactorised]) -> Tensor:
        """See `Route.compute`."""
        kernel, u, domain, dtype = integral.kernel, integral.u, integral.domain, integral.working_dtype
        assert domain.pair_list is not None
        pairs, rows = domain.pair_list.repeated(u.shape[0]), []
        h, key = (
            side.to(dtype).transpose(1, 2)
            for side in kernel.both_sides(u, domain, integral.query, integral.query_domain)
        )
        values = u.to(dtype).unflatten(-1, (kernel.num_heads, -1))
        made = 3 * kernel.num_heads * key.shape[-1] * values.shape[-1]
        for group in pairs.groups:
            inputs = {
                "h": per_point(h, group.queries, integral.num_queries),
                "key": per_point(key, group.points, domain.num_points),
                "values": per_point(values, group.points, domain.num_points),
                "mass": Gathered(pair_mass(integral, group), torch.arange(group.queries.shape[0], device=u.device)),
            }
            rows.append(row_by_row(_Tables(kernel), inputs, kernel.out_dim, module=kernel, row_elements=made))
        return spread(rows, pairs, u, kernel.out_dim).to(dtype)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Tables:
    """The integral over the points of each row."""

    kernel: FeatureFactorised

    def __call__(self, *, h: Tensor, key: Tensor, values: Tensor, mass: Tensor) -> Tensor:
        """`(n, H·d)` from h `(n, H, w + 1)`, h' and u `(n, K, H, ...)`, and masses `(n, K)`."""
        dtype = wide_dtype(h)
        weighed = (values.to(dtype) * mass[..., None, None].to(dtype)).transpose(1, 2)  # (n, H, K, d)
        sums = key.to(dtype).permute(0, 2, 3, 1) @ weighed  # S: (n, H, w + 1, d)
        with without_autocast(h):
            table = self.kernel.mix(sums)
        return (h[:, :, None].to(dtype) @ table).flatten(1)
