"""Evaluation points of predicted fields, and writing, showing and drawing their values."""

import importlib.util
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from fredholm.tasks.outputs import Outputs
from fredholm.tasks.prediction import Prediction
from fredholm.tasks.views import ShownExample, View, function_view, joined_curves

from .field_set import FieldSet
from .open import read_places

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """Settings of the points at which predicted fields are evaluated.

    Args:
        grid: number of points along each coordinate, evenly over the box of a field's own samples; None: at the
            samples.
    """

    grid: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.grid is not None and (not self.grid or min(self.grid) < 1):
            raise ValueError(f"answer.grid is {self.grid}; expected a number of points for each coordinate")

    def check(self, outputs: Outputs, at: Path | None) -> None:
        """Raises a ValueError where points are given twice, or a requested picture cannot be drawn of them."""
        if self.grid is not None and at is not None:
            raise ValueError("answer.grid and --at both set the points; pass one of them")
        if outputs.picture is not None and (self.grid is None or len(self.grid) > 2):
            raise ValueError("--picture needs answer.grid with one or two coordinates, such as answer.grid=64,64")


@final
@dataclass(frozen=True)
class Evaluated:
    """A predicted field at its evaluation points."""

    name: str
    pos: Tensor
    """Points `(N, s)`."""
    values: Tensor
    """Values `(N, m)`, in the unit of the data."""
    is_far: Tensor | None = None
    """Whether a point is far outside the samples, `(N,)` bool; None: unknown."""


def places(answer: Answer, fields: FieldSet, at: Path | None) -> list[Tensor]:
    """Returns the evaluation points of each field, `(N, s)` each: those of a file, or else by the settings.

    Raises:
        ValueError: a grid of other coordinates, samples without extent, or a file of points that cannot be read.
    """
    samples = fields.given
    if at is not None:
        return [read_places(at, fields.coordinates)] * len(fields)
    own = samples.places
    if answer.grid is None:
        return own
    if len(answer.grid) != len(fields.coordinates):
        raise ValueError(
            f"answer.grid has {len(answer.grid)} numbers; expected one each of {', '.join(fields.coordinates)}"
        )
    return [_grid(answer.grid, pos, fields, i) for i, pos in enumerate(own)]


def _grid(shape: tuple[int, ...], pos: Tensor, fields: FieldSet, index: int) -> Tensor:
    low, high = pos.amin(0), pos.amax(0)
    for axis, name in enumerate(fields.coordinates):
        if not bool(high[axis] > low[axis]):
            raise ValueError(f"{fields.names[index]}: its samples have no extent along {name}; pass --at with places")
    axes = [torch.linspace(float(a), float(b), n, dtype=pos.dtype) for a, b, n in zip(low, high, shape, strict=True)]
    return torch.stack([axis.reshape(-1) for axis in torch.meshgrid(*axes, indexing="ij")], dim=-1)


def refuse_no_number(predicted: Evaluated) -> Evaluated:
    """Returns the prediction for a function after checking that it is finite.

    Raises:
        ValueError: some of its values are NaN or infinite.
    """
    if not bool(predicted.values.isfinite().all()):
        raise ValueError(
            f"{predicted.name}: the answer for it overflows; its values are too large or too far from those of training"
        )
    return predicted


