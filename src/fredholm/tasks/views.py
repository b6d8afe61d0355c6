"""How an example is shown to a person: a few kinds of views, whatever the task.

A task says what there is to see (`Task.shown_example`); who draws a page or a figure says how it looks.
"""

import itertools
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn

Role = Literal["seen", "truth", "answer", "low", "high"]
"""What a line is: what the model reads, what is known, what it predicts, and the edges of the band that it predicts."""
MOST_LINES = 6
"""Channels of a series that are shown."""
MOST_NODES = 60
"""Nodes of a graph that are shown round some of them."""


@final
@dataclass(frozen=True, kw_only=True)
class ImageView:
    """An image: uint8 `(C, H, W)` with 1 (grey) or 3 (RGB) channels."""

    title: str = ""
    pixels: Tensor


@final
@dataclass(frozen=True, kw_only=True)
class MaskView:
    """A class a pixel: int64 `(H, W)`, each in `0 .. len(classes) - 1`, or below 0 where none is known."""

    title: str = ""
    labels: Tensor
    classes: tuple[str, ...]


class TextPart(NamedTuple):
    """Some characters in a row."""

    text: str
    weight: float | None = None
    """What is told of them, such as the nats that they cost, of which more is shown darker; None: nothing."""
    note: str = ""
    """More of it, such as what a model put there."""


@final
@dataclass(frozen=True, kw_only=True)
class TextView:
    """A text, in parts."""

    title: str = ""
    parts: tuple[TextPart, ...]


class Line(NamedTuple):
    """One curve: finite places `(n,)` in ascending order and values `(n,)`, NaN where one is missing."""

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
        pos: `(num_nodes, 2 or 3)`, where the nodes have places; None: a layout is to be found.
        kinds: int64 `(num_nodes,)`, the kind of each node, such as its element; below 0: none is known.
        names: of the kinds.
        marked: the nodes that it is about; (): all.
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
    """Points `(N, 2 or 3)`, with a value `(N,)` or a kind, int64 `(N,)`, each; kinds below 0 are not known."""

    title: str = ""
    pos: Tensor
    values: Tensor | None = None
    kinds: Tensor | None = None
    names: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class FieldView:
    """Values on a grid, `(rows, columns)`; those of one unit share a scale.

    Args:
        unit: what the values are; views of one unit are coloured alike.
    """

    title: str = ""
    values: Tensor
    unit: str = ""


View = ImageView | MaskView | TextView | SeriesView | GraphView | PointsView | FieldView
"""One thing to see; `title` says what it is, such as `truth`, and is empty where it stands alone."""


@final
@dataclass(frozen=True, kw_only=True)
class ShownExample:
    """An example as a person sees it.

    Args:
        name: where it came from.
        views: what there is to see of it, in display order; (): nothing.
    """

    name: str
    views: tuple[View, ...] = ()


def device_of(model: nn.Module) -> torch.device:
    """Where a model computes."""
    return next((tensor.device for tensor in itertools.chain(model.parameters(), model.buffers())), torch.device("cpu"))


def function_view(pos: Tensor, values: Tensor, title: str, unit: str, role: Role) -> View:
    """One channel of a function, as what its places allow: a curve, a grid of values, or coloured points.

    Args:
        pos: its places `(N, s)`.
        values: `(N,)`.
        title, unit: see the views.
        role: of a curve.
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
    """The same with all curves in one view."""
    curves = [view for view in views if isinstance(view, SeriesView)]
    if len(curves) < 2:
        return views
    joined = SeriesView(lines=tuple(line for view in curves for line in view.lines))
    return (joined, *(view for view in views if not isinstance(view, SeriesView)))


def around(edges: Tensor, num_nodes: int, centres: tuple[int, ...], most: int = MOST_NODES) -> Tensor:
    """Some nodes and those nearest to them along edges, int64 `(at most most,)`, the former first.

    Args:
        edges: int64 `(2, E)`.
        num_nodes: of the graph.
        centres: the nodes that it is about.
        most: how many are wanted; of the last ring the lowest numbers are taken.
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
    """The nodes round some of a graph, with the edges between them; see `GraphView`."""
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
