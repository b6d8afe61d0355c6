"""Yat responses of given products as one PyTorch operator: what a convolution's patches and filters answer."""

from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import differentiable
from fredholm.kernels.attention.yat import response
from fredholm.layers.yat_response.differentiate import Totals, differentiate
from fredholm.layers.yat_response.respond import kept_dtype, respond
from fredholm.layers.yat_response.terms import Terms
from fredholm.layers.yat_response.tiling import BLOCK_ELEMENTS, Block, block_elements, blocks

Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor | None, torch.dtype, bool]


@torch.library.custom_op("fredholm::yat_response", mutates_args=())
def yat_response(
    dot: Tensor,
    query_square: Tensor,
    key_square: Tensor,
    b: Tensor | None,
    epsilon: Tensor,
    scale: Tensor | None,
    out_dtype: torch.dtype,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """Y, and what the backward needs besides Y, ‖x‖² and ‖w‖²; both `(N, G, U, L)`.

    Args:
        dot: S of N signals, G groups of U units and L points, `(N, G, U, L)`, float32 or float64.
        query_square: ‖x‖², `(N, G, 1, L)`; NaN where it is not finite (`squares`).
        key_square: ‖w‖², `(1, G, U, 1)`.
        b: `(1, G, U, 1)` or None.
        epsilon: 0-dim.
        scale: 0-dim or None for 1.
        out_dtype: of Y.
        keep: whether a backward may come; else the second result is empty.
    """
    terms = Terms(query_square, key_square, b, epsilon, scale)
    dot = dot.contiguous()
    out = torch.empty_like(dot, dtype=out_dtype)
    kept = dot.new_empty(dot.shape if keep else (0, 0, 0, 0), dtype=kept_dtype(out_dtype, has_bias=b is not None))
    free = _scratch(dot)
    for block in _blocks(dot):
        part = dot[block]
        given = _like(free[0], part), _like(free[1], part)
        respond(part, terms.at(block), given, out[block], kept[block] if keep else None)
    return out, kept


@torch.library.custom_op("fredholm::yat_response_backward", mutates_args=())
def yat_response_backward(
    grad: Tensor,
    query_square: Tensor,
    key_square: Tensor,
    b: Tensor | None,
    epsilon: Tensor,
    scale: Tensor | None,
    out: Tensor,
    kept: Tensor,
) -> list[Tensor]:
    """Gradients of S, ‖x‖², ‖w‖², ε, b and s, the last two where they are."""
    terms = Terms(query_square, key_square, b, epsilon, scale)
    sums, totals = terms.scaled_sums(), Totals.zeros(terms)
    to_dot = torch.empty_like(grad, dtype=query_square.dtype)
    free = _scratch(to_dot)
    factor = 2.0 if scale is None else 2.0 * scale
    for block in _blocks(to_dot):
        part = to_dot[block]
        given = _like(free[0], part), _like(free[1], part)
        differentiate(grad[block], out[block], kept[block], block, sums.at(block), totals, given, part)
        part.mul_(factor)
    done = totals.finished(terms)
    extras = [extra for extra in (done.bias, done.scale) if extra is not None]
    return [to_dot, done.query_square, done.key_square, done.epsilon, *extras]


def _blocks(dot: Tensor) -> list[Block]:
    n, groups, units, points = dot.shape
    return list(blocks((n, groups, units, points), block_elements(BLOCK_ELEMENTS)))


def _scratch(dot: Tensor) -> Tensor:
    """Two arrays as large as any block."""
    return dot.new_empty(2, min(dot.numel(), max(block_elements(BLOCK_ELEMENTS), dot.shape[-1])))


def _like(free: Tensor, part: Tensor) -> Tensor:
    return free[: part.numel()].view(part.shape)


@yat_response.register_fake
def _(
    dot: Tensor,
    query_square: Tensor,
    key_square: Tensor,
    b: Tensor | None,
    epsilon: Tensor,
    scale: Tensor | None,
    out_dtype: torch.dtype,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    kept = kept_dtype(out_dtype, has_bias=b is not None)
    return (
        dot.new_empty(dot.shape, dtype=out_dtype),
        dot.new_empty(dot.shape if keep else (0, 0, 0, 0), dtype=kept),
    )


@yat_response_backward.register_fake
def _(
    grad: Tensor,
    query_square: Tensor,
    key_square: Tensor,
    b: Tensor | None,
    epsilon: Tensor,
    scale: Tensor | None,
    out: Tensor,
    kept: Tensor,
) -> list[Tensor]:
    extras = [torch.empty_like(extra) for extra in (b, scale) if extra is not None]
    to_dot = grad.new_empty(grad.shape, dtype=query_square.dtype)
    return [to_dot, *(torch.empty_like(term) for term in (query_square, key_square, epsilon)), *extras]


def _setup_context(ctx: Any, inputs: Inputs, output: tuple[Tensor, Tensor]) -> None:
    _, query_square, key_square, b, epsilon, scale, _, _ = inputs
    ctx.mark_non_differentiable(output[1])
    # else a gradient of zeros would be made for what is kept
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(query_square, key_square, b, epsilon, scale, *output)


def _differentiate(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 8
    query_square, key_square, b, epsilon, scale, out, kept = ctx.saved_tensors
    to_dot, to_query, to_key, to_epsilon, *rest = yat_response_backward(
        grad.contiguous(), query_square, key_square, b, epsilon, scale, out, kept
    )
    to_scale = rest.pop() if scale is not None else None
    to_b = rest.pop() if b is not None else None
    return to_dot, to_query, to_key, to_b, to_epsilon, to_scale, None, None


def _plain(
    dot: Tensor,
    query_square: Tensor,
    key_square: Tensor,
    b: Tensor | None,
    epsilon: Tensor,
    scale: Tensor | None,
    out_dtype: torch.dtype,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """Y in differentiable operations; what is kept for the backward is not needed, and 0."""
    out = response(dot, query_square, key_square, b, epsilon)
    out = (out if scale is None else out * scale).to(out_dtype)
    kept = kept_dtype(out_dtype, has_bias=b is not None)
    return out, dot.new_zeros(out.shape if keep else (0, 0, 0, 0), dtype=kept)


differentiable(yat_response, _differentiate, setup_context=_setup_context, plain=_plain)
# the products are not kept for it
differentiable(yat_response_backward, instead="fredholm.kernels.yat of the patches has one")