def answered(
    answer: Answer,
    outputs: Outputs,
    found: Sequence[tuple[Path, Evaluated]],
    coordinates: Sequence[str],
    channels: Sequence[str],
) -> list[Prediction]:
    """Returns rows for fields: one per point, or one per field where values go to files, which are written here.

    Files hold the `pos`, `values` and `is_far` of all fields with their names; pictures show the first channel of each
    on the grid.
    """
    fields = [one for _, one in found]
    if not fields:
        return []
    if outputs.save is not None:
        outputs.write("--save", outputs.save, npz_bytes(fields, coordinates, channels))
    if outputs.picture is not None:
        assert answer.grid is not None
        drawn = draw(fields, answer.grid, coordinates, channels[0], kind=outputs.picture.suffix)
        outputs.write("--picture", outputs.picture, drawn)
    rows: list[Prediction] = []
    for file, one in found:
        name = one.name.removeprefix(file.name).removeprefix(", ").removeprefix("field ")
        head: dict[str, str | float] = {"field": name}
        if outputs.save is not None or outputs.picture is not None:
            files = (("saved", outputs.save), ("picture", outputs.picture))
            head |= {word: str(path) for word, path in files if path is not None}
            extremes = zip(channels, one.values.amin(0).tolist(), one.values.amax(0).tolist(), strict=True)
            cells = {f"{word} {c}": v for c, a, b in extremes for word, v in (("least", a), ("largest", b))}
            rows.append(Prediction(file, head | cells))
            continue
        cells = [
            head | dict(zip((*coordinates, *channels), (*pos, *values), strict=True))
            for pos, values in zip(one.pos.tolist(), one.values.tolist(), strict=True)
        ]
        if one.is_far is not None:
            cells = [row | {"far": "far" if far else ""} for row, far in zip(cells, one.is_far.tolist(), strict=True)]
        rows += [Prediction(file, row) for row in cells]
    return rows


def shown_function(
    part: FieldSet, seen: View, channel: int, predict: Callable[[Tensor], Tensor] | None = None
) -> ShownExample:
    """Returns views of one function: the input, a channel of the truth, and the prediction.

    Args:
        part: a set of this function alone.
        seen: view of the input.
        channel: channel of the truth.
        predict: maps points `(N, s)` to a model's predictions `(N, m)`; None: no model.
    """
    exists, unit = part.targets.exists[0], part.target_channels[channel]
    pos, truth = part.targets.pos[0, exists], part.targets.values[0, exists, channel]
    views = (seen, function_view(pos, truth, "truth", unit, "truth"))
    if predict is not None:
        views = (*views, function_view(pos, predict(pos)[:, channel], "answer", unit, "answer"))
    return ShownExample(name=part.names[0], views=joined_curves(views))


def npz_bytes(found: Sequence[Evaluated], coordinates: Sequence[str], channels: Sequence[str]) -> bytes:
    """Returns an .npz file with concatenated arrays of all fields, which `read_npz` reads."""
    arrays: dict[str, Any] = {
        "pos": torch.cat([one.pos for one in found]).numpy(),
        "values": torch.cat([one.values for one in found]).numpy(),
        "offsets": np.cumsum([0, *(len(one.pos) for one in found)]),
        "names": [one.name for one in found],
        "coordinates": list(coordinates),
        "channels": list(channels),
    }
    if far := [one.is_far for one in found if one.is_far is not None]:
        arrays["is_far"] = torch.cat(far).numpy()
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def draw(
    found: Sequence[Evaluated],
    shape: tuple[int, ...],
    coordinates: Sequence[str],
    channel: str,
    *,
    kind: str = ".png",
) -> bytes:
    """Draws a picture with a panel per field: a line over one coordinate, an image over two.

    The first coordinate runs to the right and the second up; a first coordinate named `y`, as for rows of an image,
    runs down.

    Args:
        found: predicted fields.
        shape: number of points along each coordinate.
        coordinates, channel: labels of the axes.
        kind: kind of file; see `PICTURES`.

    Raises:
        ImportError: matplotlib is not installed.
    """
    plt = _pyplot()
    columns = min(len(found), 4)
    rows = -(-len(found) // columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(3.4 * columns, 3.0 * rows), squeeze=False, layout="constrained"
    )
    for axes in panels.flat[len(found) :]:
        axes.set_axis_off()
    for axes, one in zip(panels.flat, found, strict=False):
        first, values = one.pos.numpy(), one.values[:, 0].reshape(shape).numpy()
        if len(shape) == 1:
            axes.plot(first[:, 0], values, color="#0072b2")
            axes.set(xlabel=coordinates[0], ylabel=channel)
        else:
            is_rows = coordinates[0] == "y"
            across, along = (1, 0) if is_rows else (0, 1)
            (left, right), (start, end) = ((first[:, axis].min(), first[:, axis].max()) for axis in (across, along))
            extent = (left, right, end, start) if is_rows else (left, right, start, end)
            shown = axes.imshow(
                values if is_rows else values.T,
                extent=extent,
                origin="upper" if is_rows else "lower",
                aspect="auto",
                cmap="viridis",
            )
            axes.set(xlabel=coordinates[across], ylabel=coordinates[along])
            figure.colorbar(shown, ax=axes, label=channel)
        axes.set_title(one.name, fontsize=9, parse_math=False)
    return _rendered(figure, kind, 110)


