"""The integral as a PyTorch operator with a gradient, opaque to the compiler."""

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.perceptron.inputs import IntegralInputs, IntegralOutputs


def _forward(inputs: IntegralInputs, block: list[int], activation: str) -> IntegralOutputs:
    # the library can be imported without triton
    from fredholm.evaluation.triton.launch import integral

    # kernels are launched on the current device
    with torch.cuda.device_of(inputs.query):
        return IntegralOutputs(integral(inputs, block, activation))


def _like(inputs: IntegralInputs, block: list[int], activation: str) -> IntegralOutputs:
    batch, kernels, queries, _ = inputs.query.shape
    out = inputs.query.new_empty(kernels, batch, queries, inputs.output_weight.shape[-1])
    return IntegralOutputs(out.transpose(0, 1))


def _backward(
    inputs: IntegralInputs,
    outputs: IntegralOutputs,
    grads: IntegralOutputs,
    wanted: frozenset[str],
    block: list[int],
    activation: str,
) -> dict[str, Tensor]:
    # the library can be imported without triton
    from fredholm.evaluation.triton.backward import Gradients
    from fredholm.evaluation.triton.problem import Problem

    with torch.cuda.device_of(inputs.query):
        return Gradients(Problem(inputs, block, activation), grads.out, wanted).run()


mlp_integral_triton = Operator("mlp_integral_triton", IntegralInputs, IntegralOutputs, _forward, _like, _backward)
"""As `mlp_integral`, in float32 or bfloat16 but for positions (float32) and `seen` (int64), without hidden layers."""
