"""Groups acting on samples, with random elements that move positions or reorder points.

x -> A x + b, and point i -> point order[i]
"""

import abc
import dataclasses
import math
from typing import NamedTuple, final

import torch
from torch import Tensor


class Move(NamedTuple):
    """One element of a group."""

    matrix: Tensor
    """A, `(s, s)`, float64."""
    shift: Tensor
    """b, `(s,)`, float64."""
    order: Tensor | None = None
    """Permutation of the points, `(N,)`: the index of the first, second, ... point; None: unchanged."""

    def __call__(self, pos: Tensor) -> Tensor:
        """A x + b of positions `(..., s)`, computed in float64, in their dtype and on their device."""
        moved = pos.double() @ self.matrix.to(pos.device).mT + self.shift.to(pos.device)
        return moved.to(pos.dtype)


class Moves(abc.ABC):
    """A group with a distribution of random elements; a frozen value."""

    @abc.abstractmethod
    def draw(self, pos_dim: int, num_points: int, generator: torch.Generator | None = None) -> Move:
        """Draws one element for N points in R^s with a generator on the CPU; None: torch's global seed."""


@final
@dataclasses.dataclass(frozen=True)
class Translations(Moves):
    """x -> x + b, b uniform in ±size along each axis."""

    size: float = 1.0

    def draw(self, pos_dim: int, num_points: int, generator: torch.Generator | None = None) -> Move:
        """See `Moves.draw`."""
        return Move(_identity(pos_dim), self.size * (2 * _uniform(pos_dim, generator) - 1))


@final
@dataclasses.dataclass(frozen=True)
class Scalings(Moves):
    """x -> a x, log a uniform between log low and log high."""

    low: float = 0.5
    high: float = 2.0

    def draw(self, pos_dim: int, num_points: int, generator: torch.Generator | None = None) -> Move:
        """See `Moves.draw`."""
        return Move(_sizes(self.low, self.high, 1, generator) * _identity(pos_dim), _nowhere(pos_dim))


@final
@dataclasses.dataclass(frozen=True)
class AnisotropicScalings(Moves):
    """x -> D x with D diagonal, each log D_kk uniform between log low and log high."""

    low: float = 0.5
    high: float = 2.0

    def draw(self, pos_dim: int, num_points: int, generator: torch.Generator | None = None) -> Move:
        """See `Moves.draw`."""
        return Move(torch.diag(_sizes(self.low, self.high, pos_dim, generator)), _nowhere(pos_dim))


@final
@dataclasses.dataclass(frozen=True)
class Rotations(Moves):
    """x -> R x, R uniform in SO(s)."""

    def draw(self, pos_dim: int, num_points: int, generator: torch.Generator | None = None) -> Move:
        """See `Moves.draw`."""
        R = _orthogonal(pos_dim, generator)
        R[:, 0] *= torch.sign(torch.linalg.det(R))
        return Move(R, _nowhere(pos_dim))


@final
@dataclasses.dataclass(frozen=True)
class OrthogonalMaps(Moves):
    """x -> R x, R uniform in O(s): rotations and reflections."""

    def draw(self, pos_dim: int, num_points: int, generator: torch.Generator | None = None) -> Move:
        """See `Moves.draw`."""
        return Move(_orthogonal(pos_dim, generator), _nowhere(pos_dim))


@final
@dataclasses.dataclass(frozen=True)
class LinearMaps(Moves):
    """x -> R D R' x in GL(s), R and R' uniform in O(s) and the singular values as in `AnisotropicScalings`."""

    low: float = 0.5
    high: float = 2.0

    def draw(self, pos_dim: int, num_points: int, generator: torch.Generator | None = None) -> Move:
        """See `Moves.draw`."""
        first, second = (_orthogonal(pos_dim, generator) for _ in range(2))
        return Move(first * _sizes(self.low, self.high, pos_dim, generator) @ second, _nowhere(pos_dim))


@final
@dataclasses.dataclass(frozen=True)
class Permutations(Moves):
    """Permutations of the order of points, which keep their positions and values."""

    def draw(self, pos_dim: int, num_points: int, generator: torch.Generator | None = None) -> Move:
        """See `Moves.draw`."""
        return Move(_identity(pos_dim), _nowhere(pos_dim), torch.randperm(num_points, generator=generator))


def _identity(pos_dim: int) -> Tensor:
    return torch.eye(pos_dim, dtype=torch.float64)


def _nowhere(pos_dim: int) -> Tensor:
    return torch.zeros(pos_dim, dtype=torch.float64)


def _uniform(count: int, generator: torch.Generator | None) -> Tensor:
    return torch.rand(count, generator=generator, dtype=torch.float64)


def _sizes(low: float, high: float, count: int, generator: torch.Generator | None) -> Tensor:
    if not 0 < low <= high < math.inf:
        raise ValueError(f"analysis.equivariance_error: sizes need 0 < low <= high; got {low}, {high}")
    return torch.exp(math.log(low) + (math.log(high) - math.log(low)) * _uniform(count, generator))


def _orthogonal(pos_dim: int, generator: torch.Generator | None) -> Tensor:
    """Draws uniformly from O(s), by a QR factorisation with a positive diagonal of R."""
    Q, R = torch.linalg.qr(torch.randn(pos_dim, pos_dim, generator=generator, dtype=torch.float64))
    return Q * torch.sign(R.diagonal())
