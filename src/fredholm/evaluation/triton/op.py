"""The integral as a PyTorch operator with a gradient, opaque to the compiler."""

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import Operator
from fredholm.evaluation.perceptron.sums import PairOutputs
from fredholm.evaluation.perceptron.tiles import PairInputs


def _forward(inputs: PairInputs, block: list[int], activation: str) -> PairOutputs:
    # the library can be imported without triton
    from fredholm.evaluation.triton.launch import integral

    # kernels are launched on the current device
    with torch.cuda.device_of(inputs.query):
        return PairOutputs(integral(inputs, block, activation))


def _like(inputs: PairInputs, block: list[int], activation: str) -> PairOutputs:
    batch, kernels, queries, _ = inputs.query.shape
    out = inputs.query.new_empty(kernels, batch, queries, inputs.output_weight.shape[-1])
    return PairOutputs(out.transpose(0, 1))


def _backward(
    inputs: PairInputs,
    outputs: PairOutputs,
    grads: PairOutputs,
    wanted: frozenset[str],
    block: list[int],
    activation: str,
) -> dict[str, Tensor]:
    # the library can be imported without triton
    from fredholm.evaluation.triton.backward import Gradients
    from fredholm.evaluation.triton.problem import Problem

    with torch.cuda.device_of(inputs.query):
        return Gradients(Problem(inputs, block, activation), grads.out, wanted).run()


mlp_integral_triton = Operator("mlp_integral_triton", PairInputs, PairOutputs, _forward, _like, _backward)
"""As `mlp_integral`, in float32 or bfloat16 but for positions (float32) and `seen` (int64), without hidden layers."""
