"""The route to the fused sums of features."""

import dataclasses
from typing import final

from torch import Tensor

from fredholm.evaluation.evaluation import Route
from fredholm.evaluation.features.feature_sum import integrate_features
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.triton.feature_op import feature_sums_triton, feature_tables_triton
from fredholm.evaluation.triton.machine import LARGEST_DIM, machine_refusals
from fredholm.kernels import FeatureFactorised


@final
@dataclasses.dataclass(frozen=True)
class TritonFeatureSum(Route[FeatureFactorised]):
    """For `FeatureFactorised` kernels on a GPU: `FeatureSum` whose features are never in memory.

    Machines, dtypes, precision and determinism as in `TritonTiled`.
    """

    marker = FeatureFactorised

    def refusals(self, integral: Integral[FeatureFactorised]) -> list[str]:
        """Refuses machines and dtypes without such kernels, large heads, and what `FeatureSum` refuses."""
        kernel = integral.kernel
        reasons = machine_refusals(integral.u)
        if reasons:
            return reasons
        dim, frequencies = kernel.in_dim // kernel.num_heads, kernel.features.num_frequencies
        if kernel.is_causal:
            reasons.append("the kernel is causal, so that every query has a sum of its own")
        if dim > LARGEST_DIM:
            reasons.append(f"a head has {dim} channels, above {LARGEST_DIM}")
        if frequencies > LARGEST_DIM:
            reasons.append(f"the kernel has {frequencies} frequencies, above {LARGEST_DIM}")
        return reasons

    def compute(self, integral: Integral[FeatureFactorised]) -> Tensor:
        """See `Route.compute`."""
        return integrate_features(
            integral,
            lambda inputs, activation: feature_sums_triton(inputs, activation).sums,
            lambda inputs, activation: feature_tables_triton(inputs, activation).read,
        )
