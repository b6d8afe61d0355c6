"""The fused sum over Yat scores as a PyTorch operator with a gradient, opaque to the compiler.

Tensors come as one list, the fields of `YatInputs`; a normaliser as `yat_sums.inputs.encoded` gives it.
"""

from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.attention.sums.inputs import YatInputs, decoded
from fredholm.evaluation.custom_op import differentiable


@torch.library.custom_op("fredholm::yat_sums_triton", mutates_args=())
def yat_sums_triton(tensors: list[Tensor], normaliser: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    """The integral `(B, H, Nq, d_v)`, and of each row reference and sum `(B, H, Nq)`, in float32."""
    # the library can be imported without triton
    from fredholm.evaluation.triton.yat_launch import settings_of, yat_forward

    with torch.cuda.device_of(tensors[0]), torch.autocast(tensors[0].device.type, enabled=False):
        return yat_forward(YatInputs(*tensors), settings_of(decoded(normaliser)))


@torch.library.custom_op("fredholm::yat_sums_triton_backward", mutates_args=())
def yat_sums_triton_backward(
    grad: Tensor, out: Tensor, reference: Tensor, total: Tensor, tensors: list[Tensor], normaliser: list[float]
) -> list[Tensor]:
    """Gradients of queries, keys, values, ε and masses, in the dtypes of these."""
    # the library can be imported without triton
    from fredholm.evaluation.triton.yat_launch import settings_of, yat_backward

    own = YatInputs(*tensors)
    with torch.cuda.device_of(grad), torch.autocast(grad.device.type, enabled=False):
        found = yat_backward(grad, out, reference, total, own, settings_of(decoded(normaliser)))
    return [getattr(found, name).to(getattr(own, name).dtype) for name in OWNED]


OWNED = ("query", "key", "value", "epsilon", "mass")
"""What has gradients."""


@yat_sums_triton.register_fake
def _(tensors: list[Tensor], normaliser: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    own = YatInputs(*tensors)
    rows = own.query.new_empty(own.query.shape[:3], dtype=torch.float32)
    return rows.new_empty(*rows.shape, own.value.shape[-1]), rows, torch.empty_like(rows)


@yat_sums_triton_backward.register_fake
def _(
    grad: Tensor, out: Tensor, reference: Tensor, total: Tensor, tensors: list[Tensor], normaliser: list[float]
) -> list[Tensor]:
    own = YatInputs(*tensors)
    return [torch.empty_like(getattr(own, name), memory_format=torch.contiguous_format) for name in OWNED]


def _setup_context(ctx: Any, inputs: tuple[list[Tensor], list[float]], output: tuple[Tensor, Tensor, Tensor]) -> None:
    tensors, ctx.normaliser = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[list[Tensor | None], None]:
    *tensors, out, reference, total = ctx.saved_tensors
    grads = yat_sums_triton_backward(grad.contiguous(), out, reference, total, tensors, ctx.normaliser)
    by_name: dict[str, Tensor] = dict(zip(OWNED, grads, strict=True))
    return [by_name.get(name) for name in YatInputs._fields], None


differentiable(yat_sums_triton, _backward, setup_context=_setup_context)
differentiable(yat_sums_triton_backward)
