"""Error metrics of forecasts.

Legend
    m                                     season, in samples
    seasonal naive forecast of y_{t+h}    y_{t + h - m ⌈h / m⌉}: the last season again
    q                                     the mean of |y_t - y_{t-m}| over the training part of a series
    MASE                                  the mean of |y - ŷ| / q

Source: Hyndman and Koehler, Another look at measures of forecast accuracy (2006).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fredholm.tasks.optional_packages import importing_metrics
from fredholm.tasks.targets import NumberTarget

from .windows import WindowSet

if TYPE_CHECKING:
    from torchmetrics import Metric


def forecast_metrics(target: NumberTarget) -> "dict[str, Metric]":
    """The metrics: `mase`, MASE of the seasonal naive forecast, errors in the unit of the data, and the mean `loss`.

    With quantiles also `quantile_loss`, the mean quantile loss in units of q, and, with several, `coverage`.

    Raises:
        ImportError: torchmetrics is not installed.
    """
    with importing_metrics():
        from fredholm.tasks.mean_metrics import Mean, RootMean
    names = ["mase", "seasonal_naive_mase", "mean_absolute_error", "loss"]
    names += ["quantile_loss"] * bool(target.quantiles) + ["coverage"] * (len(target.quantiles) > 1)
    return {**{name: Mean() for name in names}, "root_mean_squared_error": RootMean()}


def add_errors(
    metrics: "dict[str, Metric]", target: NumberTarget, levels: Tensor, number: Tensor, batch: dict[str, Tensor]
) -> None:
    """Updates all metrics but the loss.

    Args:
        metrics: see `forecast_metrics`.
        target: the target of the model.
        levels, number: see `in_unit`.
        batch: `answers` and `naive` `(B, H, F)`, and q as `error_scale` `(B, 1, F)`.
    """
    true, q = batch["answers"], batch["error_scale"]
    error, has_unit = (number - true).abs(), (q > 0).expand_as(true)
    metrics["mase"].update((error / q)[has_unit])
    metrics["seasonal_naive_mase"].update(((batch["naive"] - true).abs() / q)[has_unit])
    metrics["mean_absolute_error"].update(error)
    metrics["root_mean_squared_error"].update(error.square())
    if target.quantiles:
        missed, tau = true[..., None] - levels, levels.new_tensor(target.quantiles)
        loss = torch.maximum(tau * missed, (tau - 1) * missed) / q[..., None]
        metrics["quantile_loss"].update(loss[has_unit])
    if len(target.quantiles) > 1:
        metrics["coverage"].update(((levels[..., 0] <= true) & (true <= levels[..., -1])).float())


def error_scale(values: Tensor, season: int, spare: Tensor) -> Tensor:
    """q of the channels of a series `(T, F)`, `(F,)`; `spare`, their deviations in training, where q would be 0.

    A series of at most a season is taken without one.
    """
    lag = season if len(values) > season else 1
    error = (values[lag:] - values[:-lag]).abs().nanmean(0)
    return torch.where(error > 1e-9 * spare, error, spare)


def seasonal_naive(windows: WindowSet, columns: Sequence[int], season: int) -> Tensor:
    """The seasonal naive forecast of some channels, `(n, H, F)`; after less than a season it repeats all samples."""
    found = list[Tensor]()
    for i, at in windows.places.tolist():
        lag = min(season, at)  # may be longer than the context
        last = windows.values[i][at - lag : at, columns]
        found.append(last.repeat(-(-windows.horizon // lag), 1)[: windows.horizon])
    return torch.stack(found)
