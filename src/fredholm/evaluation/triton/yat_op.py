"""The fused sum over Yat scores as a PyTorch operator with a gradient, opaque to the compiler."""

from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.evaluation.attention.sums.inputs import YatInputs, decoded
from fredholm.evaluation.custom_op import Operator


class YatOutputs(NamedTuple):
    """What the sum gives, in float32."""

    out: Tensor  # the integral: (B, H, Nq, d_v)
    reference: Tensor  # of each row: (B, H, Nq)
    total: Tensor  # of each row: (B, H, Nq)


def _forward(inputs: YatInputs, normaliser: list[float]) -> YatOutputs:
    # the library can be imported without triton
    from fredholm.evaluation.triton.yat_launch import settings_of, yat_forward

    with torch.cuda.device_of(inputs.query):
        return YatOutputs(*yat_forward(inputs, settings_of(decoded(normaliser))))


def _like(inputs: YatInputs, normaliser: list[float]) -> YatOutputs:
    rows = inputs.query.new_empty(inputs.query.shape[:3], dtype=torch.float32)
    return YatOutputs(rows.new_empty(*rows.shape, inputs.value.shape[-1]), rows, torch.empty_like(rows))


def _backward(
    inputs: YatInputs, outputs: YatOutputs, grads: YatOutputs, wanted: frozenset[str], normaliser: list[float]
) -> dict[str, Tensor]:
    # the library can be imported without triton
    from fredholm.evaluation.triton.yat_launch import settings_of, yat_backward

    with torch.cuda.device_of(inputs.query):
        return yat_backward(grads.out, *outputs, inputs, settings_of(decoded(normaliser)))


yat_sums_triton = Operator(
    "yat_sums_triton",
    YatInputs,
    YatOutputs,
    _forward,
    _like,
    _backward,
    results=("out",),
    keeps=("out", "reference", "total"),
)
"""The sum. Its option is a normaliser, as `attention.sums.inputs.encoded` gives it."""
