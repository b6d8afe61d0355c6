"""Kernels that factor through features of one point: one sum over the keys, then one table for all queries."""

import dataclasses
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from fredholm.domains import Domain
from fredholm.evaluation.evaluation import Evaluation
from fredholm.evaluation.factors import chunk_elements, feature_sums, feature_tables, side_tensors, working_dtype
from fredholm.kernels import Factorised, Kernel


@final
@dataclasses.dataclass(frozen=True)
class FactorisedSum(Evaluation):
    """For `Factorised` kernels: O(N·w·d) time, S = Σ_j ω_j h_j ⊗ u_j once, T = mix(S), then h_i T at every query.

    Features are computed chunk by chunk, and again in the backward pass: memory is O(N·C), whatever the rank. In low
    precision features are rounded, and sums are kept in float32.

    Args:
        chunk_elements: features that exist at one time; None: 2^19 on a CPU, 2^26 elsewhere.
    """

    marker = Factorised
    chunk_elements: int | None = None

    def refusals(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None
    ) -> list[str]:
        """Refuses causal kernels; see `Evaluation.unsupported_reasons`."""
        return ["the kernel is causal, so that every query has a sum of its own"] if kernel.is_causal else []

    def integrate(
        self, kernel: Kernel, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """See `Evaluation.integrate`."""
        assert isinstance(kernel, Factorised)
        query, query_domain = (u if query is None else query), (domain if query_domain is None else query_domain)
        elements = self.chunk_elements or chunk_elements(u)
        return integrate_factorised(
            kernel,
            (u, domain),
            (query, query_domain),
            lambda tensors, activation: feature_sums(tensors, activation, elements),
            lambda tensors, activation: feature_tables(tensors, activation, elements),
        )


FeatureSum = Callable[[list[Tensor], str], Tensor]
"""From the tensors that `feature_sums` takes, or `feature_tables`, and the activation: S, or h_i T."""


def integrate_factorised(
    kernel: Factorised,
    keys: tuple[Tensor, Domain],
    queries: tuple[Tensor, Domain],
    sums_of: FeatureSum,
    tables_of: FeatureSum,
) -> Tensor:
    """The integral by `sums_of` at the keys, a signal and its domain, and `tables_of` at the queries."""
    (u, domain), (query, query_domain) = keys, queries
    own, dtype = kernel.features, working_dtype(u)
    activation = own.key.activation
    value = u.unflatten(-1, (kernel.num_heads, -1)).to(dtype)
    mass = torch.atleast_2d(kernel.measure(domain)).to(torch.promote_types(dtype, torch.float32))
    lifted = own.lift(domain)
    sums = sums_of([*side_tensors(own, own.key, u, lifted, dtype), value, mass], activation)
    with torch.autocast(u.device.type, enabled=False):
        table = kernel.mix(sums)
    lifted = lifted if query_domain is domain else own.lift(query_domain)
    return tables_of([*side_tensors(own, own.query, query, lifted, dtype), table], activation).flatten(2)
