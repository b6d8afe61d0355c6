"""The integral of hops as a PyTorch operator with a gradient, opaque to the compiler.

Tensors come as one list, the fields of `HopInputs`.
"""

from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import differentiable
from fredholm.evaluation.neumann.backward import backward
from fredholm.evaluation.neumann.forward import Found, forward
from fredholm.evaluation.neumann.inputs import HopInputs, HopPlan
from fredholm.evaluation.neumann.problem import Problem
from fredholm.evaluation.neumann.solvers import DIRECT

Outputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@torch.library.custom_op("fredholm::hops", mutates_args=())
def hops(
    tensors: list[Tensor], plan: list[float], elements: int | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The integral `(B, H, Nq, c)` and norms `(B, H, Nq)`, both in the working dtype, then the other fields of `Found`.

    `keep` says whether factors stay for the backward pass.
    """
    own = HopInputs(*tensors)
    with torch.autocast(own.query.device.type, enabled=False):
        found = forward(Problem(tensors, HopPlan.decoded(plan), elements), keep=keep)
    heads = own.query.shape[:2]
    out, norm = (t.contiguous().unflatten(0, heads) for t in found[:2])
    return out, norm, found.inner, found.inner_norm.contiguous(), found.rows, found.factors, found.pivots


@torch.library.custom_op("fredholm::hops_backward", mutates_args=())
def hops_backward(
    grads: list[Tensor],
    found: list[Tensor],
    tensors: list[Tensor],
    plan: list[float],
    elements: int | None,
    wanted: list[bool],
) -> list[Tensor]:
    """Gradients of all tensors, empty for what is absent, for an unwanted mass or weight and for the order."""
    own, problem = HopInputs(*tensors), Problem(tensors, HopPlan.decoded(plan), elements)
    flat = [t.flatten(0, 1) for t in found[:2]]
    grad, grad_norm = (t.flatten(0, 1).to(problem.dtype) for t in grads)
    with torch.autocast(grad.device.type, enabled=False):
        got = backward(problem, Found(*flat, *found[2:]), grad, grad_norm, wants_mass=wanted[6], wants_pairs=wanted[7])
    by_gamma = None if got.gamma is None else got.gamma.unflatten(0, own.query.shape[:2]).sum(0)
    sums = [got.query, got.own, got.key, got.value, by_gamma, got.before, got.mass, got.pairs, None, None]
    # weights of nobody, which tiles pass over, have a gradient without entries
    nobodys = [i in (6, 7) and wanted[i] and t.numel() == 0 for i, t in enumerate(own)]
    return [
        t.new_zeros(t.shape if empty else 0) if g is None else g.to(t.dtype).reshape(t.shape)
        for g, t, empty in zip(sums, own, nobodys, strict=True)
    ]


@hops.register_fake
def _(tensors: list[Tensor], plan: list[float], elements: int | None, keep: bool) -> Outputs:
    own, what = HopInputs(*tensors), HopPlan.decoded(plan)
    batch, heads, num_queries, _ = own.query.shape
    points, dtype, elsewhere = own.key.shape[2], own.working_dtype, own.own.ndim == 4
    total, channels = batch * heads, own.value.shape[-1]

    def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return own.query.new_empty(shape, dtype=kind)

    inner = elsewhere and own.gamma.numel() > 0
    factors = keep and what.solver == DIRECT and own.gamma.numel() > 0
    return (
        empty(batch, heads, num_queries, channels),
        empty(batch, heads, num_queries),
        empty(total, points, channels) if inner else empty(0),
        empty(total, points) if inner else empty(0),
        empty(total, points if elsewhere else num_queries, kind=torch.float64)
        if what.has_one_norm
        else empty(0, kind=torch.float64),
        empty(total, points, points) if factors else empty(0),
        empty(total, points, kind=torch.int32) if factors else empty(0, kind=torch.int32),
    )


@hops_backward.register_fake
def _(
    grads: list[Tensor],
    found: list[Tensor],
    tensors: list[Tensor],
    plan: list[float],
    elements: int | None,
    wanted: list[bool],
) -> list[Tensor]:
    own = HopInputs(*tensors)
    there = [True, own.own.ndim == 4, True, True, own.gamma.numel() > 0, HopPlan.decoded(plan).has_one_norm]
    there += [wanted[6], wanted[7], False, False]
    return [t.new_empty(t.shape if kept else 0) for t, kept in zip(tensors, there, strict=True)]


def _setup_context(ctx: Any, inputs: tuple[list[Tensor], list[float], int | None, bool], output: Outputs) -> None:
    tensors, ctx.plan, ctx.elements, _ = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(*output[2:])
    ctx.wanted = [t.requires_grad for t in tensors]


def _backward(ctx: Any, grad: Tensor, grad_norm: Tensor, *_: Tensor) -> tuple[list[Tensor | None], None, None, None]:
    saved = ctx.saved_tensors
    tensors, found = list(saved[: len(HopInputs._fields)]), list(saved[len(HopInputs._fields) :])
    grads = hops_backward(
        [grad.contiguous(), grad_norm.contiguous()], found, tensors, ctx.plan, ctx.elements, ctx.wanted
    )
    return [g if w else None for g, w in zip(grads, ctx.wanted, strict=True)], None, None, None


differentiable(hops, _backward, setup_context=_setup_context)
differentiable(hops_backward)
