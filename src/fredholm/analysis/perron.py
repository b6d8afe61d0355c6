"""The Perron vector of non-negative weights, by power iteration.

Legend
    A ≥ 0        weights, `(..., N, N)`, or a function that applies them        x    the iterate, ‖x‖₁ = 1
    λ            ‖A x‖₁

    x ← (A x / λ + x) / 2,   until ‖A x - λ x‖₁ ≤ tolerance · λ

Source: Infinite Self-Attention, eq. 24-26. Deviation: the mean with x, so that graphs whose walks return in step, such
as two points that give to each other alone, converge too; the limit is the same.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fredholm.analysis.checks import checked_matrix

NAME = "analysis.perron_vector"


class PerronVector(NamedTuple):
    """The vector x >= 0 with A x = ρ x, ρ the spectral radius, and its residual."""

    vector: Tensor
    """x, `(..., N)`, which sums to 1."""
    radius: Tensor
    """ρ, `(...)`."""
    residual: Tensor
    """‖A x - ρ x‖₁ / ρ, `(...)`."""
    iterations: int


def perron_vector(
    A: Tensor | Callable[[Tensor], Tensor],
    *,
    start: Tensor | None = None,
    tolerance: float = 1e-8,
    max_iterations: int = 10_000,
    allow_reducible: bool = False,
) -> PerronVector:
    """Computes x > 0 with A x = ρ x, without gradients; unique where A is irreducible.

    Args:
        A: weights >= 0, `(..., N, N)`, read in float64; or a function from x `(..., N)` to A x.
        start: initial x, `(..., N)`, > 0; None: constant. A function needs one, and works in its dtype.
        tolerance: largest accepted residual, above 0. A function in float32 reaches about 1e-6.
        max_iterations: most iterations, at least 1.
        allow_reducible: whether to accept matrices in whose graph some point cannot reach another. The result is then
            the limit of the iteration from `start`; it may be 0 at points, and depend on `start`. For a function,
            neither reducibility nor negative entries can be checked beforehand; negative outputs are refused.

    Raises:
        TypeError, ValueError: on invalid or negative weights, on a matrix that is reducible or 0, or where the
            tolerance is not reached; the message then gives the residual.
    """
    if tolerance <= 0 or max_iterations < 1:
        raise ValueError(f"{NAME}: needs tolerance > 0 and max_iterations >= 1; got {tolerance}, {max_iterations}")
    if isinstance(A, Tensor):
        matrix = _checked(A, allow_reducible)
        x, apply = matrix.new_ones(matrix.shape[:-1]) if start is None else start.to(matrix), _product(matrix)
    elif start is None:
        raise ValueError(f"{NAME}: a function needs start=, a vector (..., N) of positive values")
    else:
        x, apply = start, A
    if not bool((x > 0).all()):
        raise ValueError(f"{NAME}: start must be > 0 everywhere; the least is {x.min().item():.3g}")
    with torch.no_grad():
        found = _iterate(apply, x.detach(), tolerance, max_iterations)
    return found if not isinstance(A, Tensor) else _in_dtype(found, torch.promote_types(A.dtype, torch.float32))


def _checked(A: Tensor, allow_reducible: bool) -> Tensor:
    """A in float64, after a check that it has a Perron vector."""
    matrix = checked_matrix("perron_vector", A.detach()).double()
    if matrix.shape[-1] == 0:
        raise ValueError(f"{NAME}: there are no points, so there is no vector")
    if not bool(matrix.flatten(-2).any(-1).all()):
        raise ValueError(f"{NAME}: all weights are 0, so that every vector is as good")
    if not allow_reducible:
        _check_irreducible(matrix)
    return matrix


def _product(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: (matrix @ x[..., None])[..., 0]


def _iterate(apply: Callable[[Tensor], Tensor], x: Tensor, tolerance: float, max_iterations: int) -> PerronVector:
    x = x / x.sum(-1, keepdim=True)
    residual = x.new_full(x.shape[:-1], torch.inf)
    for iteration in range(1, max_iterations + 1):
        image = apply(x)
        if bool((image < 0).any()):
            raise ValueError(f"{NAME}: weights must be >= 0; a vector > 0 was mapped to {image.min().item():.3g}")
        radius = image.sum(-1)
        if not bool((radius > 0).all()) or not bool(radius.isfinite().all()):
            raise ValueError(
                f"{NAME}: after {iteration} steps the iterate has the sum {radius.min().item():.3g}; all walks end, or "
                "values overflow, so that there is no vector"
            )
        direction = image / radius[..., None]
        residual = (direction - x).abs().sum(-1)
        if bool((residual <= tolerance).all()):
            return PerronVector(x, radius, residual, iteration)
        x = (direction + x) / 2
    raise ValueError(
        f"{NAME}: the residual is {residual.max().item():.3g} after {max_iterations} steps, above the tolerance of "
        f"{tolerance:g}; the two largest eigenvalues are close: allow more steps or a larger tolerance"
    )


def _check_irreducible(matrix: Tensor) -> None:
    """Raises unless every point reaches every other along weights > 0."""
    points = matrix.shape[-1]
    reach = ((matrix > 0) | torch.eye(points, dtype=torch.bool, device=matrix.device)).float()
    steps = 1
    while steps < points - 1:
        reach = (reach @ reach > 0).float()
        steps *= 2
    cut = (reach == 0).flatten(-2).any(-1)
    if bool(cut.any()):
        lost = (reach == 0).nonzero()[0, -2:].tolist()
        raise ValueError(
            f"{NAME}: {int(cut.sum())} of {cut.numel()} matrices are reducible; in the first, point {lost[0]} never "
            f"reaches point {lost[1]}: leave out points without weights, or pass allow_reducible=True"
        )


def _in_dtype(found: PerronVector, dtype: torch.dtype) -> PerronVector:
    return PerronVector(found.vector.to(dtype), found.radius.to(dtype), found.residual.to(dtype), found.iterations)
