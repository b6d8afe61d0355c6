"""The fused sums of features: the route, and its two operators."""

import dataclasses
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.evaluation import Integral
from fredholm.evaluation.features.feature_sum import (
    SumInputs,
    TableInputs,
    integrate_features,
    plain_sums,
    plain_tables,
    sums_like,
    tables_like,
)
from fredholm.evaluation.features.features import FeatureInputs, FeatureOutputs
from fredholm.evaluation.triton.machine import LARGEST_DIM, FusedRoute
from fredholm.kernels import FeatureFactorised

if TYPE_CHECKING:
    from fredholm.evaluation.triton.features import FusedFeatures


@final
@dataclasses.dataclass(frozen=True)
class TritonFeatureSum(FusedRoute[FeatureFactorised]):
    """For `FeatureFactorised` kernels on a GPU: `FeatureSum` whose features are never in memory.

    Machines, dtypes, precision and determinism as in `TritonTiled`.
    """

    marker = FeatureFactorised
    spans_processes = True

    def unfused(self, integral: Integral[FeatureFactorised]) -> list[str]:
        """Large heads, and what `FeatureSum` refuses; see `FusedRoute.unfused`."""
        kernel, reasons = integral.kernel, []
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
            lambda *given: feature_sums_triton(*given).out,
            lambda *given: feature_tables_triton(*given).out,
        )


def _sums(inputs: SumInputs, activation: str, dtype: torch.dtype) -> FeatureOutputs:
    with torch.cuda.device_of(inputs.bias):
        return FeatureOutputs(_weighed(inputs, activation, dtype).sums(inputs.content))


def _sums_backward(
    inputs: SumInputs,
    _: FeatureOutputs,
    grads: FeatureOutputs,
    wanted: frozenset[str],
    activation: str,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    with torch.cuda.device_of(grads.out):
        own = _weighed(inputs, activation, dtype)
        found = own.gradients(inputs.content, grads.out, wanted, read=True)
        if "weights" in wanted:
            each = (own.tables(grads.out).float() * inputs.content).sum((2, 3))
            found["weights"] = each.sum_to_size(inputs.weights.shape)
        return found


def _tables(inputs: TableInputs, activation: str, dtype: torch.dtype) -> FeatureOutputs:
    with torch.cuda.device_of(inputs.bias):
        return FeatureOutputs(_fused(inputs, activation, dtype).tables(inputs.table))


def _tables_backward(
    inputs: TableInputs,
    _: FeatureOutputs,
    grads: FeatureOutputs,
    wanted: frozenset[str],
    activation: str,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    with torch.cuda.device_of(grads.out):
        found = _fused(inputs, activation, dtype).gradients(grads.out, inputs.table, wanted, sums=True)
        return {**found, "table": found["sums"]}


def _weighed(inputs: SumInputs, activation: str, dtype: torch.dtype) -> "FusedFeatures":
    return _fused(inputs, activation, dtype, inputs.weights)


def _fused(
    inputs: SumInputs | TableInputs, activation: str, dtype: torch.dtype, weights: Tensor | None = None
) -> "FusedFeatures":
    # the library can be imported without triton
    from fredholm.evaluation.triton.features import FusedFeatures

    return FusedFeatures(FeatureInputs(*inputs[:5]), activation, dtype, weights)


feature_sums_triton = Operator(
    "feature_sums_triton", SumInputs, FeatureOutputs, _sums, sums_like, _sums_backward, plain=plain_sums
)
"""As `feature_sums`, in float32 or bfloat16."""

feature_tables_triton = Operator(
    "feature_tables_triton", TableInputs, FeatureOutputs, _tables, tables_like, _tables_backward, plain=plain_tables
)
"""As `feature_tables`, in float32 or bfloat16."""
