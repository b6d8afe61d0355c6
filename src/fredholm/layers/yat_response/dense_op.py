"""A layer of Yat units as one PyTorch operator: products and responses go together, a run of rows at a time."""

import math
from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import differentiable, pullback
from fredholm.kernels.attention.yat import response, working_dtype
from fredholm.layers.yat_response.differentiate import Totals, differentiate
from fredholm.layers.yat_response.respond import kept_dtype, respond
from fredholm.layers.yat_response.terms import Terms, squares
from fredholm.layers.yat_response.tiling import BLOCK_ELEMENTS, PRODUCT_ELEMENTS, block_elements, runs


@torch.library.custom_op("fredholm::yat_dense", mutates_args=())
def yat_dense(
    x: Tensor, w: Tensor, b: Tensor | None, epsilon: Tensor, scale: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor]:
    """Y, `(M, n)`, and what the backward needs besides Y, x and w, of the same shape.

    Args:
        x: points, `(M, d)`.
        w: prototypes, `(n, d)`, in the dtype of x, which is also that of Y; all else is in at least float32.
        b: `(n,)` or None.
        epsilon: 0-dim.
        scale: 0-dim or None for 1.
        keep: whether a backward may come; else the second result is empty.
    """
    with torch.autocast(x.device.type, enabled=False):
        return _forward(x, w, b, epsilon, scale, keep)


@torch.library.custom_op("fredholm::yat_dense_backward", mutates_args=())
def yat_dense_backward(
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    epsilon: Tensor,
    scale: Tensor | None,
    out: Tensor,
    kept: Tensor,
    wants_x: bool,
) -> list[Tensor]:
    """Gradients of x (empty unless `wants_x`), w, ε, b and s, the last two where they are."""
    with torch.autocast(x.device.type, enabled=False):
        return _backward(grad, x, w, b, epsilon, scale, out, kept, wants_x)


def _forward(
    x: Tensor, w: Tensor, b: Tensor | None, epsilon: Tensor, scale: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor]:
    (m, n), wide = (len(x), len(w)), w.to(working_dtype("yat_dense", x.dtype))
    terms, (rows, step) = _terms(x, wide, b, epsilon, scale), _steps(m, n)
    out = x.new_empty(m, n)
    kept = x.new_empty((m, n) if keep else (0, 0), dtype=kept_dtype(x.dtype, has_bias=b is not None))
    products = wide.new_empty(min(rows, m), n) if x.dtype != wide.dtype else None
    free = wide.new_empty(2, min(step, m), 1, n, 1)
    for run in runs(m, rows):
        dot = out[run] if products is None else products[: run.stop - run.start]
        torch.mm(x[run].to(wide.dtype), wide.mT, out=dot)
        for part in runs(len(dot), step):
            at, count = slice(run.start + part.start, run.start + part.stop), part.stop - part.start
            respond(
                _as_block(dot[part]),
                terms.at((at, _ALL, _ALL)),
                (free[0, :count], free[1, :count]),
                _as_block(out[at]),
                _as_block(kept[at]) if keep else None,
            )
    return out, kept


def _backward(
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    epsilon: Tensor,
    scale: Tensor | None,
    out: Tensor,
    kept: Tensor,
    wants_x: bool,
) -> list[Tensor]:
    (m, n), wide = (len(x), len(w)), w.to(working_dtype("yat_dense", x.dtype))
    terms, (rows, step) = _terms(x, wide, b, epsilon, scale), _steps(m, n)
    sums, totals = terms.scaled_sums(), Totals.zeros(terms)
    # ∂‖x‖²/∂x = 2 x shares the factor 2 s of ∂Y/∂S
    factor = 2.0 if scale is None else 2.0 * scale
    to_x, to_w = torch.empty_like(x, dtype=wide.dtype) if wants_x else wide.new_empty(0), torch.zeros_like(wide)
    to_dot, free = wide.new_empty(min(rows, m), n), wide.new_empty(2, min(step, m), 1, n, 1)
    for run in runs(m, rows):
        for part in runs(run.stop - run.start, step):
            at, count = slice(run.start + part.start, run.start + part.stop), part.stop - part.start
            differentiate(
                _as_block(grad[at]),
                _as_block(out[at]),
                _as_block(kept[at]),
                (at, _ALL, _ALL),
                sums.at((at, _ALL, _ALL)),
                totals,
                (free[0, :count], free[1, :count]),
                _as_block(to_dot[part]),
            )
        pulled, points = to_dot[: run.stop - run.start], x[run].to(wide.dtype)
        to_w.addmm_(pulled.mT, points)
        if wants_x:
            torch.mm(pulled, wide, out=to_x[run])
            to_x[run].addcmul_(points, totals.query_square[run].view(-1, 1), value=-1).mul_(factor)
    to_w.addcmul_(wide, totals.key_square.view(n, 1), value=-1).mul_(factor)
    done = totals.finished(terms)
    grads = [to_x.to(x.dtype), to_w.to(w.dtype), done.epsilon]
    if b is not None and done.bias is not None:
        grads.append(done.bias.view(n).to(b.dtype))
    if done.scale is not None:
        grads.append(done.scale)
    return grads


