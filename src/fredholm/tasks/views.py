"""Views of an example for people: a few kinds, whatever the task.

A task chooses the views (`Task.shown_example`); the renderer of a page or figure decides how they look.
"""

import itertools
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn

Role = Literal["seen", "truth", "answer", "low", "high"]
"""Role of a line: the model's input, known values, the prediction, and the edges of the predicted band."""
MOST_LINES = 6
"""Largest number of channels of a series that are shown."""
MOST_NODES = 60
"""Largest number of nodes in a view of a part of a graph."""


@final
@dataclass(frozen=True, kw_only=True)
class ImageView:
    """An image: uint8 `(C, H, W)` with 1 (grey) or 3 (RGB) channels."""

    title: str = ""
    pixels: Tensor


@final
@dataclass(frozen=True, kw_only=True)
class MaskView:
    """A class per pixel: int64 `(H, W)`, each in `0 .. len(classes) - 1`, or below 0 where unknown."""

    title: str = ""
    labels: Tensor
    classes: tuple[str, ...]


class TextPart(NamedTuple):
    """A run of characters."""

    text: str
    weight: float | None = None
    """Weight of the text, such as its cost in nats; larger ones are shown darker. None: no weight."""
    note: str = ""
    """Further information, such as a model's prediction at this place."""


@final
@dataclass(frozen=True, kw_only=True)
class TextView:
    """A text, in parts, with the meaning and the unit of their weights; no unit: numbers are not shown."""

    title: str = ""
    parts: tuple[TextPart, ...]
    legend: str = "darker: costs the model more"
    unit: str = "nats"


class Line(NamedTuple):
    """A curve: finite positions `(n,)` in ascending order and values `(n,)`, NaN where missing."""

    name: str
    role: Role
    x: Tensor
    y: Tensor


@final
@dataclass(frozen=True, kw_only=True)
class SeriesView:
    """Curves over one axis."""

    title: str = ""
    lines: tuple[Line, ...]


@final
@dataclass(frozen=True, kw_only=True)
class GraphView:
    """Nodes and edges.

    Args:
        edges: int64 `(2, E)`, in `0 .. num_nodes - 1`; both directions of an edge count as one.
        num_nodes: at least 1.
        pos: `(num_nodes, 2 or 3)`, positions of the nodes; None: a layout is computed.
        kinds: int64 `(num_nodes,)`, kind of each node, such as its element; below 0: unknown.
        names: names of the kinds.
        marked: highlighted nodes; (): all.
    """

    title: str = ""
    edges: Tensor
    num_nodes: int
    pos: Tensor | None = None
    kinds: Tensor | None = None
    names: tuple[str, ...] = ()
    marked: tuple[int, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class PointsView:
    """Points `(N, 2 or 3)`, each with a value `(N,)` or a kind, int64 `(N,)`; kinds below 0 are unknown."""

    title: str = ""
    pos: Tensor
    values: Tensor | None = None
    kinds: Tensor | None = None
    names: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class FieldView:
    """Values on a grid, `(rows, columns)`; views of one unit share a scale.

    Args:
        unit: unit of the values; views of one unit share colours.
    """

    title: str = ""
    values: Tensor
    unit: str = ""


View = ImageView | MaskView | TextView | SeriesView | GraphView | PointsView | FieldView
"""A view; `title` describes it, such as `truth`, and is empty for a single view."""


@final
@dataclass(frozen=True, kw_only=True)
class ShownExample:
    """An example as views for people.

    Args:
        name: origin of the example.
        views: views in display order; (): none.
    """

    name: str
    views: tuple[View, ...] = ()


def device_of(model: nn.Module) -> torch.device:
    """Returns the device of a model."""
    return next((tensor.device for tensor in itertools.chain(model.parameters(), model.buffers())), torch.device("cpu"))


def function_view(pos: Tensor, values: Tensor, title: str, unit: str, role: Role) -> View:
    """Returns a view of one channel of a function that suits its points: a curve, a grid, or coloured points.

    Args:
        pos: points `(N, s)`.
        values: `(N,)`.
        title, unit: see the views.
        role: role of a curve.
    """
    if pos.shape[1] == 1:
        order = pos[:, 0].argsort()
        return SeriesView(title=title, lines=(Line(title, role, pos[order, 0], values[order]),))
    if pos.shape[1] == 2:
        rows, at_row = pos[:, 0].unique(return_inverse=True)
        columns, at_column = pos[:, 1].unique(return_inverse=True)
        if len(rows) * len(columns) == len(pos) and min(len(rows), len(columns)) > 1:
            grid = values.new_full((len(rows), len(columns)), torch.nan)
            grid[at_row, at_column] = values
            return FieldView(title=title, values=grid, unit=unit)
    return PointsView(title=title, pos=pos[:, :3], values=values)


def joined_curves(views: tuple[View, ...]) -> tuple[View, ...]:
    """Returns the views with all curves merged into one view."""
    curves = [view for view in views if isinstance(view, SeriesView)]
    if len(curves) < 2:
        return views
    joined = SeriesView(lines=tuple(line for view in curves for line in view.lines))
    return (joined, *(view for view in views if not isinstance(view, SeriesView)))


def around(edges: Tensor, num_nodes: int, centres: tuple[int, ...], most: int = MOST_NODES) -> Tensor:
    """Returns the centres and the nodes nearest to them along edges, int64 `(at most most,)`, the centres first.

    Args:
        edges: int64 `(2, E)`.
        num_nodes: number of nodes of the graph.
        centres: nodes to start from.
        most: largest number of nodes; from the last ring the lowest indices are taken.
    """
    found = list(dict.fromkeys(centres))
    is_taken = torch.zeros(num_nodes, dtype=torch.bool)
    is_taken[found] = True
    ring = torch.tensor(found)
    while len(ring) and len(found) < most:
        from_ring = torch.zeros(num_nodes, dtype=torch.bool)
        from_ring[ring] = True
        near = torch.cat([edges[1, from_ring[edges[0]]], edges[0, from_ring[edges[1]]]]).unique()
        ring = near[~is_taken[near]][: most - len(found)]
        is_taken[ring] = True
        found += ring.tolist()
    return torch.tensor(found)


def part_of_graph(
    edges: Tensor,
    num_nodes: int,
    centres: tuple[int, ...],
    kinds: Tensor | None = None,
    names: tuple[str, ...] = (),
    title: str = "",
) -> GraphView:
    """Returns a view of the nodes around the centres, with the edges between them; see `GraphView`."""
    nodes = around(edges, num_nodes, centres)
    place = torch.full((num_nodes,), -1)
    place[nodes] = torch.arange(len(nodes))
    own = place[edges]
    return GraphView(
        title=title,
        edges=own[:, (own >= 0).all(0)],
        num_nodes=len(nodes),
        kinds=None if kinds is None else kinds[nodes],
        names=names,
        marked=tuple(range(len(dict.fromkeys(centres)))),
    )
