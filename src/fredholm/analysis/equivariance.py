"""Equivariance error of an operator under moves of its samples.

Legend
    S, g·S     samples {(x_i, u_i)}, and {(g x_i, u_i)}        O(S)    the operator's result for them, a function
    x̂_q        positions where results are compared

    error = rms_q ‖O(g·S)(g x̂_q) - O(S)(x̂_q)‖

Source: Neural Fields Meet Attention, 3.2 and 4.1. Deviation: the paper states this error alone, which a field near 0
always passes; here it is also given relative to the norm rms_q ‖O(S)(x̂_q)‖, and a field without norm is
refused.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fredholm._settings import check_count
from fredholm.analysis.moves import Move, Moves
from fredholm.domains import Domain, Points
from fredholm.fields.placed_field import PlacedField

NAME = "analysis.equivariance_error"

SetOperator = Callable[[Tensor, Domain], Tensor | PlacedField]
"""A map from a signal `(B, N, C)` and its domain to fields, a signal at the same points, or one vector per set."""


class EquivarianceError(NamedTuple):
    """Errors of G moves on B sets."""

    absolute: Tensor
    """`(G, B)`."""
    relative: Tensor
    """The same, divided by `norm`."""
    norm: Tensor
    """Root mean square of the result for the unmoved samples, over positions and channels, `(B,)`."""
    variation: Tensor
    """Root mean square of that result's deviation from its mean over positions, `(B,)`. Near 0 the result is a
    constant, which is equivariant trivially. 0 for a vector."""


@torch.no_grad()
def equivariance_error(
    operator: SetOperator,
    moves: Moves,
    u: Tensor,
    domain: Domain,
    *,
    query_pos: Tensor | None = None,
    num_moves: int = 10,
    min_norm: float = 1e-3,
    generator: torch.Generator | None = None,
) -> EquivarianceError:
    """Measures the distance of O(g·S) from g·O(S) for random g of a group.

    Args:
        operator: an `IntegralOperator`, a block, a `FieldOperator`, or any function of a signal and a domain, in
            evaluation mode where it has one. A signal at the points is compared point by point, a vector for each set
            must not change, and fields are compared at `query_pos`.
        moves: the group.
        u: the signal, `(B, N, C)`; scalars in every channel: a move does not change them.
        domain: domain of the signal; weights and masks move along, other structure (grids, times) is not kept.
        query_pos: positions where fields are compared, `(Nq, s)` or `(B, Nq, s)`; None: the points themselves.
        num_moves: G, at least 1.
        min_norm: smallest norm at which the error is meaningful, in the unit of the result.
        generator: random generator of the moves; None: torch's global seed.

    Raises:
        ValueError: where the norm of a result is at most `min_norm`, or it is not finite.
        TypeError: on an operator that returns neither fields, a signal nor a vector.
    """
    check_count(NAME, "num_moves", num_moves)
    pos = domain.pos.expand(len(u), -1, -1) if domain.pos.ndim == 2 else domain.pos
    compared_pos = pos if query_pos is None else query_pos.to(pos)
    is_there = domain.mask if query_pos is None else None
    still = Move(torch.eye(domain.pos_dim, dtype=torch.float64), torch.zeros(domain.pos_dim, dtype=torch.float64))
    reference = _result(operator, still, u, domain, pos, compared_pos)
    places = _places(reference, u, is_there)
    norm = _rms(reference, places)
    if not bool(norm.isfinite().all()):
        raise ValueError(f"{NAME}: the operator gives NaN or infinite values")
    if bool((norm <= min_norm).any()):
        raise ValueError(
            f"{NAME}: the result's norm is {norm.min().item():.3g} in {int((norm <= min_norm).sum())} of {len(norm)} "
            f"sets, at most min_norm {min_norm:g}: a field near 0 moves with everything; train it, or lower min_norm"
        )
    absolute = []
    for _ in range(num_moves):
        move = moves.draw(domain.pos_dim, domain.num_points, generator)
        absolute.append(_rms(_result(operator, move, u, domain, pos, compared_pos) - reference, places))
    errors = torch.stack(absolute)
    mean = (places * reference).sum(1, keepdim=True) / places.sum(1, keepdim=True).clamp_min(1)
    return EquivarianceError(errors, errors / norm, norm, _rms(reference - mean, places))


def _result(operator: SetOperator, move: Move, u: Tensor, domain: Domain, pos: Tensor, compared_pos: Tensor) -> Tensor:
    """The operator's result for moved samples at moved positions, in the original order, `(B, places, C)`, float64."""
    order = move.order
    mask, weights = domain.mask, None if domain.is_even else domain.weights
    moved = move(pos)
    if order is not None:
        order = order.to(u.device)
        u, moved = u[:, order], moved[:, order]
        mask = None if mask is None else mask[..., order]
        weights = None if weights is None else weights[..., order]
    found = operator(u, Points(moved, weights, mask, periodic=domain.is_periodic))
    if isinstance(found, PlacedField):
        return found(move(compared_pos)).double()
    if not isinstance(found, Tensor) or found.ndim not in (2, 3):
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise TypeError(
            f"{NAME}: the operator must give fields, (batch, points, channels) or (batch, channels); got {got}"
        )
    if found.ndim == 2:
        return found[:, None].double()
    if found.shape[1] != u.shape[1]:
        raise ValueError(
            f"{NAME}: the operator gives {found.shape[1]} points for {u.shape[1]}; compare at the points of the signal"
        )
    return (found if order is None else found[:, order.argsort()]).double()


def _places(reference: Tensor, u: Tensor, is_there: Tensor | None) -> Tensor:
    """Mask of the positions that count, `(B, places, 1)`, 0 or 1."""
    ones = torch.ones_like(reference[..., :1])
    if is_there is None or reference.shape[1] != u.shape[1]:
        return ones
    return ones * torch.atleast_2d(is_there)[..., None]


def _rms(values: Tensor, places: Tensor) -> Tensor:
    count = (places.sum((1, 2)) * values.shape[-1]).clamp_min(1)
    return ((places * values.square()).sum((1, 2)) / count).sqrt()
