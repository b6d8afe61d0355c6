"""Measures an operator's equivariance to translations, rotations and permutations of its points."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from fredholm.domains import Domain, Points

from .equivariance import SetOperator, equivariance_error
from .moves import Moves, Permutations, Rotations, Translations

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@final
@dataclass(frozen=True, kw_only=True)
class Symmetry:
    """Equivariance errors by the name of the group.

    Args:
        errors: the largest relative error over draws and sets, see `EquivarianceError`.
        refused: reasons by group for which the error could not be measured.
    """

    errors: Mapping[str, float]
    refused: Mapping[str, str]

    def plot(self, axes: "Axes | None" = None) -> "Axes":
        """Draws one bar per group on a logarithmic axis.

        Args:
            axes: axes of matplotlib; None: those of a new figure.

        Raises:
            ImportError: matplotlib is not installed.
        """
        from .plotting import new_axes

        axes = new_axes(axes)
        axes.bar(list(self.errors), [max(error, 1e-17) for error in self.errors.values()])
        axes.set_yscale("log")
        axes.set_ylabel("relative error")
        return axes


def symmetry(
    operator: SetOperator,
    u: Tensor,
    domain: Domain,
    *,
    groups: Mapping[str, Moves] | None = None,
    num_moves: int = 4,
    seed: int = 0,
) -> Symmetry:
    """Measures `equivariance_error` under several groups, and lists those that the operator refuses.

    Args:
        operator: see `equivariance_error`; it must take `Points`.
        u: the signal, `(B, N, C)`.
        domain: domain of the signal; grids and times are not kept.
        groups: groups by name; None: translations by up to one half, rotations where there are two coordinates or
            more, and permutations.
        num_moves: number of moves of each group.
        seed: random seed of the moves.
    """
    if groups is None:
        groups = {"translations": Translations(0.5), "permutations": Permutations()}
        groups |= {"rotations": Rotations()} if domain.pos_dim > 1 else {}
    weights = None if domain.is_even else domain.weights
    points = Points(domain.pos, weights, domain.mask, periodic=domain.is_periodic)
    errors, refused = dict[str, float](), dict[str, str]()
    for name, moves in groups.items():
        generator = torch.Generator().manual_seed(seed)
        try:
            found = equivariance_error(operator, moves, u, points, num_moves=num_moves, generator=generator)
            errors[name] = float(found.relative.max())
        except (ValueError, TypeError) as error:
            refused[name] = str(error)
    return Symmetry(errors=errors, refused=refused)
