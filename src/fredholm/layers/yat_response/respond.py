"""The responses of one block, with scratch arrays that stay in cache; see the package for the formulas."""

from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.layers.yat_response.terms import Terms

# what the byte of an entry says besides the sign of S
AT_FLOOR = 2


class Answers(NamedTuple):
    """What units answer."""

    out: Tensor  # Y
    kept: Tensor | None  # what the backward needs besides Y and its inputs, of the same shape; None: none may come


def kept_dtype(out_dtype: torch.dtype, *, has_bias: bool) -> torch.dtype:
    """Of what an entry leaves for the backward: r with a bias, else a byte."""
    return out_dtype if has_bias else torch.int8


def respond(dot: Tensor, terms: Terms, scratch: tuple[Tensor, Tensor], out: Tensor, kept: Tensor | None) -> None:
    """Writes Y into `out`, which may be `dot` itself, and what the backward needs into `kept`.

    Args:
        dot: S, `(N, G, U, L)`.
        terms: of the same block.
        scratch: two arrays like `dot`.
        out: like `dot`, of any floating dtype.
        kept: like `dot`, of `kept_dtype`; None where no backward will come.
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
    """Where rounding has put a squared distance below 0; None where it is known to be nowhere."""
    # a look at the least entry is cheaper than a mask, but makes a GPU wait
    if distance.device.type == "cpu" and bool(distance.amin() >= 0):
        return None
    return distance < 0
