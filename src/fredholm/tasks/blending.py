"""The share of a network in the answer where a model in closed form is beside it, chosen by the validation split."""

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fredholm.models.blended import Blended
from fredholm.tasks.optional_packages import importing_metrics

from .task import Batch, Measure

if TYPE_CHECKING:
    from torchmetrics import Metric

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of a network that are tried."""


def check_has_valid(setting: str, value: int, num_valid: int, examples: str) -> None:
    """Raises ValueError where no validation split chooses the share of what a setting puts beside a network.

    Args:
        setting, value: the setting, such as bank=100.
        num_valid: examples of the validation split.
        examples: what may be held out, such as images.
    """
    if num_valid == 0:
        raise ValueError(
            f"{setting} is {value}, whose share is chosen by a validation split, and there is none; leave it out, or "
            f"hold some {examples} out"
        )


def choose_share(
    model: Blended[Any, Any], measure: Measure, errors: Callable[[nn.Module, Batch], Iterable[Tensor]]
) -> None:
    """Sets the share of the network whose mean error is the smallest; see `Task.choose_by_validation`.

    Args:
        model: in evaluation mode.
        measure: as of `Task.choose_by_validation`.
        errors: of a model like this one and a batch, those of its examples for each of SHARES, `(B,)`.
    """
    with importing_metrics():
        from fredholm.tasks.mean_metrics import Mean

    def score(model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        for share, found in zip(SHARES, errors(model, batch), strict=True):
            metrics[str(share)].update(found)

    found = measure(score, {str(share): Mean() for share in SHARES})
    model.share.fill_(min(SHARES, key=lambda share: (math.isnan(found[str(share)]), found[str(share)])))
