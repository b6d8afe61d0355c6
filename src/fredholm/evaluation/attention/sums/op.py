"""The sum over Yat scores as a PyTorch operator with a gradient, opaque to the compiler.

Tensors come as one list, the fields of `YatInputs`.
"""

from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.attention.sums.backward import Backward, Given
from fredholm.evaluation.attention.sums.forward import forward
from fredholm.evaluation.attention.sums.inputs import YatInputs, decoded
from fredholm.evaluation.attention.sums.tiles import Tiles
from fredholm.evaluation.custom_op import differentiable


@torch.library.custom_op("fredholm::yat_sums", mutates_args=())
def yat_sums(tensors: list[Tensor], normaliser: list[float], elements: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """The integral `(B, H, Nq, d_v)`, and of each row reference and sum `(B, H, Nq)`; see `forward.forward`.

    All stay in the working dtype: the backward takes differences of the integral that rounding would drown.
    """
    own = YatInputs(*tensors)
    with torch.autocast(own.query.device.type, enabled=False):
        out, reference, total = forward(Tiles(tensors, elements), decoded(normaliser))
    heads = own.query.shape[:2]
    return out.unflatten(0, heads), reference.view(*heads, -1), total.view(*heads, -1)


@torch.library.custom_op("fredholm::yat_sums_backward", mutates_args=())
def yat_sums_backward(
    grad: Tensor,
    out: Tensor,
    reference: Tensor,
    total: Tensor,
    tensors: list[Tensor],
    normaliser: list[float],
    elements: int | None,
    wanted: list[bool],
) -> list[Tensor]:
    """Gradients of all tensors, empty for an absent or unwanted mass or weight and for the order."""
    own, tiles = YatInputs(*tensors), Tiles(tensors, elements)
    given = Given(*(t.flatten(0, 1).to(tiles.dtype) for t in (grad, out, reference[..., None], total[..., None])))
    with torch.autocast(grad.device.type, enabled=False):
        found = Backward(tiles, decoded(normaliser), given, wants_mass=wanted[5], wants_pairs=wanted[6])
    grads = found.query, found.key, found.value, found.epsilon, found.bias, found.mass, found.pairs, None
    # weights of nobody, which tiles pass over, have a gradient without entries
    return [
        t.new_zeros(t.shape if kept and t.numel() == 0 else 0) if g is None else g.to(t.dtype).view(t.shape)
        for g, t, kept in zip(grads, own, _kept(wanted), strict=True)
    ]


def _kept(wanted: list[bool]) -> list[bool]:
    """Which gradients are there; those that cost nothing beside the others, whether wanted or not."""
    return [True] * 5 + [wanted[5], wanted[6], False]


@yat_sums.register_fake
def _(tensors: list[Tensor], normaliser: list[float], elements: int | None) -> tuple[Tensor, Tensor, Tensor]:
    own = YatInputs(*tensors)
    rows = own.query.new_empty(own.query.shape[:3], dtype=own.working_dtype)
    return rows.new_empty(*rows.shape, own.value.shape[-1]), rows, torch.empty_like(rows)


@yat_sums_backward.register_fake
def _(
    grad: Tensor,
    out: Tensor,
    reference: Tensor,
    total: Tensor,
    tensors: list[Tensor],
    normaliser: list[float],
    elements: int | None,
    wanted: list[bool],
) -> list[Tensor]:
    return [t.new_empty(t.shape if kept else 0) for t, kept in zip(tensors, _kept(wanted), strict=True)]


def _setup_context(
    ctx: Any, inputs: tuple[list[Tensor], list[float], int | None], output: tuple[Tensor, Tensor, Tensor]
) -> None:
    tensors, ctx.normaliser, ctx.elements = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(*output[1:])
    ctx.wanted = [t.requires_grad for t in tensors]


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[list[Tensor | None], None, None]:
    *tensors, out, reference, total = ctx.saved_tensors
    grads = yat_sums_backward(
        grad.contiguous(), out, reference, total, tensors, ctx.normaliser, ctx.elements, ctx.wanted
    )
    return [g if w else None for g, w in zip(grads, ctx.wanted, strict=True)], None, None


differentiable(yat_sums, _backward, setup_context=_setup_context)
differentiable(yat_sums_backward)
