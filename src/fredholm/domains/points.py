"""Scattered points."""

from typing import final

from torch import Tensor

from fredholm.domains.domain import Domain


@final
class Points(Domain):
    """Points without structure.

    Args:
        pos: `(N, s)` or, with positions of its own for every batch entry, `(B, N, s)`; float and finite.
        weights: mass of each point, `(N,)` or `(B, N)`, >= 0; default uniform with total mass 1.
        mask: `(N,)` or `(B, N)` bool, True = this point exists.

    Raises:
        ValueError: on shapes that do not fit each other, NaN or infinite positions, negative weights.
        TypeError: on a mask that is not bool or weights that are not float.
    """

    def __init__(self, pos: Tensor, weights: Tensor | None = None, mask: Tensor | None = None) -> None:
        self._set(pos, weights, mask)
