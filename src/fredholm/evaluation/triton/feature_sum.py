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
            lambda inputs, activation: feature_sums_triton(inputs, activation).out,
            lambda inputs, activation: feature_tables_triton(inputs, activation).out,
        )


def _sums(inputs: SumInputs, activation: str) -> FeatureOutputs:
    with torch.cuda.device_of(inputs.bias):
        return FeatureOutputs(_fused(inputs, activation).sums(_weighted(inputs.value, inputs)))


def _sums_backward(
    inputs: SumInputs, _: FeatureOutputs, grads: FeatureOutputs, wanted: frozenset[str], activation: str
) -> dict[str, Tensor]:
    with torch.cuda.device_of(grads.out):
        own = _fused(inputs, activation)
        found, read = own.gradients(_weighted(inputs.value, inputs), grads.out, wanted), own.tables(grads.out)
        to_weights = (read.float() * inputs.value).sum((2, 3)).sum_to_size(inputs.weights.shape)
        return {**found, "value": _weighted(read, inputs), "weights": to_weights}


def _tables(inputs: TableInputs, activation: str) -> FeatureOutputs:
    with torch.cuda.device_of(inputs.bias):
        return FeatureOutputs(_fused(inputs, activation).tables(inputs.table))


def _tables_backward(
    inputs: TableInputs, _: FeatureOutputs, grads: FeatureOutputs, wanted: frozenset[str], activation: str
) -> dict[str, Tensor]:
    with torch.cuda.device_of(grads.out):
        own = _fused(inputs, activation)
        return {**own.gradients(grads.out, inputs.table, wanted), "table": own.sums(grads.out)}


def _fused(inputs: SumInputs | TableInputs, activation: str) -> "FusedFeatures":
    # the library can be imported without triton
    from fredholm.evaluation.triton.features import FusedFeatures

    return FusedFeatures(FeatureInputs(*inputs[:5]), activation)


def _weighted(value: Tensor, inputs: SumInputs) -> Tensor:
    return (value * inputs.weights[:, :, None, None]).to(value.dtype)


feature_sums_triton = Operator(
    "feature_sums_triton", SumInputs, FeatureOutputs, _sums, sums_like, _sums_backward, plain=plain_sums
)
"""As `feature_sums`, all tensors in float32 or all in bfloat16."""

feature_tables_triton = Operator(
    "feature_tables_triton", TableInputs, FeatureOutputs, _tables, tables_like, _tables_backward, plain=plain_tables
)
"""As `feature_tables`, all tensors in float32 or all in bfloat16."""
