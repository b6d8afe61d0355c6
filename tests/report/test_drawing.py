"""Views as HTML: pixels are exact, numbers are in their places, and foreign texts are escaped."""

import base64
import io
import re

import numpy as np
import pytest
import torch

from fredholm.report.drawing import drawn, layout
from fredholm.report.png import coloured, data_address, reduced
from fredholm.tasks.views import (
    FieldView,
    GraphView,
    ImageView,
    Line,
    MaskView,
    PointsView,
    SeriesView,
    ShownExample,
    TextPart,
    TextView,
    View,
)

EVIL = '<script>alert("1")</script>&'


def decoded(html: str) -> np.ndarray:
    """The pixels of the one image in some HTML, decoded by another library."""
    image = pytest.importorskip("PIL.Image")
    (address,) = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    return np.asarray(image.open(io.BytesIO(base64.b64decode(address))))


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (1, 1)])
def test_pixels_are_exact(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    assert (decoded(f'<img src="{data_address(pixels)}">') == pixels).all()


def test_large_images_are_averaged_in_blocks() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    assert reduced(pixels, 6) is pixels
    assert reduced(pixels, 3).tolist() == [[4, 6, 8], [16, 18, 20]]
    assert reduced(np.zeros((1000, 1), np.uint8), 10).shape == (10, 1)


def test_colours_run_from_small_to_large_values() -> None:
    found = coloured(np.array([0.0, 0.5, 1.0, 9.0, np.nan]), 0.0, 1.0)
    assert found.tolist() == [[68, 1, 84], [33, 145, 140], [253, 231, 37], [253, 231, 37], [128, 128, 128]]
    assert coloured(np.array([2.0]), 2.0, 2.0).tolist() == [[68, 1, 84]]


VIEWS: tuple[View, ...] = (
    ImageView(title=EVIL, pixels=torch.zeros(3, 4, 4, dtype=torch.uint8)),
    MaskView(title=EVIL, labels=torch.tensor([[0, 1], [-1, 1]]), classes=("a", EVIL)),
    TextView(title=EVIL, parts=(TextPart(EVIL), TextPart(EVIL, 1.0, EVIL)), legend=EVIL, unit=EVIL),
    SeriesView(title=EVIL, lines=(Line(EVIL, "seen", torch.arange(3.0), torch.tensor([1.0, torch.nan, 2.0])),)),
    GraphView(title=EVIL, edges=torch.tensor([[0], [1]]), num_nodes=2, kinds=torch.tensor([0, 1]), names=("a", EVIL)),
    PointsView(title=EVIL, pos=torch.rand(4, 3), kinds=torch.tensor([0, 1, 1, -1]), names=("a", EVIL)),
    PointsView(title=EVIL, pos=torch.rand(4, 2), values=torch.rand(4)),
    FieldView(title=EVIL, values=torch.rand(3, 3), unit=EVIL),
)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: type(view).__name__)
def test_foreign_texts_are_escaped(view: View) -> None:
    (html,) = drawn(ShownExample(name=EVIL, views=(view,)))
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert '"1"' not in re.sub(r'="[^"]*"', "", html)


def test_weights_of_a_text_have_the_unit_and_the_legend_of_the_view() -> None:
    parts = (TextPart("a", 1.0, "first"), TextPart("b", 0.5))
    views = (TextView(parts=parts), TextView(parts=parts, legend="darker: wrong", unit=""))
    costs, marks = drawn(ShownExample(name="n", views=views))
    assert re.findall(r'title="([^"]*)"', costs) == ["1.00 nats, first", "0.50 nats"]
    assert "darker: costs the model more" in costs
    assert re.findall(r'title="([^"]*)"', marks) == ["first", ""]
    assert "darker: wrong" in marks


def test_fields_of_one_unit_share_their_colour_scale() -> None:
    small, large = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 4.0]])
    views = (FieldView(values=small, unit="u"), FieldView(values=large, unit="u"), FieldView(values=small, unit="v"))
    one, two, other = map(decoded, drawn(ShownExample(name="n", views=views)))
    assert two[0, 1].tolist() == other[0, 1].tolist() == [253, 231, 37]
    assert one[0, 1].tolist() == coloured(np.array([0.25]), 0, 1)[0].tolist()


def test_a_curve_has_a_gap_where_a_value_is_missing() -> None:
    y = torch.tensor([0.0, 1.0, torch.nan, 2.0, 3.0, torch.nan, 1.0])
    (html,) = drawn(ShownExample(name="n", views=(SeriesView(lines=(Line("a", "truth", torch.arange(7.0), y),)),)))
    stretches = re.findall(r'points="([^"]+)"', html)
    assert [len(each.split()) for each in stretches] == [2, 2]
    assert html.count("<circle") == 1
    first, second = (float(point.split(",")[1]) for point in stretches[0].split())
    assert first > second, "larger values are higher up"


def test_a_series_without_values_shows_a_note() -> None:
    nothing = Line("a", "seen", torch.arange(2.0), torch.full((2,), torch.nan))
    assert "no value is known" in drawn(ShownExample(name="n", views=(SeriesView(lines=(nothing,)),)))[0]


def test_a_layout_keeps_distances_along_edges() -> None:
    n = 7
    path = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    pos = layout(path, n, rounds=300)
    apart = (pos[:, None] - pos).norm(dim=-1)
    far = (torch.arange(n)[:, None] - torch.arange(n)).abs().double()
    assert float((apart - far).abs().max()) < 0.15
    lone = layout(torch.zeros(2, 0, dtype=torch.int64), 1)
    assert lone.shape == (1, 2)
    two = layout(torch.zeros(2, 0, dtype=torch.int64), 2)
    assert two.isfinite().all()
    assert float((two[0] - two[1]).norm()) > 0.1


def test_an_edge_in_both_directions_is_drawn_once() -> None:
    edges = torch.tensor([[0, 1, 1, 2, 2], [1, 0, 2, 1, 2]])
    (html,) = drawn(ShownExample(name="n", views=(GraphView(edges=edges, num_nodes=3),)))
    assert html.count("<line") == 2
    assert html.count("<circle") == 3
