"""Renders the views of an example as HTML: images as pixels, all else as vector graphics in the page's colours.

Untrusted text, such as names of files, is escaped here.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.masks.answer import palette
from fredholm.tasks.views import (
    FieldView,
    GraphView,
    ImageView,
    Line,
    MaskView,
    PointsView,
    SeriesView,
    ShownExample,
    TextView,
    View,
)

from .png import coloured, data_address, reduced

MOST_PIXELS = 160
"""Most pixels along the longer side of an image."""
MOST_SAMPLES = 400
"""Most points of a drawn curve."""
MOST_POINTS = 800
"""Most drawn points of a cloud."""
MOST_CHARACTERS = 1200
"""Most characters of a shown text."""
HUES = 8
"""Number of categorical colours, `--hue-0` and so on; further categories reuse them."""
WIDTH, HEIGHT = 320, 180
"""Size of a drawing of curves, in pixels."""
SIDE = 220
"""Side of a drawing of points or nodes, in pixels."""


def drawn(shown: ShownExample) -> tuple[str, ...]:
    """The views of an example, in their order; fields of one unit share their colours."""
    scales: dict[str, tuple[float, float]] = {}
    for view in shown.views:
        if isinstance(view, FieldView):
            known = view.values[view.values.isfinite()]
            if len(known):
                low, high = scales.get(view.unit, (math.inf, -math.inf))
                scales[view.unit] = min(low, float(known.min())), max(high, float(known.max()))
    return tuple(_drawn(view, shown.name, scales) for view in shown.views)


def _drawn(view: View, name: str, scales: dict[str, tuple[float, float]]) -> str:
    heard = f"{view.title or 'the example'} of {name}"
    match view:
        case ImageView():
            return _figure(view.title, _image(view.pixels.movedim(0, -1).numpy(), heard))
        case MaskView():
            return _mask(view, heard)
        case TextView():
            return _text(view)
        case SeriesView():
            return _series(view, heard)
        case GraphView():
            return _graph(view, heard)
        case PointsView():
            return _points(view, heard)
        case FieldView():
            low, high = scales.get(view.unit, (0.0, 1.0))
            pixels = coloured(_shrunk(view.values).numpy(), low, high)
            title = f"{view.title or view.unit}, {low:.3g} to {high:.3g}"
            return _figure(title, _image(pixels, heard))


def _figure(title: str, inner: str, legend: str = "", *, is_broad: bool = False) -> str:
    caption = f"<figcaption>{escape(title)}</figcaption>" if title else ""
    return f'<figure class="view{" broad" if is_broad else ""}">{inner}{caption}{legend}</figure>'


def _image(pixels: np.ndarray, heard: str) -> str:
    small = reduced(pixels, MOST_PIXELS)
    small = small[..., 0] if small.ndim == 3 and small.shape[2] == 1 else small
    sharp = ' class="sharp"' if max(small.shape[:2]) <= 96 else ""
    size = f'width="{small.shape[1]}" height="{small.shape[0]}"'
    return f'<img{sharp} src="{data_address(small)}" {size} alt="{escape(heard)}">'


def _shrunk(values: Tensor) -> Tensor:
    """Every k-th row and column, so that the longer side has at most MOST_PIXELS."""
    step = -(-max(values.shape) // MOST_PIXELS)
    return values[::step, ::step].double()


def _mask(view: MaskView, heard: str) -> str:
    labels = _shrunk(view.labels).long()
    colours = palette(len(view.classes))
    pixels = colours[torch.where(labels < 0, 255, labels).numpy()]
    present = [k for k in labels.unique().tolist() if 0 <= k < len(view.classes)][:HUES]
    swatches = "".join(
        f'<span class="swatch"><i style="background:rgb({",".join(map(str, colours[k]))})"></i>'
        f"{escape(view.classes[k])}</span>"
        for k in present
    )
    return _figure(view.title, _image(pixels, heard), f'<div class="legend">{swatches}</div>')


def _text(view: TextView) -> str:
    weights = [part.weight for part in view.parts if part.weight is not None and math.isfinite(part.weight)]
    most = max(weights, default=1.0) or 1.0
    words, left = list[str](), MOST_CHARACTERS
    for part in view.parts:
        if left <= 0:
            words.append(" ...")
            break
        text = escape(part.text[:left])
        left -= len(part.text)
        if part.weight is None or not math.isfinite(part.weight):
            words.append(text)
            continue
        tooltip = ", ".join(each for each in (f"{part.weight:.2f} {view.unit}" if view.unit else "", part.note) if each)
        words.append(f'<mark style="--w:{min(1.0, part.weight / most):.2f}" title="{escape(tooltip)}">{text}</mark>')
    legend = f'<div class="legend">{escape(view.legend)}</div>' if weights else ""
    return _figure(view.title, f'<p class="text">{"".join(words)}</p>', legend, is_broad=True)


def _series(view: SeriesView, heard: str) -> str:
    lines = [_thinned(line) for line in view.lines]
    x, y = (torch.cat([getattr(line, axis).double() for line in lines]) for axis in ("x", "y"))
    x, y = x[x.isfinite()], y[y.isfinite()]
    if not len(x) or not len(y):
        return _figure(view.title, "<p>no value is known</p>")
    (x_0, x_1), (y_0, y_1) = _span(x), _span(y)

    def place(line: Line) -> list[str]:
        """The polylines of a line, which is broken at gaps."""
        stretches = [list[str]()]
        for a, b in zip(line.x.tolist(), line.y.tolist(), strict=True):
            if not math.isfinite(b):
                stretches.append([])
                continue
            across, up = (a - x_0) / (x_1 - x_0), (b - y_0) / (y_1 - y_0)
            stretches[-1].append(f"{4 + across * (WIDTH - 8):.1f},{HEIGHT - 4 - up * (HEIGHT - 8):.1f}")
        return [" ".join(own) for own in stretches if own]

    marks, hues = list[str](), itertools.count()
    keys = list[str]()
    for line in lines:
        look = f"hue-{next(hues) % HUES}" if line.role == "seen" else line.role
        for points in place(line):
            if " " in points:
                marks.append(f'<polyline class="line {look}" points="{points}"/>')
            else:
                across, up = points.split(",")
                marks.append(f'<circle class="dot {look}" cx="{across}" cy="{up}" r="2"/>')
        keys.append(f'<span class="swatch"><i class="{look}"></i>{escape(line.name)}</span>')
    axes = f"{_number(x_0)} to {_number(x_1)} across, {_number(y_0)} to {_number(y_1)} up"
    title = f"{view.title}: {axes}" if view.title else axes
    legend = f'<div class="legend">{"".join(keys)}</div>'
    return _figure(title, _svg(WIDTH, HEIGHT, marks, heard), legend, is_broad=True)


def _thinned(line: Line) -> Line:
    step = -(-len(line.x) // MOST_SAMPLES)
    return line._replace(x=line.x[::step], y=line.y[::step])


def _span(values: Tensor) -> tuple[float, float]:
    """The least and the largest value; equal ones are moved one apart."""
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _number(value: float) -> str:
    return f"{value:.4g}"


def _svg(width: int, height: int, marks: Iterable[str], heard: str) -> str:
    return (
        f'<svg class="drawing" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(heard)}">'
        f"{''.join(marks)}</svg>"
    )


def _legend(kinds: Sequence[int], names: Sequence[str]) -> str:
    """Legend of the categories that occur, in the colours of the page."""
    present = sorted({kind for kind in kinds if 0 <= kind < len(names)})[:HUES]
    keys = (f'<span class="swatch"><i class="hue-{kind % HUES}"></i>{escape(names[kind])}</span>' for kind in present)
    return f'<div class="legend">{"".join(keys)}</div>' if present else ""


def _graph(view: GraphView, heard: str) -> str:
    if view.num_nodes > MOST_POINTS:
        return _figure(view.title, f"<p>{view.num_nodes:,} nodes, too many to draw</p>")
    edges = view.edges[:, view.edges[0] != view.edges[1]].sort(0).values.unique(dim=1)
    pos = layout(edges, view.num_nodes) if view.pos is None else _projected(view.pos)
    at = _framed(pos, SIDE, 12).tolist()
    marks = ["<g class='edges'>"]
    for a, b in edges.T.tolist():
        (x_0, y_0), (x_1, y_1) = at[a], at[b]
        marks.append(f'<line x1="{x_0:.1f}" y1="{y_0:.1f}" x2="{x_1:.1f}" y2="{y_1:.1f}"/>')
    marks.append("</g>")
    kinds = [0] * view.num_nodes if view.kinds is None else view.kinds.tolist()
    radius = max(2.5, min(8.0, 60 / math.sqrt(view.num_nodes) / 2))
    for node, ((x, y), kind) in enumerate(zip(at, kinds, strict=True)):
        look = f"hue-{kind % HUES}" if kind >= 0 else "unknown"
        marked = " marked" if node in view.marked else ""
        marks.append(f'<circle class="node {look}{marked}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>')
    legend = "" if view.kinds is None else _legend(kinds, view.names)
    return _figure(view.title, _svg(SIDE, SIDE, marks, heard), legend)


def layout(edges: Tensor, num_nodes: int, rounds: int = 60) -> Tensor:
    """Layout of a graph by stress majorisation: positions `(N, 2)` whose distances approximate path lengths.

    Minimises the stress Σ_ij d_ij⁻² (‖x_i - x_j‖ - d_ij)² iteratively by majorisation (Gansner et al., 2005),
    starting from a circle. The distance of nodes without a path between them is the longest path length plus 1.

    Args:
        edges: int64 `(2, E)`, each edge once.
        num_nodes: N.
        rounds: number of iterations.
    """
    far = torch.full((num_nodes, num_nodes), torch.inf, dtype=torch.float64)
    far[edges[0], edges[1]] = far[edges[1], edges[0]] = 1.0
    far.fill_diagonal_(0.0)
    for k in range(num_nodes):
        far = torch.minimum(far, far[:, k, None] + far[k])
    known = far[far.isfinite()]
    far = torch.where(far.isfinite(), far, known.max() + 1)
    weight = torch.where(far > 0, far.clamp(min=1e-9) ** -2, 0.0)
    angle = torch.arange(num_nodes, dtype=torch.float64) * (2 * math.pi / max(num_nodes, 1))
    radius = max(float(known.max()), 1.0) / 2
    pos = radius * torch.stack([angle.cos(), angle.sin()], dim=1) * (1 + 0.05 * (7 * angle).sin())[:, None]
    for _ in range(rounds if num_nodes > 1 else 0):
        apart = pos[:, None] - pos
        ratio = torch.where(far > 0, far / apart.norm(dim=-1).clamp(min=1e-9), 0.0)
        pos = (weight[..., None] * (pos + ratio[..., None] * apart)).sum(1) / weight.sum(1, keepdim=True)
    return pos


def _projected(pos: Tensor) -> Tensor:
    """Positions in the plane, the vertical axis up; points in space are viewed from the front, above and the right."""
    pos = pos.double()
    if pos.shape[1] == 2:
        return pos * pos.new_tensor([1.0, -1.0])
    turn, tilt = math.radians(30), math.radians(25)
    x, y, z = pos.unbind(1)
    across, into = x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn)
    return torch.stack([across, -(z * math.cos(tilt) + into * math.sin(tilt))], dim=1)


def _framed(pos: Tensor, side: int, margin: int) -> Tensor:
    """Positions scaled by one factor into a square."""
    low, high = pos.amin(0), pos.amax(0)
    scale = (side - 2 * margin) / max(float((high - low).max()), 1e-9)
    return (pos - (low + high) / 2) * scale + side / 2


def _points(view: PointsView, heard: str) -> str:
    step = -(-len(view.pos) // MOST_POINTS)
    at = _framed(_projected(view.pos[::step]), SIDE, 6).tolist()
    kinds, values = (None if each is None else each[::step] for each in (view.kinds, view.values))
    if values is not None:
        low, high = _span(values.double())
        colours = coloured(values.double().numpy(), low, high).tolist()
        marks = [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="rgb({r},{g},{b})"/>'
            for (x, y), (r, g, b) in zip(at, colours, strict=True)
        ]
        title = f"{view.title}, {low:.3g} to {high:.3g}"
        return _figure(title.removeprefix(", "), _svg(SIDE, SIDE, marks, heard))
    by_kind: dict[int, list[str]] = {}
    for (x, y), kind in zip(at, [0] * len(at) if kinds is None else kinds.tolist(), strict=True):
        by_kind.setdefault(kind, []).append(f"M{x:.1f} {y:.1f}h0")
    marks = [
        f'<path class="cloud {f"hue-{kind % HUES}" if kind >= 0 else "unknown"}" d="{"".join(moves)}"/>'
        for kind, moves in by_kind.items()
    ]
    return _figure(view.title, _svg(SIDE, SIDE, marks, heard), _legend(list(by_kind), view.names))