_ALL = slice(None)


def _terms(x: Tensor, wide: Tensor, b: Tensor | None, epsilon: Tensor, scale: Tensor | None) -> Terms:
    bias = None if b is None else b.to(wide.dtype).view(1, 1, -1, 1)
    return Terms(squares(x.to(wide.dtype)).view(-1, 1, 1, 1), squares(wide).view(1, 1, -1, 1), bias, epsilon, scale)


def _steps(m: int, n: int) -> tuple[int, int]:
    """Rows of one matrix product, with no small rest, and rows of one block."""
    most = max(1, PRODUCT_ELEMENTS // max(1, n))
    return max(1, math.ceil(m / math.ceil(max(1, m) / most))), max(1, block_elements(BLOCK_ELEMENTS) // max(1, n))


def _as_block(rows: Tensor) -> Tensor:
    """`(M, n)` as M signals of one group of n units at one point."""
    return rows[:, None, :, None]


@yat_dense.register_fake
def _(
    x: Tensor, w: Tensor, b: Tensor | None, epsilon: Tensor, scale: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor]:
    m, n = len(x), len(w)
    return x.new_empty(m, n), x.new_empty((m, n) if keep else (0, 0), dtype=kept_dtype(x.dtype, has_bias=b is not None))


@yat_dense_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    epsilon: Tensor,
    scale: Tensor | None,
    out: Tensor,
    kept: Tensor,
    wants_x: bool,
) -> list[Tensor]:
    extras = [torch.empty_like(extra) for extra in (b, scale) if extra is not None]
    return [torch.empty_like(x) if wants_x else x.new_empty(0), torch.empty_like(w), torch.empty_like(epsilon), *extras]


def _setup_context(
    ctx: Any,
    inputs: tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor | None, bool],
    output: tuple[Tensor, Tensor],
) -> None:
    x, w, b, epsilon, scale, _ = inputs
    ctx.mark_non_differentiable(output[1])
    # else a gradient of zeros would be made for what is kept
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, w, b, epsilon, scale, *output)


def _differentiate(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 6
    x, w, b, epsilon, scale, out, kept = ctx.saved_tensors
    wants_x = ctx.needs_input_grad[0]
    to_x, to_w, to_epsilon, *rest = yat_dense_backward(grad.contiguous(), x, w, b, epsilon, scale, out, kept, wants_x)
    to_scale = rest.pop() if scale is not None else None
    to_b = rest.pop() if b is not None else None
    return to_x if wants_x else None, to_w, to_b, to_epsilon, to_scale, None


def _plain(
    x: Tensor, w: Tensor, b: Tensor | None, epsilon: Tensor, scale: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor]:
    """Y in differentiable operations; what is kept for the backward is not needed, and 0."""
    with torch.autocast(x.device.type, enabled=False):
        dtype = working_dtype("yat_dense", x.dtype)
        points, wide, bias = x.to(dtype), w.to(dtype), None if b is None else b.to(dtype)
        out = response(points @ wide.mT, squares(points)[:, None], squares(wide), bias, epsilon)
        out = (out if scale is None else out * scale).to(x.dtype)
    return out, x.new_zeros(out.shape if keep else (0, 0), dtype=kept_dtype(x.dtype, has_bias=b is not None))


def _plain_backward(
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    epsilon: Tensor,
    scale: Tensor | None,
    out: Tensor,
    kept: Tensor,
    wants_x: bool,
) -> list[Tensor]:
    def forward(moved: list[Tensor]) -> list[Tensor]:
        x, w, epsilon, *extras = moved
        scale = extras.pop() if has_scale else None
        return [_plain(x, w, extras.pop() if extras else None, epsilon, scale, keep=False)[0]]

    has_scale = scale is not None
    given = [x, w, epsilon, *(extra for extra in (b, scale) if extra is not None)]
    return pullback(forward, [grad], given, [wants_x, *(True for _ in given[1:])])


differentiable(yat_dense, _differentiate, setup_context=_setup_context, plain=_plain)
differentiable(yat_dense_backward, plain=_plain_backward)
