"""Models of series as functions of tensors, for export."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fredholm.tasks.targets import Target
from fredholm.tasks.tensor_form import BATCH, Axis, OpenAxis, Sizes, Slot, TensorForm, first_of_each

from .batches import series_of
from .preparation import Preparation


def series_form(
    model: nn.Module,
    target: Target,
    preparation: Preparation,
    channels: Sequence[str],
    *,
    spacing: float,
    is_regular: bool,
    longest: int,
    of_samples: bool,
    notes: Sequence[str],
) -> TensorForm:
    """A model with its preparation and answers, from values at the spacing of training, or with their times.

    Args:
        model: model of series, in evaluation mode.
        target: what it predicts.
        preparation: of the values.
        channels: names of the channels of the data.
        spacing: mean time between two samples in training.
        is_regular: whether samples of training lie at multiples of the spacing, so that none has a time.
        longest: samples of the longest series, or part of one, in training.
        of_samples: whether each sample has an answer.
        notes: see `TensorForm`.
    """

    def call(model: nn.Module, values: Tensor, exists: Tensor, *times: Tensor) -> Tensor:
        own = torch.where(exists[..., None], values, torch.nan)  # nothing is interpolated towards the padding
        prepared = torch.where(exists[..., None], preparation.apply(own), 0.0)
        batch = {"values": prepared, "mask": exists, **({"times": times[0]} if times else {})}
        return target.answers(model(series_of(batch)).float())

    def draw(sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, ...]:
        batch, samples = sizes["batch"], sizes["samples"]
        mean, deviation = (
            torch.tensor(part, dtype=torch.float64) for part in (preparation.mean, preparation.deviation)
        )
        values = mean + deviation * torch.randn(batch, samples, len(mean), generator=generator, dtype=torch.float64)
        exists = first_of_each(batch, samples)
        if preparation.observation:
            values[torch.rand(values.shape, generator=generator) < 0.2] = torch.nan
        values = torch.where(exists[..., None], values, 0.0)
        if is_regular:
            return values, exists
        steps = torch.rand(batch, samples, generator=generator, dtype=torch.float64)
        return values, exists, (2 * spacing * steps).cumsum(1)

    samples, example = Axis("samples"), min(longest, 24)
    missing = "; NaN where one is missing" if preparation.observation else ""
    about = f"the channels {', '.join(channels)} in the unit of the data"
    slots = (
        Slot("values", (BATCH, samples, Axis("channels", len(channels))), f"{about}{missing}"),
        Slot("exists", (BATCH, samples), "which samples a series has; the others come last"),
        *(() if is_regular else (Slot("times", (BATCH, samples), "of the samples, in ascending order"),)),
    )
    return TensorForm(
        model=model,
        call=call,
        inputs=slots,
        output=target.slot(BATCH, *((samples,) if of_samples else ())),
        draw=draw,
        open_axes={"samples": OpenAxis(example, example + 7 if longest < 31 else 31, longest)},
        names=target.axis_names,
        notes=(*((f"samples are {spacing:g} apart, as in training",) if is_regular else ()), *notes),
    )
