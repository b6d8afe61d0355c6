"""Error metrics of forecasts."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fredholm.tasks.optional_packages import importing_metrics
from fredholm.tasks.targets import NumberTarget

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
