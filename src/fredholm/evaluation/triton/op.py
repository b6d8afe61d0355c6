"""The integral as a PyTorch operator with a gradient, opaque to the compiler."""

from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import differentiable
from fredholm.evaluation.perceptron.inputs import IntegralInputs


@torch.library.custom_op("fredholm::mlp_integral_triton", mutates_args=())
def mlp_integral_triton(tensors: list[Tensor], block: list[int], activation: str) -> Tensor:
    """Σ_j ω_j W h_ij u_j, without the constant part of the kernel: `(B, G, Nq, d_out)`.

    Args:
        tensors: the fields of `IntegralInputs`, in one dtype, float32 or bfloat16, but for positions (float32) and
            `seen` (int64); no hidden layers.
        block: the fields of `Block`, its shape last; no shape means no grid.
        activation: "gelu", "gelu_tanh" or "relu".
    """
    # the library can be imported without triton
    from fredholm.evaluation.triton.launch import integral

    with _alone(tensors[0]), torch.autocast(tensors[0].device.type, enabled=False):
        return integral(tensors, block, activation)


@torch.library.custom_op("fredholm::mlp_integral_triton_backward", mutates_args=())
def mlp_integral_triton_backward(
    grad: Tensor, tensors: list[Tensor], block: list[int], activation: str, wanted: list[bool]
) -> list[Tensor]:
    """Gradients of all tensors but `seen`, from that of the integral; see `Gradients` for `wanted`."""
    # the library can be imported without triton
    from fredholm.evaluation.triton.backward import gradients

    with _alone(grad), torch.autocast(grad.device.type, enabled=False):
        return gradients(grad, tensors, block, activation, wanted)


def _alone(tensor: Tensor) -> torch.cuda.device_of:
    """Kernels are launched on the current device: that of the tensor, if it is a GPU."""
    return torch.cuda.device_of(tensor)


@mlp_integral_triton.register_fake
def _(tensors: list[Tensor], block: list[int], activation: str) -> Tensor:
    t = IntegralInputs(*tensors)
    batch, kernels, queries, _ = t.query.shape
    return t.query.new_empty(kernels, batch, queries, t.output_weight.shape[-1]).transpose(0, 1)


@mlp_integral_triton_backward.register_fake
def _(grad: Tensor, tensors: list[Tensor], block: list[int], activation: str, wanted: list[bool]) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in tensors[:-1]]


def _setup_context(ctx: Any, inputs: tuple[list[Tensor], list[int], str], output: Tensor) -> None:
    tensors, ctx.block, ctx.activation = inputs
    ctx.save_for_backward(*tensors)
    ctx.wanted = [t.requires_grad for t in tensors]


def _backward(ctx: Any, grad: Tensor) -> tuple[list[Tensor | None], None, None]:
    tensors = list(ctx.saved_tensors)
    grads = mlp_integral_triton_backward(grad.contiguous(), tensors, ctx.block, ctx.activation, ctx.wanted)
    return [*grads, None], None, None


differentiable(mlp_integral_triton, _backward, setup_context=_setup_context)
differentiable(mlp_integral_triton_backward)
