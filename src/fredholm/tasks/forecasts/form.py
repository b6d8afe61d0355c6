"""A model of forecasts as a function of tensors: from the last samples of a series to those that follow."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fredholm.encoders.series import SeriesBatch
from fredholm.tasks.targets import NumberTarget
from fredholm.tasks.tensor_form import BATCH, Axis, Sizes, Slot, TensorForm

from .clock import DAY, Clock
from .scaling import Frame, in_unit


def forecast_form(
    model: nn.Module,
    frame: Frame,
    target: NumberTarget,
    channels: tuple[str, ...],
    num_read: int,
    clock: Clock,
    bin: float | None,
) -> TensorForm:
    """See `Task.tensor_form`: all in the unit of the data.

    Args:
        model: model of the task.
        frame: the scaling of windows.
        target: the target of the model.
        channels: the names of all channels of a series.
        num_read: the number of samples of a series that are read.
        clock: the clock of the series.
        bin: duration over which samples were averaged; None: they were not.
    """
    levels = tuple(f"quantile {level:g}" for level in target.quantiles)
    known_columns = [c for c in frame.ahead if c < len(channels)]
    predicted, known = (tuple(channels[c] for c in some) for some in (frame.columns, known_columns))
    effect = frame.effect if frame.effect and frame.effect.num_calendar else None
    weights = frame.weights()

    def call(model: nn.Module, values: Tensor, *more: Tensor) -> Tensor:
        after = more[0] if known else values.new_zeros(values.shape[0], frame.horizon, 0)
        if effect is not None:
            steps = torch.arange(1 - num_read, 1 + frame.horizon, dtype=torch.float64, device=values.device)
            dated = effect.calendar_terms(clock.later(more[-1][:, None], steps))
            values = torch.cat([values, dated[:, :num_read]], 2)
            after = torch.cat([after, dated[:, num_read:]], 2)
        seen = frame.of_values(values, after, weights)
        outputs = model(SeriesBatch(seen.values.float())).float()
        every, number = in_unit(target, outputs, seen.base, seen.scale)
        return torch.cat([number[..., None], every], dim=-1) if levels else number

    def draw(sizes: Sizes, generator: torch.Generator) -> tuple[Tensor, ...]:
        shape = sizes["batch"], num_read + frame.horizon, len(channels)
        steps = torch.randn(shape, generator=generator, dtype=torch.float64)
        deviation = torch.tensor(frame.deviation[: len(channels)], dtype=torch.float64)
        drawn = deviation * (3 + steps.cumsum(1) / num_read**0.5)
        seen = drawn[:, :num_read].contiguous()  # else a graph would be specialised to the strides of a slice
        days = torch.randint(20000, (sizes["batch"],), generator=generator).double()
        times = clock.later(torch.zeros_like(days), days * max(1, DAY // clock.step))  # not on a skipped weekday
        after = (drawn[:, num_read:, known_columns].contiguous(),) if known else ()
        return (seen, *after, times) if effect else (seen, *after)

    more = (Axis("levels", 1 + len(levels)),) if levels else ()
    return TensorForm(
        model=model,
        call=call,
        inputs=_inputs(channels, known, num_read, frame.horizon, reads_time=effect is not None),
        output=Slot(
            "answers",
            (BATCH, Axis("horizon", frame.horizon), Axis("predicted", len(predicted)), *more),
            f"the next {frame.horizon} samples of {', '.join(predicted)}, in the unit of the data",
        ),
        draw=draw,
        names={"predicted": predicted} | ({"levels": ("number", *levels)} if levels else {}),
        notes=(
            "a missing value is given as the last one before it",
            *(() if bin is None else (f"a sample is the mean over a bin of {bin:g} {clock.unit}",)),
        ),
    )


def _inputs(
    channels: Sequence[str], known: Sequence[str], num_read: int, horizon: int, *, reads_time: bool
) -> tuple[Slot, ...]:
    """The last samples, and those of known channels over the horizon and the time of the newest, if they are read."""
    values = Slot(
        "values",
        (BATCH, Axis("samples", num_read), Axis("channels", len(channels))),
        f"the last {num_read} samples of {', '.join(channels)}, the newest last, in the unit of the data",
    )
    ahead = Slot(
        "ahead",
        (BATCH, Axis("horizon", horizon), Axis("known", len(known))),
        f"the next {horizon} samples of {', '.join(known)}, which are known ahead, in the unit of the data",
    )
    time = Slot("time", (BATCH,), "the time of the newest sample, float64, in seconds since 1970")
    return (values, *((ahead,) if known else ()), *((time,) if reads_time else ()))
