"""The two sums of features as PyTorch operators with a gradient, opaque to the compiler.

Tensors as in `factors/op.py`: the fields of `FeatureInputs` first, all in float32 or all in bfloat16.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import differentiable, pullback
from fredholm.evaluation.features.inputs import FeatureInputs
from fredholm.evaluation.features.op import kept_gradients, plain_sums, plain_tables


@torch.library.custom_op("fredholm::feature_sums_triton", mutates_args=())
def feature_sums_triton(tensors: list[Tensor], activation: str) -> Tensor:
    """S, `(B, H, w + 1, d)` in float32; last among `tensors` come v, `(B, N, H, d)`, and ω, `(B', N)`."""
    *inputs, value, weights = tensors
    with torch.cuda.device_of(value), torch.autocast(value.device.type, enabled=False):
        return _fused(inputs, activation).sums(_weighted(value, weights))


@torch.library.custom_op("fredholm::feature_tables_triton", mutates_args=())
def feature_tables_triton(tensors: list[Tensor], activation: str) -> Tensor:
    """h_i T, `(B, N, H, n)`; last among `tensors` comes T, `(B, H, w + 1, n)`."""
    *inputs, table = tensors
    with torch.cuda.device_of(table), torch.autocast(table.device.type, enabled=False):
        return _fused(inputs, activation).tables(table)


@torch.library.custom_op("fredholm::feature_sums_triton_backward", mutates_args=())
def feature_sums_triton_backward(
    grad: Tensor, tensors: list[Tensor], activation: str, wanted: list[bool]
) -> list[Tensor]:
    """Gradients of all tensors from that of S; those of γ and u are empty where not `wanted`."""
    *inputs, value, weights = tensors
    with torch.cuda.device_of(grad), torch.autocast(grad.device.type, enabled=False):
        own = _fused(inputs, activation)
        found = own.gradients(_weighted(value, weights), grad, lifted=wanted[0], content=wanted[1])
        read = own.tables(grad)
        to_weights = (read.float() * value).sum((2, 3)).sum_to_size(weights.shape)
        return [*found, _weighted(read, weights), to_weights.to(weights.dtype)]


@torch.library.custom_op("fredholm::feature_tables_triton_backward", mutates_args=())
def feature_tables_triton_backward(
    grad: Tensor, tensors: list[Tensor], activation: str, wanted: list[bool]
) -> list[Tensor]:
    """Gradients of all tensors from that of h_i T; those of γ and u are empty where not `wanted`."""
    *inputs, table = tensors
    with torch.cuda.device_of(grad), torch.autocast(grad.device.type, enabled=False):
        own = _fused(inputs, activation)
        found = own.gradients(grad, table, lifted=wanted[0], content=wanted[1])
        return [*found, own.sums(grad).to(table.dtype)]


def _fused(inputs: list[Tensor], activation: str) -> Any:
    # the library can be imported without triton
    from fredholm.evaluation.triton.features import FusedFeatures

    return FusedFeatures(inputs, activation)


def _weighted(value: Tensor, weights: Tensor) -> Tensor:
    return (value * weights[:, :, None, None]).to(value.dtype)


@feature_sums_triton.register_fake
def _(tensors: list[Tensor], activation: str) -> Tensor:
    own, value = FeatureInputs(*tensors[:5]), tensors[5]
    shape = (own.content.shape[0], own.content.shape[2], own.bias.shape[1] + 1, value.shape[-1])
    return value.new_empty(shape, dtype=torch.float32)


@feature_tables_triton.register_fake
def _(tensors: list[Tensor], activation: str) -> Tensor:
    own = FeatureInputs(*tensors[:5])
    return own.content.new_empty(*own.content.shape[:3], tensors[5].shape[-1])


def _fake_backward(grad: Tensor, tensors: list[Tensor], activation: str, wanted: list[bool]) -> list[Tensor]:
    return [t.new_empty(t.shape if kept else 0) for t, kept in zip(tensors, kept_gradients(wanted), strict=True)]


def _setup_context(ctx: Any, inputs: tuple[list[Tensor], str], output: Tensor) -> None:
    tensors, ctx.activation = inputs
    ctx.save_for_backward(*tensors)
    ctx.wanted = [t.requires_grad for t in tensors]


def _registered(operator: Any, backward: Any, plain: Callable[[list[Tensor], str], Tensor]) -> None:
    def run(ctx: Any, grad: Tensor) -> tuple[list[Tensor | None], None]:
        grads = backward(grad.contiguous(), list(ctx.saved_tensors), ctx.activation, ctx.wanted)
        return [found if wanted else None for found, wanted in zip(grads, ctx.wanted, strict=True)], None

    def gradients(grad: Tensor, tensors: list[Tensor], activation: str, wanted: list[bool]) -> list[Tensor]:
        return pullback(lambda moved: [plain(moved, activation)], [grad], tensors, kept_gradients(wanted))

    backward.register_fake(_fake_backward)
    differentiable(operator, run, setup_context=_setup_context, plain=plain)
    differentiable(backward, plain=gradients)


_registered(feature_sums_triton, feature_sums_triton_backward, plain_sums)
_registered(feature_tables_triton, feature_tables_triton_backward, plain_tables)
