"""Domains of the instance table, and their masks, weights and pair weights.

A `Place` holds the tensors that a domain is made of, so that a test can compute their gradients, take one entry of a
batch, permute or append points, and build the domain again.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Generator, Tensor

from fredholm.domains import Domain, Graph, Grid, PairList, Points, Sequence, Union

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Place:
    """The components of a domain.

    Attributes:
        kind: name of its row in `KINDS`.
        shape: cells along each axis of a grid; otherwise the number of points.
        coordinates: positions `(N, s)` or `(B, N, s)`, or times `(N,)` or `(B, N)`; None: they follow from indices.
        weights, mask: `(N,)` or `(B, N)`.
        pair_bias: argument of `Domain.weigh_pairs`.
        lists_pairs: whether the pairs that are not hidden are listed with their densities instead
            (`Domain.list_pairs`).
        edges: edges of a graph, `(2, E)` or `(B, 2, E)`.
        lattice: (spacing, origin) of a grid other than that of the unit box.
        device: device of the domain.
    """

    kind: str
    shape: Shape
    coordinates: Tensor | None = None
    weights: Tensor | None = None
    mask: Tensor | None = None
    pair_bias: Tensor | None = None
    lists_pairs: bool = False
    edges: Tensor | None = None
    lattice: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    device: torch.device | str = "cpu"

    @property
    def num_points(self) -> int:
        """Number of points N."""
        return math.prod(self.shape)

    def domain(self) -> Domain:
        """The domain that is built from the components."""
        domain = KINDS[self.kind].build(self)
        if self.pair_bias is not None:
            bias = self.pair_bias
            domain = domain.list_pairs(_listed(bias)) if self.lists_pairs else domain.weigh_pairs(bias)
        return domain.to(self.device)

    def leaves(self, side: str) -> dict[str, Tensor]:
        """The tensors that can have a gradient, by name."""
        named = {"pos": self.coordinates, "weights": self.weights, "pair bias": self.pair_bias}
        return {f"{side} {name}": t for name, t in named.items() if t is not None and t.dtype.is_floating_point}

    def mapped(self, function: Callable[[Tensor], Tensor], *, but_times: bool = False) -> Self:
        """The same place with every float tensor replaced, except times if `but_times`."""
        keeps_times = but_times and KINDS[self.kind].has_times
        names = ("weights", "pair_bias") if keeps_times else ("coordinates", "weights", "pair_bias")
        tensors = {name: getattr(self, name) for name in names}
        changed = {n: function(t) for n, t in tensors.items() if t is not None and t.dtype.is_floating_point}
        return dataclasses.replace(self, **changed)

    def entry(self, index: int) -> Self:
        """The place of one entry of a batch, as a batch of one."""
        one = slice(index, index + 1)
        coordinates, per_entry = self.coordinates, KINDS[self.kind].per_entry
        return dataclasses.replace(
            self,
            coordinates=coordinates[one] if per_entry and coordinates is not None else coordinates,
            weights=self.weights[one] if self.weights is not None and self.weights.ndim == 2 else self.weights,
            mask=self.mask[one] if self.mask is not None and self.mask.ndim == 2 else self.mask,
            pair_bias=self.pair_bias[one] if self.pair_bias is not None and self.pair_bias.ndim > 2 else self.pair_bias,
            edges=self.edges[one] if self.edges is not None and self.edges.ndim > 2 else self.edges,
        )

    def part(self, first: int, stop: int) -> Self:
        """The points from `first` to `stop`; on a grid, whole rows, which keep their positions."""
        run, count = slice(first, stop), stop - first
        lattice, shape = self.lattice, (count, *self.shape[1:])
        if KINDS[self.kind].is_lattice and self.num_points:
            (block,) = self.domain().grid_blocks
            row = math.prod(self.shape[1:])
            shape, first = (count // row, *self.shape[1:]), first // row
            lattice = block.spacing, (block.origin[0] + first * block.spacing[0], *block.origin[1:])
        axis = 0 if self.coordinates is None else self.coordinates.ndim - (1 if KINDS[self.kind].has_times else 2)
        return dataclasses.replace(
            self,
            shape=shape,
            coordinates=None if self.coordinates is None else self.coordinates.narrow(axis, run.start, count),
            weights=None if self.weights is None else self.weights[..., run],
            mask=None if self.mask is None else self.mask[..., run],
            pair_bias=None if self.pair_bias is None else self.pair_bias[..., run, run],
            lattice=lattice,
        )

    def permuted(self, order: Tensor, at_points: bool) -> Self:
        """The points in another order; `at_points`: pair weights belong to queries at the points."""
        bias = None if self.pair_bias is None else self.pair_bias[..., order]
        if bias is not None and at_points:
            bias = bias[..., order, :]
        axis = 0 if self.coordinates is None else self.coordinates.ndim - 2
        return dataclasses.replace(
            self,
            coordinates=None if self.coordinates is None else self.coordinates.index_select(axis, order),
            weights=None if self.weights is None else self.weights[..., order],
            mask=None if self.mask is None else self.mask[..., order],
            pair_bias=bias,
            # point `order[i]` is now number i
            edges=None if self.edges is None else order.argsort()[self.edges],
        )


def _listed(bias: Tensor) -> PairList:
    """The pairs of a log-density `(Nq, N)` or `(B, Nq, N)`, listed in reverse; hidden pairs are padding of mass 0."""
    bias = bias if bias.ndim == 3 else bias[None]
    points = bias.shape[-1]
    index = torch.arange(points - 1, -1, -1).expand(bias.shape)
    return PairList.of_index(index, bias.exp().flip(-1), points)


Coordinates = Callable[[Generator, int, int], Tensor | None]


@dataclasses.dataclass(frozen=True)
class Kind:
    """One row of the table of domains.

    Attributes:
        shape: number of cells along each axis, in the table.
        coordinates: function that draws coordinates, from a generator, a batch size and a number of points.
        build: function that builds the domain of a place.
        pos_dim: number of coordinates of a position.
        is_lattice: whether the points are one whole regular grid.
        is_periodic: whether displacements wrap round.
        is_scattered: whether the points are in no order and on no grid.
        has_times: whether the domain has times.
        per_entry: whether every entry of a batch has separate positions.
        is_even: whether the default measure gives all points the same mass.
        prefix: for sequences: whether they can be cut to a prefix, and continued.
        edges: for graphs: function that draws edges, with the arguments of `coordinates`.
    """

    shape: Shape
    coordinates: Coordinates
    build: Callable[[Place], Domain]
    pos_dim: int = 1
    is_lattice: bool = False
    is_periodic: bool = False
    is_scattered: bool = False
    has_times: bool = False
    per_entry: bool = False
    is_even: bool = True
    prefix: bool = False
    edges: Callable[[Generator, int, int], Tensor] | None = None

    @property
    def likeness(self) -> str:
        """The class of domains that routes treat alike."""
        if self.shape in ((0,), (1,)):
            return "one point or none"
        if self.edges is not None:
            return "graph"
        if self.is_periodic:
            return "periodic"
        if self.is_lattice:
            return "sequence" if self.prefix else "grid"
        return "times" if self.has_times else "points" if self.is_scattered else "union"


def uniform(generator: Generator, *shape: int) -> Tensor:
    """Numbers in [0, 1)."""
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def normal(generator: Generator, *shape: int) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _nothing(generator: Generator, batch: int, points: int) -> None:
    return None


def _scattered(pos_dim: int) -> Coordinates:
    return lambda generator, batch, points: uniform(generator, points, pos_dim)


def _tied(generator: Generator, batch: int, points: int) -> Tensor:
    return (3 * uniform(generator, points)).floor().sort().values / 3


def _points(place: Place) -> Domain:
    assert place.coordinates is not None
    return Points(place.coordinates, place.weights, place.mask, periodic=KINDS[place.kind].is_periodic)


def _graph(place: Place) -> Domain:
    assert place.edges is not None
    assert place.coordinates is not None
    graph = Graph(place.edges, place.num_points, pos=place.coordinates, weights=place.weights, mask=place.mask)
    # computed from the positions of the ends, so that they move with the nodes
    x = place.coordinates.detach().reshape(-1, place.coordinates.shape[-1])[:, 0]
    graph.edge_weights = 0.5 + (x[graph.source] - 2 * x[graph.target]).abs()
    return graph


def _grid(place: Place) -> Domain:
    periodic = KINDS[place.kind].is_periodic
    spacing, origin = (None, None) if place.lattice is None else place.lattice
    return Grid(*place.shape, periodic=periodic, spacing=spacing, origin=origin, weights=place.weights, mask=place.mask)


def _sequence(place: Place) -> Domain:
    return Sequence(place.num_points, weights=place.weights, mask=place.mask)


def _spaced(place: Place) -> Domain:
    (spacing,), (start,) = SPACED if place.lattice is None else place.lattice
    return Sequence(place.num_points, spacing=spacing, start=start, weights=place.weights, mask=place.mask)


def _times(place: Place) -> Domain:
    return Sequence(times=place.coordinates, weights=place.weights, mask=place.mask)


def _union(mass: tuple[float, float] | None) -> Callable[[Place], Domain]:
    def build(place: Place) -> Domain:
        first, n = place.num_points // 2, place.num_points
        weights = (None, None) if place.weights is None else place.weights.split([first, n - first], -1)
        if place.coordinates is None:
            parts = [Sequence(size, weights=w) for size, w in zip((first, n - first), weights, strict=True)]
        else:
            runs = place.coordinates.split([first, n - first], -2)
            parts = [Points(pos, w) for pos, w in zip(runs, weights, strict=True)]
        return Union(*parts, mass=mass).restrict(place.mask)

    return build


SPACED = (0.125,), (0.5,)
KINDS: dict[str, Kind] = {
    "points": Kind((7,), _scattered(2), _points, 2, is_scattered=True),
    "points per entry": Kind(
        (7,), lambda g, batch, n: uniform(g, batch, n, 2), _points, 2, is_scattered=True, per_entry=True
    ),
    "graph": Kind(
        (7,),
        _scattered(2),
        _graph,
        2,
        is_scattered=True,
        edges=lambda g, batch, n: torch.randint(max(1, n), (2, 15 if n else 0), generator=g),
    ),
    "graphs": Kind(
        (7,),
        lambda g, batch, n: uniform(g, batch, n, 2),
        _graph,
        2,
        is_scattered=True,
        per_entry=True,
        edges=lambda g, batch, n: torch.randint(max(1, n), (batch, 2, 12 if n else 0), generator=g),
    ),
    "points on a line": Kind((7,), _scattered(1), _points, is_scattered=True),
    "periodic points": Kind((7,), _scattered(2), _points, 2, is_scattered=True, is_periodic=True),
    "grid": Kind((2, 3), _nothing, _grid, 2, is_lattice=True),
    "line of cells": Kind((7,), _nothing, _grid, is_lattice=True),
    "periodic grid": Kind((3, 2), _nothing, _grid, 2, is_lattice=True, is_periodic=True),
    "sequence": Kind((7,), _nothing, _sequence, is_lattice=True, prefix=True),
    "spaced sequence": Kind((7,), _nothing, _spaced, is_lattice=True, has_times=True, prefix=True),
    "times": Kind((7,), lambda g, batch, n: uniform(g, n).sort().values, _times, has_times=True, prefix=True),
    "tied times": Kind((7,), _tied, _times, has_times=True),
    "times per entry": Kind(
        (7,),
        lambda g, batch, n: uniform(g, batch, n).sort().values,
        _times,
        has_times=True,
        per_entry=True,
        prefix=True,
    ),
    "union": Kind((7,), _nothing, _union((0.3, 0.7)), is_even=False),
    "union of points": Kind((7,), _scattered(2), _union(None), 2),
    "one point": Kind((1,), _nothing, _sequence, is_lattice=True),
    "no point": Kind((0,), _nothing, _sequence),
    "one point in the plane": Kind((1,), _scattered(2), _points, 2, is_scattered=True),
}


def place_of(kind: str, generator: Generator, batch: int, shape: Shape | None = None) -> Place:
    """A place of a kind, without mask, weights or pair weights."""
    row = KINDS[kind]
    shape = row.shape if shape is None else shape
    points = math.prod(shape)
    edges = None if row.edges is None else row.edges(generator, batch, points)
    return Place(kind, shape, row.coordinates(generator, batch, points), edges=edges)


def _keep(generator: Generator, *shape: int) -> Tensor:
    mask = uniform(generator, *shape) > 0.4
    mask[..., :1] = True
    return mask


def _entry_with_nothing(generator: Generator, batch: int, points: int) -> Tensor:
    mask = _keep(generator, batch, points)
    mask[-1:] = False
    return mask


def _padded(generator: Generator, batch: int, points: int) -> Tensor:
    """Mask whose first points of each entry exist."""
    lengths = (uniform(generator, batch, 1) * points).ceil()
    return torch.arange(points) < lengths


Drawn = Callable[[Generator, int, int], Tensor | None]
MASKS: dict[str, Drawn] = {
    "all": _nothing,
    "shared mask": lambda generator, batch, points: _keep(generator, points),
    "mask per entry": _keep,
    "an entry with nothing": _entry_with_nothing,
    "padding": _padded,
}


def _some_zero(generator: Generator, batch: int, points: int) -> Tensor:
    weights = uniform(generator, batch, points) + 0.1
    return torch.where(uniform(generator, batch, points) < 0.3, 0.0, weights)


WEIGHTS: dict[str, Drawn] = {
    "even": _nothing,
    "weights": lambda generator, batch, points: uniform(generator, points) + 0.1,
    "weights per entry, some 0": _some_zero,
}


def _holes(generator: Generator, *shape: int) -> Tensor:
    """A log-density with hidden pairs, which include the whole second row."""
    bias = torch.where(uniform(generator, *shape) > 0.7, -torch.inf, normal(generator, *shape))
    bias[..., 1:2, :] = -torch.inf
    return bias


PAIRS: dict[str, Callable[[Generator, int, int, int, int], Tensor | None]] = {
    # a generator, a batch size, a number of heads, of queries and of points
    "all pairs": lambda g, batch, heads, queries, points: None,
    "pairs kept, a row empty": lambda g, batch, heads, queries, points: _holes(g, queries, points) > -torch.inf,
    "pairs kept per entry": lambda g, batch, heads, queries, points: uniform(g, batch, queries, points) > 0.4,
    "pairs weighed": lambda g, batch, heads, queries, points: normal(g, batch, queries, points),
    "pairs weighed per head, a row empty": lambda g, batch, heads, queries, points: _holes(
        g, batch, heads, queries, points
    ),
    "pairs listed, a row empty": lambda g, batch, heads, queries, points: _holes(g, queries, points),
    "pairs listed per entry": lambda g, batch, heads, queries, points: _holes(g, batch, queries, points),
}
LISTED = ("pairs listed, a row empty", "pairs listed per entry")
"""The levels of `PAIRS` that list pairs."""


def elsewhere(place: Place, generator: Generator, batch: int, count: int) -> Place:
    """Other points of the same kind: `count` of them, or about as many on a grid of the plane.

    On a grid they are cells of the same lattice, shifted by one cell.
    """
    kind = KINDS[place.kind]
    if kind.is_lattice and count and place.num_points:
        domain = place.domain()
        (block,) = domain.grid_blocks
        if domain.times is not None:
            moved = (block.spacing, (block.origin[0] + block.spacing[0],))
            return Place(place.kind, (count,), lattice=moved)
        shape = (count,) if kind.pos_dim == 1 else (1, count)
        origin = tuple(x + h for x, h in zip(block.origin, block.spacing, strict=True))
        name = "line of cells" if kind.pos_dim == 1 else "grid"
        return Place(name, shape, lattice=(block.spacing, origin))
    if not kind.is_lattice and (kind.is_scattered or kind.has_times):
        return place_of(place.kind, generator, batch, (count,))
    return scattered(place, generator, batch, count)


def scattered(place: Place, generator: Generator, batch: int, count: int) -> Place:
    """Other points in no order, on no grid and without times."""
    kind = KINDS[place.kind]
    name = "points on a line" if kind.pos_dim == 1 else "points"
    return place_of("periodic points" if kind.is_periodic else name, generator, batch, (count,))