@final
@dataclass(frozen=True)
class Compared:
    """A function with its prediction and the truth; positions are `(N, s)`, values `(N,)`."""

    name: str
    given_pos: Tensor
    given: Tensor
    pos: Tensor
    answer: Tensor
    truth: Tensor


def draw_comparison(
    rows: Sequence[Compared], coordinates: Sequence[str], given_channel: str, channel: str, *, kind: str = ".png"
) -> bytes:
    """Draws a picture with a row per function: input, prediction, truth, absolute error; kinds are `PICTURES`.

    Samples along one coordinate are lines, on a plane colours; prediction and truth share a scale. The first coordinate
    runs up and the second to the right; a first coordinate named `y`, as for rows of an image, runs down.

    Raises:
        ValueError: samples of more than two coordinates.
        ImportError: matplotlib is not installed.
    """
    if len(coordinates) > 2:
        raise ValueError(f"comparison draws functions of one or two coordinates; these have {', '.join(coordinates)}")
    plt = _pyplot()
    figure, panels = plt.subplots(len(rows), 4, figsize=(13, 2.9 * len(rows)), squeeze=False, layout="constrained")
    for axes, row in zip(panels, rows, strict=True):
        low, high = torch.cat([row.answer, row.truth]).aminmax()
        error = (row.answer - row.truth).abs()
        share = float(error.norm() / row.truth.norm().clamp(min=torch.finfo(row.truth.dtype).tiny))
        for at, (title, pos, values, limits) in zip(
            axes,
            (
                (f"{given_channel}, given", row.given_pos, row.given, None),
                (f"{channel}, answer", row.pos, row.answer, (float(low), float(high))),
                (f"{channel}, truth", row.pos, row.truth, (float(low), float(high))),
                (f"error, {100 * share:.1f} %", row.pos, error, (0.0, float(error.max()))),
            ),
            strict=True,
        ):
            _panel(figure, at, pos, values, coordinates, limits)
            at.set_title(title, fontsize=9)
        where = {"xycoords": "axes fraction", "parse_math": False}
        axes[0].annotate(row.name, (0, 1.16), fontsize=9, fontweight="bold", **where)
    return _rendered(figure, kind, 100)


def _panel(
    figure: "Figure",
    axes: "Axes",
    pos: Tensor,
    values: Tensor,
    coordinates: Sequence[str],
    limits: tuple[float, float] | None,
) -> None:
    """Draws values of one function: a line where one coordinate varies, else colours."""
    differing = [axis for axis in range(pos.shape[1]) if len(pos) and bool(pos[:, axis].amax() > pos[:, axis].amin())]
    if len(differing) < 2:
        axis = differing[0] if differing else 0
        order = pos[:, axis].argsort()
        axes.plot(pos[order, axis], values[order], color="#0072b2")
        axes.set(xlabel=coordinates[axis], ylim=None if limits is None or limits[0] == limits[1] else limits)
        return
    low, high = limits or (None, None)
    shown = axes.tripcolor(pos[:, 1], pos[:, 0], values, shading="gouraud", cmap="viridis", vmin=low, vmax=high)
    if coordinates[0] == "y":
        axes.invert_yaxis()
    axes.set(xlabel=coordinates[1], ylabel=coordinates[0])
    figure.colorbar(shown, ax=axes)


def _rendered(figure: "Figure", kind: str, dpi: int) -> bytes:
    """Returns a figure as a file of that kind, and closes it."""
    content = io.BytesIO()
    figure.savefig(content, format=kind.removeprefix("."), dpi=dpi)
    _pyplot().close(figure)
    return content.getvalue()


def _pyplot() -> ModuleType:
    """Imports matplotlib, for drawing into files.

    Raises:
        ImportError: it is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError('a picture needs matplotlib; get it with: pip install "fredholm[viz]"')
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
