"""The fused sums of features: the route, and its two operators."""

import dataclasses
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.features.feature_sum import (
    SumInputs,
    TableInputs,
    integrate_features,
    mixed,
    plain_sums,
    plain_tables,
    sums_like,
    tables_like,
)
from fredholm.evaluation.features.features import FeatureInputs, FeatureOutputs
from fredholm.evaluation.integral import Integral
from fredholm.evaluation.triton.machine import LARGEST_DIM, FusedRoute
from fredholm.kernels import FeatureFactorised
from fredholm.kernels.perceptron.factorised import LowRank, LowRankForm, low_rank_table

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
        """Refuses large heads, and what `FeatureSum` refuses; see `FusedRoute.unfused`."""
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

        def read(queries: FeatureInputs, sums: Tensor, activation: str, dtype: torch.dtype) -> Tensor:
            kernel = integral.kernel
            if isinstance(kernel, LowRank):
                inputs = LowRankInputs(*queries, sums, *kernel.low_rank_form())
                return low_rank_tables_triton(inputs, activation, dtype).out
            return feature_tables_triton(TableInputs(*queries, mixed(kernel, sums)), activation, dtype).out

        return integrate_features(integral, lambda *given: feature_sums_triton(*given).out, read)


class LowRankInputs(NamedTuple):
    """Inputs of h_i T for a low-rank kernel: `FeatureInputs`, S and `LowRankForm`."""

    lifted: Tensor
    content: Tensor
    position_weight: Tensor
    content_weight: Tensor
    bias: Tensor
    sums: Tensor  # S: (H, B, w + 1, d)
    query: Tensor  # Φ: (G, r, w + 1, d)
    key: Tensor  # Ψ: (G, r, w + 1, d)
    constant: Tensor | None  # B: (G, d, d)


class LowRankOutputs(NamedTuple):
    """h_i T, and tensors for the backward pass."""

    out: Tensor
    reading: Tensor  # Ψ : S, (H, B, r)
    table: Tensor  # T: (H, B, w + 1, d)


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


def _low_rank(inputs: LowRankInputs, activation: str, dtype: torch.dtype) -> LowRankOutputs:
    # the library can be imported without triton
    from fredholm.evaluation.triton.long_product import long_products

    with torch.cuda.device_of(inputs.bias):
        flat, d = inputs.sums.flatten(2), inputs.sums.shape[-1]
        reading = long_products(flat, inputs.key.flatten(2))
        table = reading @ inputs.query.flatten(2).to(reading.dtype)
        if inputs.constant is not None:
            table[..., -d:].baddbmm_(flat[..., -d:], _of_heads(inputs.constant, flat).mT)
        table = table.view(inputs.sums.shape)
        return LowRankOutputs(_fused(inputs, activation, dtype).tables(table), reading, table)


def _low_rank_backward(
    inputs: LowRankInputs,
    outputs: LowRankOutputs,
    grads: LowRankOutputs,
    wanted: frozenset[str],
    activation: str,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    # the library can be imported without triton
    from fredholm.evaluation.triton.long_product import long_products

    with torch.cuda.device_of(grads.out):
        found = _fused(inputs, activation, dtype).gradients(grads.out, outputs.table, wanted, sums=True)
        to_table, flat, d = found["sums"].flatten(2), inputs.sums.flatten(2), inputs.sums.shape[-1]
        to_reading = long_products(to_table, inputs.query.flatten(2))
        to_sums = to_reading @ inputs.key.flatten(2).to(flat.dtype)
        by_head = {"query": outputs.reading.mT @ to_table, "key": to_reading.mT @ flat}
        if inputs.constant is not None:
            to_last = to_table[..., -d:]
            to_sums[..., -d:].baddbmm_(to_last, _of_heads(inputs.constant, flat))
            by_head["constant"] = to_last.mT @ flat[..., -d:]
        shared = {name: grad.sum(0) if len(inputs.bias) == 1 else grad for name, grad in by_head.items()}
        return {**found, **shared, "sums": to_sums}


def _low_rank_like(inputs: LowRankInputs, activation: str, dtype: torch.dtype) -> LowRankOutputs:
    out = inputs.content.new_empty(*inputs.content.shape[:3], inputs.sums.shape[-1], dtype=dtype)
    reading = inputs.sums.new_empty(*inputs.sums.shape[:2], inputs.query.shape[1])
    return LowRankOutputs(out, reading, torch.empty_like(inputs.sums))


def _plain_low_rank(inputs: LowRankInputs, activation: str, dtype: torch.dtype) -> FeatureOutputs:
    form = LowRankForm(inputs.query, inputs.key, inputs.constant)
    return plain_tables(TableInputs(*inputs[:5], low_rank_table(inputs.sums, form)), activation, dtype)


def _of_heads(constant: Tensor, like: Tensor) -> Tensor:
    """B of every head, `(H, d, d)`, in the dtype of S."""
    return constant.to(like.dtype).expand(len(like), -1, -1)


def _weighed(inputs: SumInputs, activation: str, dtype: torch.dtype) -> "FusedFeatures":
    return _fused(inputs, activation, dtype, inputs.weights)


def _fused(
    inputs: SumInputs | TableInputs | LowRankInputs, activation: str, dtype: torch.dtype, weights: Tensor | None = None
) -> "FusedFeatures":
    # the library can be imported without triton
    from fredholm.evaluation.triton.features import FusedFeatures

    return FusedFeatures(FeatureInputs(*inputs[:5]), activation, dtype, weights)


feature_sums_triton = Operator(
    "feature_sums_triton",
    SumInputs,
    FeatureOutputs,
    _sums,
    sums_like,
    _sums_backward,
    plain=plain_sums,
    is_counted=False,
)
"""`feature_sums`, in float32, bfloat16 or float16."""

feature_tables_triton = Operator(
    "feature_tables_triton",
    TableInputs,
    FeatureOutputs,
    _tables,
    tables_like,
    _tables_backward,
    plain=plain_tables,
    is_counted=False,
)
"""`feature_tables`, in float32, bfloat16 or float16."""

low_rank_tables_triton = Operator(
    "low_rank_tables_triton",
    LowRankInputs,
    LowRankOutputs,
    _low_rank,
    _low_rank_like,
    _low_rank_backward,
    results=("out",),
    keeps=("reading", "table"),
    plain=_plain_low_rank,
    is_counted=False,
)
"""h_i T with T of a low-rank kernel, as `feature_tables_triton`."""
