"""Tensor forms of models of functions, with inputs and outputs in the unit of the data."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fredholm.domains import UnitGrid
from fredholm.tasks.tensor_form import BATCH, Axis, Draw, OpenAxis, Sizes, Slot, TensorForm

from .batches import Scale
from .unit_box import UnitBox


def form_of_samples(
    model: nn.Module,
    call: Callable[..., Tensor],
    draw: Draw,
    *,
    coordinates: tuple[str, ...],
    channels: tuple[str, ...],
    predicted: tuple[str, ...],
    about: str,
) -> TensorForm:
    """Returns a form from samples at any points to any evaluation points.

    Args:
        model: model of the task, in evaluation mode.
        call: maps the model, `pos` (B, N, s), `values` (B, N, m), `exists` (B, N) and `places` (B, Nq, s) to
            predictions (B, Nq, m').
        draw: draws such inputs, with N of size `samples` and Nq of size `places`.
        coordinates, channels, predicted: names of the s coordinates, and of the m and the m' values.
        about: description of the predictions.
    """
    samples, places, along = Axis("samples"), Axis("places"), Axis("coordinates", len(coordinates))
    where = ", ".join(coordinates)
    return TensorForm(
        model=model,
        call=call,
        inputs=(
            Slot("pos", (BATCH, samples, along), f"{where} of each sample, in the unit of the data"),
            Slot(
                "values",
                (BATCH, samples, Axis("channels", len(channels))),
                f"{', '.join(channels)} of each sample, in the unit of the data",
            ),
            Slot("exists", (BATCH, samples), "whether a sample exists; missing samples come last"),
            Slot("places", (BATCH, places, along), f"{where} of each evaluation point"),
        ),
        output=Slot("answers", (BATCH, places, Axis("predicted", len(predicted))), about),
        draw=draw,
        open_axes={"samples": OpenAxis(24, 31, 64), "places": OpenAxis(10, 13, 64)},
        names={"predicted": predicted},
    )


def form_on_grid(
    model: nn.Module,
    call: Callable[..., Tensor],
    grid: UnitGrid,
    box: UnitBox,
    scale: Scale,
    *,
    coordinates: tuple[str, ...],
    channels: tuple[str, ...],
    predicted: tuple[str, ...],
) -> TensorForm:
    """Returns a form from values on a grid to predictions at the same points.

    Args:
        model: model of the task, in evaluation mode.
        call: maps the model and `values` (B, *shape, m) to predictions (B, *shape, m').
        grid: grid of all functions, in the unit box.
        box: place of the unit box in the coordinates of the data.
        scale: scale of the values drawn as examples.
        coordinates, channels, predicted: as for `form_of_samples`.
    """
    along = tuple(Axis(name, count) for name, count in zip(coordinates, grid.shape, strict=True))

    def draw(sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, ...]:
        return (scale.in_unit(torch.randn(sizes["batch"], *grid.shape, len(channels), generator=generator)),)

    first = box.in_data(torch.tensor(grid.origin, dtype=torch.float64)).tolist()
    step = (torch.tensor(grid.spacing, dtype=torch.float64) * box.extent).tolist()
    places = ", ".join(
        f"{name} = {start:g} + {by:g} n" for name, start, by in zip(coordinates, first, step, strict=True)
    )
    of_values = f"{', '.join(channels)}, in the unit of the data, at {places} for n = 0, 1, ..."
    of_answers = f"{', '.join(predicted)}, in the unit of the data"
    return TensorForm(
        model=model,
        call=call,
        inputs=(Slot("values", (BATCH, *along, Axis("channels", len(channels))), of_values),),
        output=Slot("answers", (BATCH, *along, Axis("predicted", len(predicted))), of_answers),
        draw=draw,
        names={"predicted": predicted},
    )
