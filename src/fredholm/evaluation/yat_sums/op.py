"""The sum over Yat scores as a PyTorch operator with a gradient, opaque to the compiler.

Tensors come as one list, the fields of `YatInputs`.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.threads import in_threads, slices
from fredholm.evaluation.yat_sums.backward import Backward, Given
from fredholm.evaluation.yat_sums.forward import forward
from fredholm.evaluation.yat_sums.inputs import YatInputs, decoded
from fredholm.evaluation.yat_sums.tiles import Tiles

LEAST = 1 << 20
"""Pairs that are worth a thread."""


@torch.library.custom_op("fredholm::yat_sums", mutates_args=())
def yat_sums(tensors: list[Tensor], normaliser: list[float], elements: int) -> tuple[Tensor, Tensor, Tensor]:
    """The integral `(B, H, Nq, d_v)`, and of each row reference and sum `(B, H, Nq)`; see `forward.forward`.

    All stay in the working dtype: the backward takes differences of the integral that rounding would drown.
    """
    own = YatInputs(*tensors)

    def part(heads: slice) -> tuple[Tensor, Tensor, Tensor]:
        return forward(Tiles(tensors, elements, heads), decoded(normaliser))

    with torch.autocast(own.query.device.type, enabled=False):
        found = in_threads([functools.partial(part, heads) for heads in _shares(own)])
    out, reference, total = (torch.cat(parts) if parts[1:] else parts[0] for parts in zip(*found, strict=True))
    heads = own.query.shape[:2]
    return out.unflatten(0, heads), reference.view(*heads, -1), total.view(*heads, -1)


def _shares(own: YatInputs) -> list[slice]:
    """Heads for one thread each."""
    batch, heads, num_queries, _ = own.query.shape
    return slices(batch * heads, batch * heads * num_queries * own.key.shape[2], own.query.device, LEAST)


@torch.library.custom_op("fredholm::yat_sums_backward", mutates_args=())
def yat_sums_backward(
    grad: Tensor,
    out: Tensor,
    reference: Tensor,
    total: Tensor,
    tensors: list[Tensor],
    normaliser: list[float],
    elements: int,
    wanted: list[bool],
) -> list[Tensor]:
    """Gradients of all tensors, empty for an absent or unwanted mass or weight and for the order."""
    own = YatInputs(*tensors)
    rows = [t.flatten(0, 1) for t in (grad, out, reference[..., None], total[..., None])]

    def part(heads: slice) -> Backward:
        tiles = Tiles(tensors, elements, heads)
        given = Given(*(t[heads].to(tiles.dtype) for t in rows))
        return Backward(tiles, decoded(normaliser), given, wants_mass=wanted[5], wants_pairs=wanted[6])

    with torch.autocast(grad.device.type, enabled=False):
        parts = in_threads([functools.partial(part, heads) for heads in _shares(own)])
    by_head = [torch.cat(found) if found[1:] else found[0] for found in zip(*(p.of_heads for p in parts), strict=True)]
    shared = [functools.reduce(torch.add, found) for found in zip(*(p.of_all for p in parts), strict=True)]
    query, key, value, bias = by_head
    epsilon, mass, pairs = shared
    empty = own.query.new_empty(0)
    grads = YatInputs(query, key, value, epsilon, bias, mass, pairs, empty)
    return [
        g.to(t.dtype).view(t.shape) if kept else t.new_empty(0)
        for g, t, kept in zip(grads, own, _kept(wanted), strict=True)
    ]


def _kept(wanted: list[bool]) -> list[bool]:
    """Which gradients are there; those that cost nothing beside the others, whether wanted or not."""
    return [True] * 5 + [wanted[5], wanted[6], False]


@yat_sums.register_fake
def _(tensors: list[Tensor], normaliser: list[float], elements: int) -> tuple[Tensor, Tensor, Tensor]:
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
    elements: int,
    wanted: list[bool],
) -> list[Tensor]:
    return [t.new_empty(t.shape if kept else 0) for t, kept in zip(tensors, _kept(wanted), strict=True)]


def _setup_context(
    ctx: Any, inputs: tuple[list[Tensor], list[float], int], output: tuple[Tensor, Tensor, Tensor]
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


yat_sums.register_autograd(_backward, setup_context=_setup_context)
