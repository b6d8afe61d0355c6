"""The series by iteration: GMRES, whose memory is that of a few signals.

Every hop adds a direction, and the sum Σ_t B^t f is replaced by the combination of directions that leaves the least
residual in L²(μ). A few outlying eigenvalues, as a hop of scores >= 0 has one, then cost a hop each, where the plain
series pays for the largest one again and again.

Source: Saad and Schultz 1986, with restarts. Deviation: the channels of a head are one vector.
"""

from typing import final

import torch
from torch import Tensor

from fredholm.evaluation.neumann.system import System
from fredholm.kernels.arithmetic import divided


@final
class Iteration:
    """Solves x = B f + B x, or with Bᵀ.

    Args:
        tolerance: largest residual of every head, relative to B f or x, whichever is larger.
        limit: hops at most.
        restart: directions kept at a time.
    """

    def __init__(self, tolerance: float, limit: int, restart: int) -> None:
        self.tolerance, self.limit, self.restart = tolerance, limit, restart

    def solve(self, system: System, signal: Tensor, *, adjoint: bool = False) -> Tensor:
        """x, `(g, N, c)`.

        Raises:
            ValueError: when the limit is reached before the tolerance.
        """
        weight = _weight(system, adjoint)
        residual = _weighed_part(system.apply(signal, adjoint=adjoint), weight)
        scale = _norm(residual, weight)  # (g,)
        x, hops = torch.zeros_like(residual), 1
        unsolved = scale > 0
        while True:
            x, taken = self._cycle(system, x, residual, scale, unsolved, weight, adjoint)
            # a hop more measures what is left, and what no mass weighs follows from the rest
            following = system.apply(signal + x, adjoint=adjoint)
            residual = _weighed_part(torch.sub(following, x, out=residual), weight)
            hops += taken + 1
            size = torch.maximum(scale, _norm(following, weight))
            left = _norm(residual, weight) / torch.where(size == 0, 1.0, size)
            unsolved = left > self.tolerance
            if not bool(unsolved.any()):
                return following
            if hops >= self.limit:
                raise ValueError(
                    f"HopIteration: after {hops} hops a relative residual of {left.max().item():.2g} is left, above "
                    f"tolerance = {self.tolerance:.2g}; allow more hops, a larger tolerance or a smaller gamma, or use "
                    "HopSolve"
                )

    def _cycle(
        self,
        system: System,
        x: Tensor,
        residual: Tensor,
        scale: Tensor,
        unsolved: Tensor,
        weight: Tensor | None,
        adjoint: bool,
    ) -> tuple[Tensor, int]:
        """A better x, in its place, from up to `restart` directions, and the number of hops; `residual` is used up.

        A head that is solved, `(g,)`, or becomes so on the way, gets no more directions: what is left of it is
        rounding, which a division by its norm would blow up.
        """
        start = _norm(residual, weight)
        basis = [residual.mul_(_inverse(start, unsolved, x.dtype))]
        size = self.restart
        upper = torch.zeros(len(x), size + 1, size, dtype=torch.float64, device=x.device)
        target = torch.zeros(len(x), size + 1, 1, dtype=torch.float64, device=x.device)
        target[:, 0, 0] = start
        shares = torch.zeros(len(x), size, dtype=torch.float64, device=x.device)
        while True:
            k = len(basis) - 1
            fresh = system.apply(basis[k], adjoint=adjoint).neg_().add_(basis[k])
            fresh = _weighed_part(fresh, weight)
            for i, direction in enumerate(basis):
                upper[:, i, k] = share = _inner(direction, fresh, weight)
                fresh.addcmul_(direction, share.to(x.dtype)[:, None, None], value=-1)
            upper[:, k + 1, k] = length = _norm(fresh, weight)
            found, left = _least_squares(upper[:, : k + 2, : k + 1], target[:, : k + 2])
            shares[:, : k + 1] = torch.where(unsolved[:, None], found, shares[:, : k + 1])
            unsolved = unsolved & (left > 0.5 * self.tolerance * scale)
            if k + 1 == size or not bool(unsolved.any()):
                break
            basis.append(fresh.mul_(_inverse(length, unsolved, x.dtype)))
        for i, direction in enumerate(basis):
            x.addcmul_(direction, shares[:, i].to(x.dtype)[:, None, None])
        return x, len(basis)


def _weight(system: System, adjoint: bool) -> Tensor | None:
    """The square of the norm that residuals have: of L²(μ), or of its dual."""
    mass = system.mass()
    if mass is None or not adjoint:
        return mass
    return divided(1.0, mass)


def _inner(a: Tensor, b: Tensor, weight: Tensor | None) -> Tensor:
    """⟨a, b⟩ of every head, `(g,)` in float64."""
    by_point = torch.linalg.vecdot(a, b).double()
    return by_point.sum(-1) if weight is None else (by_point * weight[..., 0]).sum(-1)


def _norm(a: Tensor, weight: Tensor | None) -> Tensor:
    return _inner(a, a, weight).sqrt()


def _weighed_part(signal: Tensor, weight: Tensor | None) -> Tensor:
    """The signal, in its place, with 0 where no mass weighs it: there a direction would grow without a norm to see."""
    return signal if weight is None else signal.masked_fill_(weight == 0, 0.0)


def _inverse(length: Tensor, unsolved: Tensor, dtype: torch.dtype) -> Tensor:
    """1 / length as it applies to `(g, N, c)`; 0 of what is 0, and of heads that are solved."""
    usable = unsolved & (length > 0)
    return torch.where(usable, 1 / torch.where(usable, length, 1.0), 0.0).to(dtype)[:, None, None]


def _least_squares(upper: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """z that makes ‖target - upper z‖ least, `(g, k)`, and that, `(g,)`; directions that are none get 0."""
    # a head that is NaN stays so by its directions; the decomposition would refuse it for all
    shares = torch.linalg.pinv(upper.nan_to_num(), rtol=1e-14) @ target.nan_to_num()
    return shares[..., 0], torch.linalg.vector_norm(target - upper @ shares, dim=(-2, -1))
