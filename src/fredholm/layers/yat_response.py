"""Yat responses of many units at once, block by block, with gradients that store little.

Every entry is Y = s T r with T = S + b, D = max(‖x‖² + ‖w‖² - 2 S, 0) + ε and r = T / D, from which

    ∂Y/∂S = 2 s r (1 + r)    ∂Y/∂b = 2 s r    ∂Y/∂‖x‖² = ∂Y/∂‖w‖² = ∂Y/∂ε = -s r²    ∂Y/∂s = Y / s

where D is not at its floor; where it is, ∂Y/∂S = 2 s r and those of ‖x‖² and ‖w‖² are 0. So r is all that the backward
needs. Without b it need not be stored: Y is the input of the next layer, and with C = ‖x‖² + ‖w‖² + ε and v = Y / (s C)
the definition says r² = v (1 + 2 r), so that

    r = v + σ √(v² + v),   σ = sign S,

free of cancellation, since S < 0 has v ≤ 1/8. A byte per entry holds σ, and 2 where D is at its floor. With b the sign
does not decide (C + 2 b may be negative) and r itself is stored, ±∞ where D is at its floor: there r = ±√(Y / (s ε)).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self, final

import torch
from torch import Tensor

from fredholm.domains.checks import values_are_at_hand
from fredholm.evaluation.custom_op import Operator
from fredholm.kernels.attention.yat import response

Block = tuple[slice, slice, slice]

# entries per thread of a block, and of each scratch array: half a megabyte in float32. Four of them nearly fit a core's
# L2 cache, and the work is still long compared with the synchronisation of threads
BLOCK_ELEMENTS = 2**17
# flag in the byte of an entry, besides the sign of S: D is at its floor
AT_FLOOR = 2


@final
@dataclass(frozen=True)
class Terms:
    """Legend of one block: S is `(N, G, U, L)`, for N signals of G groups of U units at L points each.

    Attributes:
        query_square: ‖x‖², `(N, G, 1, L)`.
        key_square: ‖w‖², `(1, G, U, 1)`.
        bias: b, `(1, G, U, 1)`; None: 0.
        epsilon: ε, 0-dim.
        scale: s, 0-dim; None: 1.
    """

    query_square: Tensor
    key_square: Tensor
    bias: Tensor | None
    epsilon: Tensor
    scale: Tensor | None

    def at(self, block: Block) -> Self:
        """The terms of one block."""
        n, g, u = block
        bias = None if self.bias is None else self.bias[:, g, u]
        return type(self)(self.query_square[n, g], self.key_square[:, g, u], bias, self.epsilon, self.scale)

    def scaled_sums(self) -> Self:
        """The terms with s (‖x‖² + ε) and s ‖w‖², whose sum is s C, for the backward; clamped for division."""
        tiny = torch.finfo(self.query_square.dtype).tiny
        query, key = self.query_square + self.epsilon, self.key_square
        if self.scale is not None:
            query, key = query * self.scale, key * self.scale
        return type(self)(query.clamp_min(tiny), key, self.bias, self.epsilon, self.scale)


def squares(vectors: Tensor) -> Tensor:
    """‖v‖² of `(M, d)`, NaN where it is not finite: such a vector would otherwise give a plausible response of 0."""
    # some rows at a time, so that their squares stay in cache
    rows = max(1, BLOCK_ELEMENTS // max(1, vectors.shape[-1]))
    found = torch.cat([part.square().sum(-1) for part in vectors.split(rows)])
    return torch.where(found.isinf(), torch.nan, found)


class Answers(NamedTuple):
    """Responses of Yat units."""

    out: Tensor  # Y
    kept: Tensor | None  # residuals for the backward besides Y and its inputs, of the same shape; None: no backward


def kept_dtype(out_dtype: torch.dtype, *, has_bias: bool) -> torch.dtype:
    """Dtype of `kept`: that of r with a bias, else a byte."""
    return out_dtype if has_bias else torch.int8


def respond(dot: Tensor, terms: Terms, scratch: tuple[Tensor, Tensor], out: Tensor, kept: Tensor | None) -> None:
    """Writes Y into `out`, which may be `dot` itself, and the residuals of the backward into `kept`.

    Args:
        dot: S, `(N, G, U, L)`.
        terms: terms of the same block.
        scratch: two arrays like `dot`.
        out: like `dot`, of any floating dtype.
        kept: like `dot`, of `kept_dtype`; None: no backward.
    """
    ratio, numerator = scratch
    torch.add(terms.query_square, terms.key_square, out=ratio)
    ratio.sub_(dot, alpha=2)
    at_floor = _below_zero(ratio)
    if at_floor is not None:
        ratio.clamp_min_(0)
    ratio.add_(terms.epsilon)
    if terms.bias is None:
        if kept is not None:
            kept.copy_(torch.sgn(dot, out=numerator))
            if at_floor is not None:
                kept.masked_fill_(at_floor, AT_FLOOR)
        numerator = dot
    else:
        torch.add(dot, terms.bias, out=numerator)
    torch.div(numerator, ratio, out=ratio)
    if terms.bias is not None and kept is not None:
        kept.copy_(ratio)
        if at_floor is not None:
            kept.copy_(torch.where(at_floor, torch.copysign(torch.full_like(ratio, torch.inf), ratio), kept))
    if terms.scale is not None:
        numerator = torch.mul(numerator, terms.scale, out=scratch[1])
    torch.mul(numerator, ratio, out=out)


def _below_zero(distance: Tensor) -> Tensor | None:
    """Mask of squared distances that rounding has made negative; None where there are known to be none."""
    # reading the minimum is cheaper than a mask, but would synchronise with a GPU
    if values_are_at_hand(distance) and bool(distance.amin() >= 0):
        return None
    return distance < 0


@final
@dataclass(frozen=True)
class Totals:
    """Gradients of all inputs but S, summed block by block and still to be scaled by `finished`.

    Shapes are those of `Terms`; those of `epsilon` and `scale` are 0-dim, float64. `epsilon` sums only the entries at
    the floor of D; those of all other entries are the sum of `query_square`.
    """

    query_square: Tensor
    key_square: Tensor
    bias: Tensor | None
    epsilon: Tensor
    scale: Tensor | None

    @classmethod
    def zeros(cls, terms: Terms) -> Self:
        """Zero totals, before the first block."""
        number = torch.zeros((), dtype=torch.float64, device=terms.query_square.device)
        return cls(
            torch.zeros_like(terms.query_square),
            torch.zeros_like(terms.key_square),
            None if terms.bias is None else torch.zeros_like(terms.bias),
            number,
            None if terms.scale is None else number.clone(),
        )

    def finished(self, terms: Terms) -> Self:
        """The scaled gradients, after the last block."""
        s = 1.0 if terms.scale is None else terms.scale
        epsilon = self.epsilon + self.query_square.sum(dtype=torch.float64)
        return type(self)(
            self.query_square * -s,
            self.key_square * -s,
            None if self.bias is None else self.bias * (2 * s),
            (epsilon * -s).to(terms.epsilon.dtype),
            None if self.scale is None or terms.scale is None else (self.scale / s).to(terms.scale.dtype),
        )


def differentiate(
    grad: Tensor,
    out: Tensor,
    kept: Tensor,
    block: Block,
    sums: Terms,
    totals: Totals,
    scratch: tuple[Tensor, Tensor],
    to_dot: Tensor,
) -> None:
    """Writes ∂/∂S without its factor 2 s into `to_dot`, and adds the rest to `totals`.

    Args:
        grad: gradient of Y, `(N, G, U, L)`, any floating dtype.
        out: Y, and `kept`, both as `respond` wrote them.
        block: slices of the totals that belong to this block.
        sums: `Terms.scaled_sums` of the block.
        totals: totals of the whole array.
        scratch: two arrays like `to_dot`.
        to_dot: like `grad`, in the working dtype.
    """
    ratio, pull = scratch
    at_floor = _ratio(out, kept, sums, ratio, pull, to_dot)
    n, g, u = block
    if totals.scale is not None:
        totals.scale.add_(torch.mul(grad, out, out=pull).sum())
    torch.mul(grad, ratio, out=to_dot)
    if totals.bias is not None:
        totals.bias[:, g, u].add_(to_dot.sum((0, 3), keepdim=True))
    torch.mul(to_dot, ratio, out=pull)
    if at_floor is not None:
        totals.epsilon.add_(torch.where(at_floor, pull, 0).sum())
        pull.masked_fill_(at_floor, 0)
    totals.query_square[n, g].add_(pull.sum(2, keepdim=True))
    totals.key_square[:, g, u].add_(pull.sum((0, 3), keepdim=True))
    to_dot.add_(pull)


def _ratio(out: Tensor, kept: Tensor, sums: Terms, ratio: Tensor, root: Tensor, sign: Tensor) -> Tensor | None:
    """Writes r into `ratio`; returns the mask where D is at its floor, None where there are known to be none."""
    if sums.bias is None:
        torch.add(sums.query_square, sums.key_square, out=ratio)
        torch.div(out, ratio, out=ratio)
        torch.addcmul(ratio, ratio, ratio, out=root).sqrt_()
        sign.copy_(kept)
        at_floor = None
        if not values_are_at_hand(kept) or bool(kept.amax() == AT_FLOOR):
            at_floor = kept == AT_FLOOR
            sign.clamp_max_(1)
        torch.addcmul(ratio, root, sign, out=ratio)
        return at_floor
    ratio.copy_(kept)
    if values_are_at_hand(kept) and bool(ratio.amax() < torch.inf) and bool(ratio.amin() > -torch.inf):
        return None
    at_floor = ratio.isinf()
    floor = sums.epsilon if sums.scale is None else sums.epsilon * sums.scale
    ratio.copy_(torch.where(at_floor, torch.copysign(torch.sqrt(out / floor), ratio), ratio))
    return at_floor


def blocks(shape: tuple[int, int, int, int], elements: int) -> Iterator[Block]:
    """Slices of the first three dimensions of `shape` that together cover it once.

    A block holds at most `elements` entries, or one run of the last dimension where that alone holds more. It is a
    contiguous piece of a contiguous array.
    """
    n, groups, units, points = shape
    if n * groups * units * points == 0:
        return
    if (whole := groups * units * points) <= elements:
        for run in runs(n, elements // whole):
            yield run, slice(0, groups), slice(0, units)
        return
    for i in range(n):
        if (group := units * points) <= elements:
            for run in runs(groups, elements // group):
                yield slice(i, i + 1), run, slice(0, units)
            continue
        for g in range(groups):
            for run in runs(units, max(1, elements // points)):
                yield slice(i, i + 1), slice(g, g + 1), run


def block_elements(per_thread: int) -> int:
    """Number of entries of a block that all threads work on."""
    return per_thread * torch.get_num_threads()


def runs(total: int, step: int) -> Iterator[slice]:
    """Slices of at most `step` that cover `total` once."""
    for start in range(0, total, step):
        yield slice(start, min(start + step, total))


class ResponseInputs(NamedTuple):
    """Products S of N signals, G groups of U units and L points, with norms and parameters."""

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
    """Two scratch arrays as large as any block."""
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
"""Y, `(N, G, U, L)`. Options: the dtype of Y, and whether to keep the residuals for a backward pass."""
