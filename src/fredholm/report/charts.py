"""Charts as Vega-Lite specifications: plain dicts, in the colours of the page, as wide as their container."""

from collections.abc import Sequence
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


def away_from_zero(field: str, title: str) -> Spec:
    """An axis that need not begin at 0."""
    return axis(field, title, scale={"zero": False})


def hint(*fields: tuple[str, str]) -> list[Spec]:
    """Tooltip of a mark: fields with their titles."""
    return [{"field": field, "title": title} for field, title in fields]


def bars(rows: Sequence[Row], x: tuple[str, str], y: tuple[str, str], *, height: int = 220) -> Spec:
    """A bar chart with one bar per row."""
    marks: Spec = {"x": axis(*x), "y": axis(*y, "nominal", sort=None), "tooltip": hint(y, x)}
    return chart(rows, [{"mark": {"type": "bar", "color": "var(--hue-0)"}, "encoding": marks}], height=height)


def heat(rows: Sequence[Row], x: tuple[str, str], y: tuple[str, str], value: tuple[str, str], *, height: int) -> Spec:
    """A heat map with one square per row, darker for larger shares; counts are written in it where there is room."""
    places: Spec = {
        "x": axis(*x, "nominal", sort=None, axis={"labelAngle": -45, "labelLimit": 90}),
        "y": axis(*y, "nominal", sort=None, axis={"labelLimit": 90}),
    }
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
    width = len({row[x[0]] for row in rows})
    return chart(rows, [square, count] if width <= 20 else [square], height=height)
