"""The gradients of one block of responses; see the package for the formulas."""

from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor

from fredholm.layers.yat_response.respond import AT_FLOOR
from fredholm.layers.yat_response.terms import Terms
from fredholm.layers.yat_response.tiling import Block


@final
@dataclass(frozen=True)
class Totals:
    """Gradients of everything but S, summed block by block and still to be scaled by `finished`.

    Shapes are those of `Terms`; those of `epsilon` and `scale` are 0-dim, float64. `epsilon` holds only what ‖x‖² does
    not: the entries at the floor of D.
    """

    query_square: Tensor
    key_square: Tensor
    bias: Tensor | None
    epsilon: Tensor
    scale: Tensor | None

    @classmethod
    def zeros(cls, terms: Terms) -> Self:
        """Before the first block."""
        number = torch.zeros((), dtype=torch.float64, device=terms.query_square.device)
        return cls(
            torch.zeros_like(terms.query_square),
            torch.zeros_like(terms.key_square),
            None if terms.bias is None else torch.zeros_like(terms.bias),
            number,
            None if terms.scale is None else number.clone(),
        )

    def finished(self, terms: Terms) -> Self:
        """The gradients, after the last block."""
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
        grad: of Y, `(N, G, U, L)`, any floating dtype.
        out: Y, and `kept`, both as `respond` wrote them.
        block: which piece of the totals this is.
        sums: `Terms.scaled_sums` of the block.
        totals: of the whole array.
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
    """r into `ratio`, with scratch `root` and `sign`; where D is at its floor, None where known to be nowhere."""
    if sums.bias is None:
        torch.add(sums.query_square, sums.key_square, out=ratio)
        torch.div(out, ratio, out=ratio)
        torch.addcmul(ratio, ratio, ratio, out=root).sqrt_()
        sign.copy_(kept)
        at_floor = None
        if kept.device.type != "cpu" or bool(kept.amax() == AT_FLOOR):
            at_floor = kept == AT_FLOOR
            sign.clamp_max_(1)
        torch.addcmul(ratio, root, sign, out=ratio)
        return at_floor
    ratio.copy_(kept)
    if kept.device.type == "cpu" and bool(ratio.amax() < torch.inf) and bool(ratio.amin() > -torch.inf):
        return None
    at_floor = ratio.isinf()
    floor = sums.epsilon if sums.scale is None else sums.epsilon * sums.scale
    ratio.copy_(torch.where(at_floor, torch.copysign(torch.sqrt(out / floor), ratio), ratio))
    return at_floor
