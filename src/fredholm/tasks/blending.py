"""Choice of a network's share beside a closed-form model, on the validation split."""

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
"""Candidates for the share of a network."""


def check_has_valid(setting: str, value: int, num_valid: int, examples: str) -> None:
    """Raises a ValueError where a setting puts a model beside a network, but no validation split can choose the share.

    Args:
        setting, value: the setting, such as bank=100.
        num_valid: number of validation examples.
        examples: noun for the examples, such as images.
    """
    if num_valid == 0:
        raise ValueError(
            f"{setting} is {value}, whose share is chosen by a validation split, and there is none; leave it out, or "
            f"hold some {examples} out"
        )


def choose_share(
    model: Blended[Any, Any], measure: Measure, errors: Callable[[nn.Module, Batch], Iterable[Tensor]]
) -> None:
    """Sets the network's share to that with the smallest mean error; see `Task.choose_by_validation`.

    Args:
        model: model in evaluation mode.
        measure: as for `Task.choose_by_validation`.
        errors: yields the errors of the examples of a batch, `(B,)`, for each of SHARES.
    """
    model.share.fill_(best_of(SHARES, measure, errors))


def best_of(
    choices: Sequence[Choice], measure: Measure, errors: Callable[[nn.Module, Batch], Iterable[Tensor]]
) -> Choice:
    """Returns the choice with the smallest mean error, the first of equal ones; see `choose_share`.

    Args:
        choices: at least one choice.
        measure: as for `Task.choose_by_validation`.
        errors: yields the errors of the examples of a batch, `(B,)`, for each of the choices.
    """
    with importing_metrics():
        from fredholm.tasks.mean_metrics import Mean

    def score(model: nn.Module, batch: Batch, metrics: "dict[str, Metric]") -> None:
        for metric, found in zip(metrics.values(), errors(model, batch), strict=True):
            metric.update(found)

    found = measure(score, {str(n): Mean() for n in range(len(choices))})
    return choices[min(range(len(choices)), key=lambda n: (math.isnan(found[str(n)]), found[str(n)]))]
