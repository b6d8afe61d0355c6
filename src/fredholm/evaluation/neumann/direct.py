"""The series by one factorisation of I - B, which holds N x N numbers a head.

Nobody reads the series at a point without mass, so its row of B is left out: before any mass is met the norm of a
causal row may be next to nothing, and the row so large that the others drown in the factors.
"""

from typing import final

import torch
from torch import Tensor

from fredholm.evaluation.neumann.system import System


@final
class Factors:
    """The factors of I - B of some heads; ready for both directions.

    Args:
        memory: `(g, N, N)`, which holds their transpose, so that the factorisation needs no copy.
        pivots: `(g, N)`, int32.
    """

    def __init__(self, memory: Tensor, pivots: Tensor) -> None:
        self._matrix, self._pivots = memory.mT, pivots

    @classmethod
    def within(cls, memory: Tensor, pivots: Tensor, system: System) -> "Factors":
        """The factors of a system, in given memory."""
        tiles, matrix, nobody_reads = system.tiles, memory.mT, _without_mass(system)
        memory.zero_()
        for rows in tiles.rows_of(system.heads):
            weight = -system.weight[:, rows.rows]
            if nobody_reads is not None:
                weight = weight.where(~nobody_reads[:, rows.rows], 0.0)
            for columns in tiles.columns_of(rows):
                matrix[:, rows.rows, columns] = weight * tiles.hop(rows, columns)
        matrix.diagonal(dim1=-2, dim2=-1).add_(1.0)
        # one by one, since a batch in several threads may stall on a CPU (`solve_each`)
        for head in range(len(matrix)):
            factors = matrix[head], pivots[head], pivots.new_empty(())
            torch.linalg.lu_factor_ex(matrix[head], out=factors)
        return cls(memory, pivots)

    def solve(self, system: System, signal: Tensor, *, adjoint: bool = False) -> Tensor:
        """x = B f + B x, or with Bᵀ, `(g, N, c)`."""
        nobody_reads = _without_mass(system) if adjoint else None
        if nobody_reads is not None:  # but what comes from these rows goes through the others
            signal = signal + system.apply(signal.where(nobody_reads, 0.0), adjoint=True)
        reached = torch.linalg.lu_solve(self._matrix, self._pivots, signal, adjoint=adjoint)
        # a hop more, as taking f off what it reached would cost the digits of a small x
        return system.apply(reached, adjoint=adjoint)


def _without_mass(system: System) -> Tensor | None:
    """Which points nobody reads, `(g or 1, N, 1)`; None: none."""
    mass = system.mass()
    return None if mass is None or bool((mass > 0).all()) else mass == 0
