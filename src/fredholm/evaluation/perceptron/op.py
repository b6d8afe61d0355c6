"""The integral as a PyTorch operator with a gradient, opaque to the compiler."""

from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import differentiable
from fredholm.evaluation.perceptron.gradients import Gradients
from fredholm.evaluation.perceptron.inputs import IntegralInputs
from fredholm.evaluation.perceptron.integral import Integral


@torch.library.custom_op("fredholm::mlp_integral", mutates_args=())
def mlp_integral(tensors: list[Tensor], block: list[int], activation: str, tiling: list[int]) -> Tensor:
    """Σ_j ω_j W h_ij u_j, without the constant part of the kernel: `(B, G, Nq, d_out)`.

    Args:
        tensors: the fields of `IntegralInputs`, in one dtype but for `seen`.
        block: the fields of `Block`, its shape last; no shape means no grid.
        activation: "gelu", "gelu_tanh" or "relu".
        tiling: the fields of `Tiling`.
    """
    with torch.autocast(tensors[0].device.type, enabled=False):
        return Integral(tensors, block, activation, tiling).forward()


@torch.library.custom_op("fredholm::mlp_integral_backward", mutates_args=())
def mlp_integral_backward(
    grad: Tensor, tensors: list[Tensor], block: list[int], activation: str, tiling: list[int], wanted: list[bool]
) -> list[Tensor]:
    """Gradients of all tensors but `seen`, from that of the integral; see `Gradients` for `wanted`."""
    with torch.autocast(grad.device.type, enabled=False):
        return Gradients(Integral(tensors, block, activation, tiling), wanted).run(grad)


@mlp_integral.register_fake
def _(tensors: list[Tensor], block: list[int], activation: str, tiling: list[int]) -> Tensor:
    t = IntegralInputs(*tensors)
    return t.query.new_empty(*t.query.shape[:3], t.output_weight.shape[-1])


@mlp_integral_backward.register_fake
def _(
    grad: Tensor, tensors: list[Tensor], block: list[int], activation: str, tiling: list[int], wanted: list[bool]
) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in tensors[:-1]]


def _setup_context(ctx: Any, inputs: tuple[list[Tensor], list[int], str, list[int]], output: Tensor) -> None:
    tensors, ctx.block, ctx.activation, ctx.tiling = inputs
    ctx.save_for_backward(*tensors)
    ctx.wanted = [t.requires_grad for t in tensors]


def _backward(ctx: Any, grad: Tensor) -> tuple[list[Tensor | None], None, None, None]:
    tensors = list(ctx.saved_tensors)
    grads = mlp_integral_backward(grad.contiguous(), tensors, ctx.block, ctx.activation, ctx.tiling, ctx.wanted)
    return [*grads, None], None, None, None


differentiable(mlp_integral, _backward, setup_context=_setup_context)
differentiable(mlp_integral_backward)
