"""The two sums of features as PyTorch operators with a gradient, opaque to the compiler.

Tensors as in `factors`, all in float32 or all in bfloat16.
"""

from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.features.sums import SumInputs, SumOutputs, plain_sums, sums_like
from fredholm.evaluation.features.tables import TableInputs, TableOutputs, plain_tables, tables_like


def _sums(inputs: SumInputs, activation: str) -> SumOutputs:
    with torch.cuda.device_of(inputs.value):
        return SumOutputs(_fused(inputs, activation).sums(_weighted(inputs.value, inputs.weights)))


def _sums_backward(
    inputs: SumInputs, outputs: SumOutputs, grads: SumOutputs, wanted: frozenset[str], activation: str
) -> dict[str, Tensor]:
    (grad,), weights = grads, inputs.weights
    with torch.cuda.device_of(grad):
        own = _fused(inputs, activation)
        found, read = own.gradients(_weighted(inputs.value, weights), grad, wanted), own.tables(grad)
        to_weights = (read.float() * inputs.value).sum((2, 3)).sum_to_size(weights.shape)
        return {**found, "value": _weighted(read, weights), "weights": to_weights}


def _tables(inputs: TableInputs, activation: str) -> TableOutputs:
    with torch.cuda.device_of(inputs.table):
        return TableOutputs(_fused(inputs, activation).tables(inputs.table))


def _tables_backward(
    inputs: TableInputs, outputs: TableOutputs, grads: TableOutputs, wanted: frozenset[str], activation: str
) -> dict[str, Tensor]:
    (grad,) = grads
    with torch.cuda.device_of(grad):
        own = _fused(inputs, activation)
        return {**own.gradients(grad, inputs.table, wanted), "table": own.sums(grad)}


def _fused(inputs: SumInputs | TableInputs, activation: str) -> Any:
    # the library can be imported without triton
    from fredholm.evaluation.triton.features import FusedFeatures

    return FusedFeatures(inputs.side, activation)


def _weighted(value: Tensor, weights: Tensor) -> Tensor:
    return (value * weights[:, :, None, None]).to(value.dtype)


feature_sums_triton = Operator(
    "feature_sums_triton",
    SumInputs,
    SumOutputs,
    _sums,
    lambda inputs, _: sums_like(inputs),
    _sums_backward,
    plain=lambda inputs, activation: (plain_sums(inputs, activation),),
)

feature_tables_triton = Operator(
    "feature_tables_triton",
    TableInputs,
    TableOutputs,
    _tables,
    lambda inputs, _: tables_like(inputs),
    _tables_backward,
    plain=lambda inputs, activation: (plain_tables(inputs, activation),),
)
