"""Yat responses of given products as one PyTorch operator: what a convolution's patches and filters answer."""

from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.evaluation.custom_op import Operator
from fredholm.kernels.attention.yat_product import response
from fredholm.layers.yat_response.differentiate import Totals, differentiate
from fredholm.layers.yat_response.respond import Answers, kept_dtype, respond
from fredholm.layers.yat_response.terms import Terms
from fredholm.layers.yat_response.tiling import BLOCK_ELEMENTS, Block, block_elements, blocks


class ResponseInputs(NamedTuple):
    """Products S of N signals, G groups of U units and L points, and what belongs to them."""

    dot: Tensor  # S: (N, G, U, L), float32 or float64
    query_square: Tensor  # ‖x‖²: (N, G, 1, L); NaN where it is not finite (`squares`)
    key_square: Tensor  # ‖w‖²: (1, G, U, 1)
    b: Tensor | None  # (1, G, U, 1)
    epsilon: Tensor  # 0-dim
    scale: Tensor | None  # 0-dim; None: 1


def _like(inputs: ResponseInputs, out_dtype: torch.dtype, keep: bool) -> Answers:
    shape, dtype = inputs.dot.shape, kept_dtype(out_dtype, has_bias=inputs.b is not None)
    return Answers(
        inputs.dot.new_empty(shape, dtype=out_dtype), inputs.dot.new_empty(shape, dtype=dtype) if keep else None
    )


def _forward(inputs: ResponseInputs, out_dtype: torch.dtype, keep: bool) -> Answers:
    terms, dot, (out, kept) = Terms(*inputs[1:]), inputs.dot.contiguous(), _like(inputs, out_dtype, keep)
    free = _scratch(dot)
    for block in _blocks(dot):
        part = dot[block]
        given = _like_part(free[0], part), _like_part(free[1], part)
        respond(part, terms.at(block), given, out[block], None if kept is None else kept[block])
    return Answers(out, kept)


def _backward(
    inputs: ResponseInputs,
    outputs: Answers,
    grads: Answers,
    wanted: frozenset[str],
    out_dtype: torch.dtype,
    keep: bool,
) -> dict[str, Tensor]:
    terms, (out, kept), (grad, _) = Terms(*inputs[1:]), outputs, grads
    assert kept is not None
    sums, totals = terms.scaled_sums(), Totals.zeros(terms)
    to_dot = torch.empty_like(grad, dtype=terms.query_square.dtype)
    free = _scratch(to_dot)
    factor = 2.0 if terms.scale is None else 2.0 * terms.scale
    for block in _blocks(to_dot):
        part = to_dot[block]
        given = _like_part(free[0], part), _like_part(free[1], part)
        differentiate(grad[block], out[block], kept[block], block, sums.at(block), totals, given, part)
        part.mul_(factor)
    done = totals.finished(terms)
    found = {
        "dot": to_dot,
        "query_square": done.query_square,
        "key_square": done.key_square,
        "b": done.bias,
        "epsilon": done.epsilon,
        "scale": done.scale,
    }
    return {name: grad for name, grad in found.items() if grad is not None}


def _plain(inputs: ResponseInputs, out_dtype: torch.dtype, keep: bool) -> tuple[Tensor]:
    dot, query_square, key_square, b, epsilon, scale = inputs
    out = response(dot, query_square, key_square, b, epsilon)
    return ((out if scale is None else out * scale).to(out_dtype),)


def _blocks(dot: Tensor) -> list[Block]:
    n, groups, units, points = dot.shape
    return list(blocks((n, groups, units, points), block_elements(BLOCK_ELEMENTS)))


def _scratch(dot: Tensor) -> Tensor:
    """Two arrays as large as any block."""
    return dot.new_empty(2, min(dot.numel(), max(block_elements(BLOCK_ELEMENTS), dot.shape[-1])))


def _like_part(free: Tensor, part: Tensor) -> Tensor:
    return free[: part.numel()].view(part.shape)


yat_response = Operator(
    "yat_response",
    ResponseInputs,
    Answers,
    _forward,
    _like,
    _backward,
    results=("out",),
    keeps=("out", "kept"),
    forgets=("dot",),
    plain=_plain,
    instead="fredholm.kernels.yat of the patches has one",
)
"""Y, `(N, G, U, L)`. Its options: the dtype of Y, and whether a backward may come."""
