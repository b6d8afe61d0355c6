"""Kernels that factor through features of one point: one sum over the keys, then one table for all queries."""

import dataclasses
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.features.sides import chunk_elements, feature_inputs, working_dtype
from fredholm.evaluation.features.sums import SumInputs, feature_sums
from fredholm.evaluation.features.tables import TableInputs, feature_tables
from fredholm.evaluation.integral import Integral
from fredholm.kernels import FeatureFactorised


@final
@dataclasses.dataclass(frozen=True)
class FeatureSum(Route[FeatureFactorised]):
    """For `FeatureFactorised` kernels: O(N·w·d) time; S = Σ_j ω_j h_j ⊗ u_j and T = mix(S) once, h_i T at every query.

    Features are computed chunk by chunk, and again in the backward pass: memory is O(N·C), whatever the rank. In low
    precision features are rounded, and sums are kept in float32.

    Args:
        chunk_elements: features that exist at one time; None: 2^19 on a CPU, 2^26 elsewhere.
    """

    marker = FeatureFactorised
    chunk_elements: int | None = None

    def refusals(self, integral: Integral[FeatureFactorised]) -> list[str]:
        """Refuses causal kernels; see `Route.refusals`."""
        return ["the kernel is causal, so that every query has a sum of its own"] if integral.kernel.is_causal else []

    def compute(self, integral: Integral[FeatureFactorised]) -> Tensor:
        """See `Route.compute`."""
        elements = self.chunk_elements or chunk_elements(integral.u)
        return integrate_features(
            integral,
            lambda inputs, activation: feature_sums(inputs, activation, elements).sums,
            lambda inputs, activation: feature_tables(inputs, activation, elements).read,
        )


def integrate_features(
    integral: Integral[FeatureFactorised],
    sums_of: Callable[[SumInputs, str], Tensor],
    tables_of: Callable[[TableInputs, str], Tensor],
) -> Tensor:
    """The integral by S at the keys and h_i T at the queries; both functions take the activation too."""
    kernel, u, domain = integral.kernel, integral.u, integral.domain
    own, dtype = kernel.features, working_dtype(u)
    activation = own.key.activation
    value = u.unflatten(-1, (kernel.num_heads, -1)).to(dtype)
    mass = torch.atleast_2d(kernel.measure(domain)).to(torch.promote_types(dtype, torch.float32))
    lifted = own.lift(domain)
    sums = sums_of(SumInputs(*feature_inputs(own, own.key, u, lifted, dtype), value, mass), activation)
    with torch.autocast(u.device.type, enabled=False):
        table = kernel.mix(sums)
    lifted = lifted if integral.own_positions else own.lift(integral.query_domain)
    side = feature_inputs(own, own.query, integral.query, lifted, dtype)
    return tables_of(TableInputs(*side, table), activation).flatten(2)
