"""The share of a network in the answer where a model in closed form is beside it, chosen by the validation split."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from fredholm.models.blended import Blended
from fredholm.tasks.optional_packages import importing_metrics

from .task import Batch, Measure

if TYPE_CHECKING:
    from torchmetrics import Metric

Choice = TypeVar("Choice")

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
    model.share.fill_(best_of(SHARES, measure, errors))


def best_of(
    choices: Sequence[Choice], measure: Measure, errors: Callable[[nn.Module, Batch], Iterable[Tensor]]
) -> Choice:
    """The choice whose mean error is the smallest, of equal ones the first; see `choose_share`.

    Args:
        choices: one or more.
        measure: as of `Task.choose_by_validation`.
        errors: of a model and a batch, those of its examples for each of the choices, `(B,)`.
    """
    with importing_metrics():
        from fredholm.tasks.mean_metrics import Mean

    def score(model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        for metric, found in zip(metrics.values(), errors(model, batch), strict=True):
            metric.update(found)

    found = measure(score, {str(n): Mean() for n in range(len(choices))})
    return choices[min(range(len(choices)), key=lambda n: (math.isnan(found[str(n)]), found[str(n)]))]
