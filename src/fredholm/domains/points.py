"""Scattered points, and subsets of another domain's points."""

from typing import Self, final

import torch
from torch import Tensor

from fredholm.domains.domain import Domain


@final
class Points(Domain):
    """Points without structure.

    Args:
        pos: `(N, s)` or, with positions of its own for every batch entry, `(B, N, s)`; float and finite.
        weights: mass of each point, `(N,)` or `(B, N)`, >= 0; default uniform with total mass 1.
        mask: `(N,)` or `(B, N)` bool, True = this point exists.
        periodic: displacements wrap to [-1/2, 1/2) along every axis (the torus of the unit box).

    Raises:
        ValueError: on shapes that do not fit each other, NaN or infinite positions, negative weights.
        TypeError: on a mask that is not bool or weights that are not float.
    """

    has_index_order = False

    def __init__(
        self, pos: Tensor, weights: Tensor | None = None, mask: Tensor | None = None, *, periodic: bool = False
    ) -> None:
        self.is_periodic = periodic
        self._set(pos, weights, mask)

    @classmethod
    def derived(
        cls,
        source: Domain,
        pos: Tensor,
        weights: Tensor,
        times: Tensor | None = None,
        past_mass: Tensor | None = None,
        counts_per_mass: Tensor | None = None,
        features: Tensor | None = None,
    ) -> Self:
        """Points that represent those of another domain, periodic if it is; without checks.

        Args:
            source: the other domain.
            pos: `(B, N, s)`; B may be a multiple of the other domain's batch, whose entries then come in runs.
            weights: share of the other domain's mass, `(B, N)`.
            times: non-decreasing, `(B, N)`; None: without an order in time.
            past_mass: mass of the other integral's points that each of these, as a query, may see, `(B', N)`.
            counts_per_mass: `(B, 1)`; None: that of the other domain.
            features: features of each point that a kernel reads beside its position, `(B, N, c)`.
        """
        points = cls.__new__(cls)
        points.pos, points.weights, points.mask, points.times = pos, weights, None, times
        points.is_periodic, points.uniform_parts = source.is_periodic, None
        points.given_past_mass, points.features = past_mass, features
        scale = source.counts_per_mass if counts_per_mass is None else counts_per_mass
        if counts_per_mass is None and scale.ndim == 2 and scale.shape[0] > 1:
            scale = scale.repeat_interleave(pos.shape[0] // scale.shape[0], dim=0)
        points.given_counts_per_mass = scale
        return points


def centre(like: Domain, count: int = 1) -> Points:
    """Points at the centre of the unit box, such as class tokens beside the points of another domain."""
    points = Points.__new__(Points)
    pos = torch.full((count, like.pos_dim), 0.5, dtype=like.pos.dtype, device=like.device)
    points._set(pos, None, None, is_finite=True)
    return points


def last_points(domain: Domain, count: int) -> Points:
    """The last points of a domain, with their positions, times and order: the default for a shorter query signal.

    On a line of equal spacing `count` may exceed its number of points; the queries then begin before the first point.

    Args:
        domain: N points that all exist.
        count: number of points.
    """
    points, lacking = Points.__new__(Points), count - domain.num_points
    points.is_periodic, points.is_generated = domain.is_periodic, domain.is_generated
    pos = domain.pos[..., max(-lacking, 0) :, :]
    if domain.times is not None:
        points.times = domain.times[..., max(-lacking, 0) :]
    if count and len(domain.grid_blocks) == 1 and domain.grid_blocks[0].shape == (domain.num_points,):
        block = domain.grid_blocks[0]
        (spacing,), (origin,) = block.spacing, block.origin
        points.grid_blocks = (block._replace(shape=(count,), origin=(origin - lacking * spacing,)),)
        if lacking > 0:
            before = origin - spacing * torch.arange(lacking, 0, -1, dtype=pos.dtype, device=pos.device)
            pos = torch.cat([before[:, None], pos])
            points.times = None if points.times is None else pos[:, 0]
    elif lacking > 0:
        raise ValueError(
            f"{count} queries of a causal kernel begin before the {domain.num_points} points, and their positions "
            "cannot be inferred; give a query_domain"
        )
    points._set(pos, None, None, is_finite=True)
    points.has_index_order = domain.has_index_order
    return points


def subset(domain: Domain, index: Tensor, weights: Tensor, times: Tensor | None = None) -> Points:
    """The points of a domain at `index`, in which points may repeat.

    Args:
        domain: N points.
        index: `(M,)` or `(B, M)` int64 in [0, N).
        weights: mass of each, of the shape of `index`, >= 0; 0 removes a point.
        times: time of each point of the domain, `(N,)` or `(B, N)`, non-decreasing along `index`; None: no order.
    """
    coordinates = domain.pos.movedim(-1, 0)  # (s, N) or (s, B, N)
    if coordinates.ndim == index.ndim == 2:
        coordinates = coordinates[:, None]
    chosen = _at(coordinates, index).movedim(0, -1)
    return Points.derived(domain, chosen, weights, None if times is None else _at(times, index))


def _at(values: Tensor, index: Tensor) -> Tensor:
    """Values `(..., N)` at the indices `(..., M)`, with leading axes broadcast."""
    batch = torch.broadcast_shapes(values.shape[:-1], index.shape[:-1])
    return values.expand(*batch, -1).gather(-1, index.expand(*batch, -1))
