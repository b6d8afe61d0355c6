"""Charts as Vega-Lite specifications: plain dicts, in the colours of the page, as wide as their container."""

from collections.abc import Iterable, Sequence
from typing import Any

from .blocks import Spec

HUES = tuple(f"var(--hue-{k})" for k in range(8))
TEXT = {"labelColor": "var(--muted)", "titleColor": "var(--ink)", "titleFontWeight": "normal"}
CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "aria": False,
    "view": {"stroke": None},
    "axis": {
        **TEXT,
        "domainColor": "var(--rule)",
        "tickColor": "var(--rule)",
        "gridColor": "var(--rule)",
        "gridOpacity": 0.6,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titlePadding": 8,
    },
    "axisX": {"tickCount": 6},
    "axisY": {"tickCount": 6},
    "legend": {**TEXT, "orient": "top", "labelFontSize": 11, "titleFontSize": 12, "labelLimit": 260, "columns": 2},
    "line": {"strokeWidth": 2},
    "range": {"category": list(HUES)},
}
Row = dict[str, Any]


def chart(rows: Sequence[Row], layers: Sequence[Spec], *, height: int = 240, **more: Any) -> Spec:
    """A chart of layers over the same rows.

    Args:
        rows: the data.
        layers: marks with their encodings.
        height: height in pixels.
        more: further entries of the specification.
    """
    return {
        "width": "container",
        "height": height,
        "autosize": {"type": "fit", "contains": "padding"},
        "config": CONFIG,
        "data": {"values": list(rows)},
        "layer": list(layers),
        **more,
    }


def axis(field: str, title: str, kind: str = "quantitative", **more: Any) -> Spec:
    """Encoding of a field by an axis or another channel."""
    return {"field": field, "title": title, "type": kind, **more}


def share_axis(field: str, title: str, **more: Any) -> Spec:
    """An axis of shares from 0 to 1, labelled in percent."""
    return axis(field, title, axis={"labelExpr": "format(100 * datum.value, '.4~r') + ' %'"}, **more)


def away_from_zero(field: str, title: str, *, percent: bool = False) -> Spec:
    """An axis that need not begin at 0; `percent`: of shares."""
    return (share_axis if percent else axis)(field, title, scale={"zero": False})


def hint(*fields: tuple[str, str], shares: Sequence[str] = ()) -> list[Spec]:
    """Tooltip of a mark: fields with their titles; those among `shares` are shown in percent."""
    in_percent = {"type": "quantitative", "format": ".2%"}
    return [{"field": field, "title": title} | (in_percent if field in shares else {}) for field, title in fields]


def named_axis(field: str, title: str, names: int, **more: Any) -> Spec:
    """Axis of names in their given order; long names are cut in the middle, so that those with one beginning differ.

    Args:
        field: field of the names.
        title: title of the axis.
        names: most characters of a name.
        more: further properties of the axis.
    """
    begin, end = names // 2, names - names // 2 - 1
    cut = f"slice(datum.label, 0, {begin}) + '…' + slice(datum.label, -{end})"
    shown = {"labelExpr": f"length(datum.label) > {names} ? {cut} : datum.label", "labelLimit": 7 * names, **more}
    return axis(field, title, "nominal", sort=None, axis=shown)


def named_hues(field: str, names: Iterable[str], **more: Any) -> Spec:
    """Colours, or dashes, of names, with a legend: two columns, or one where the names are too long for a phone."""
    columns = 2 if max(map(len, names), default=0) <= 20 else 1
    return axis(field, "", "nominal", sort=None, legend={"columns": columns}, **more)


def bars(rows: Sequence[Row], x: tuple[str, str], y: tuple[str, str], *, height: int = 220) -> Spec:
    """A bar chart with one bar per row."""
    marks: Spec = {"x": axis(*x), "y": named_axis(*y, 30), "tooltip": hint(y, x)}
    return chart(rows, [{"mark": {"type": "bar", "color": "var(--hue-0)"}, "encoding": marks}], height=height)


def heat(rows: Sequence[Row], x: tuple[str, str], y: tuple[str, str], value: tuple[str, str], *, height: int) -> Spec:
    """A heat map with one square per row, darker for larger shares; counts are written in it where there is room."""
    names = {row[x[0]] for row in rows}
    width = len(names)
    has_room = width * max(map(len, names), default=0) <= 24  # on a phone
    angle = 0 if has_room else -45 if width <= 12 else -90
    places: Spec = {"x": named_axis(*x, 16, labelAngle=angle), "y": named_axis(*y, 16)}
    shade = axis("share", "", scale={"domain": [0, 1], "range": [0.04, 0.95]}, legend=None)
    square: Spec = {
        "mark": {"type": "rect", "fill": "var(--hue-0)"},
        "encoding": {**places, "fillOpacity": shade, "tooltip": hint(y, x, value)},
    }
    count: Spec = {
        "transform": [{"filter": f"datum.{value[0]} > 0"}],
        "mark": {"type": "text", "fontSize": 11},
        "encoding": {
            **places,
            "text": axis(value[0], ""),
            "color": {"condition": {"test": "datum.share > 0.45", "value": "var(--on-hue)"}, "value": "var(--ink)"},
        },
    }
    return chart(rows, [square, count] if width <= 20 else [square], height=height)
