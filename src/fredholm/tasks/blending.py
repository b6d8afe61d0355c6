"""Choice of a network's share in a blend with a closed-form model, on the validation split."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

import torch
from torch import Tensor, nn

from fredholm.models.blended import Blended, blend
from fredholm.tasks.optional_packages import importing_metrics
from fredholm.tasks.splits.splits import Part

from .target_task import TargetTask
from .task import Batch, Measure

if TYPE_CHECKING:
    from torchmetrics import Metric

Choice = TypeVar("Choice")

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Candidates for the share of a network."""


def check_has_valid(setting: str, value: int, num_valid: int, examples: str) -> None:
    """Raises a ValueError where a setting blends a network with a model, but no validation split can choose the share.

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
    model: Blended[Any, Any],
    measure: Measure,
    errors: Callable[[nn.Module, Batch], Iterable[Tensor]],
    shares: Sequence[float] = SHARES,
) -> None:
    """Sets the network's share to that with the smallest mean error; see `Task.choose_by_validation`.

    Args:
        model: model in evaluation mode.
        measure: as for `Task.choose_by_validation`.
        errors: yields the errors of the examples of a batch, `(B,)`, for each of `shares`.
        shares: candidates.
    """
    model.share.fill_(best_of(shares, measure, errors))


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


class BlendingTask(TargetTask[Part]):
    """A task whose network may be blended with a closed-form model, with a share that is chosen by the loss.

    Batches of the validation split then hold `number` (B,), the indices of their examples.
    """

    shares: ClassVar[tuple[float, ...]] = SHARES
    """Candidates for the share of the network."""

    @abstractmethod
    def _applied(self, model: Callable[[Any], Tensor], batch: Batch) -> Tensor:
        """Returns the outputs of a model, or of a part of one, as `_outputs`."""

    @final
    def choose_by_validation(self, model: nn.Module, measure: Measure) -> None:
        """See `Task.choose_by_validation`: the network's share in a blend with a closed-form model, by the loss."""
        if not isinstance(model, Blended):
            return

        def errors(model: nn.Module, batch: Batch) -> Iterator[Tensor]:
            assert isinstance(model, Blended)
            learnt, fitted = self._outputs(model.network, batch), self._fitted_outputs(model, batch)
            learnt, fitted, targets = self._counted(batch, learnt, fitted, batch["targets"])
            return (self.target.losses(blend(learnt, fitted, share), targets) for share in self.shares)

        choose_share(model, measure, errors, self.shares)

    @final
    def _outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._applied(model, batch).float()

    @final
    def _scored(self, model: nn.Module, batch: Batch) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        if not isinstance(model, Blended):
            yield from super()._scored(model, batch)
            return
        learnt, share = self._outputs(model.network, batch), float(model.share)
        outputs = learnt if share == 1 else blend(learnt, self._fitted_outputs(model, batch), share)
        outputs, learnt, targets = self._counted(batch, outputs, learnt, batch["targets"])
        yield outputs, learnt, targets

    def _counted(self, batch: Batch, *each: Tensor) -> list[Tensor]:
        """Rows of outputs or targets that count in scores: all examples or, of elements, those of known class."""
        return [*each]

    def _fitted_outputs(self, model: Blended[Any, Any], batch: Batch) -> Tensor:
        """Outputs of the closed-form model; cached for validation examples, which each evaluation needs."""

        def fresh(rows: Tensor | None = None) -> Tensor:
            some = batch if rows is None else {name: values[rows] for name, values in batch.items()}
            return self._applied(model.answer_fitted, some).float()

        if "number" in batch and not torch.is_grad_enabled():
            return self._cached_outputs.outputs(model.fitted, batch["number"], fresh)
        return fresh()

    @cached_property
    def _cached_outputs(self) -> "_CachedOutputs":
        return _CachedOutputs()


@final
class _CachedOutputs:
    """Outputs of a closed-form model by the index of the example; they are dropped when its parameters change."""

    def __init__(self) -> None:
        self._parameters, self._outputs = list[Tensor](), dict[int, Tensor]()

    def outputs(self, fitted: nn.Module, numbers: Tensor, fresh: Callable[[Tensor], Tensor]) -> Tensor:
        """Outputs for examples with indices `numbers` `(B,)`, float32 `(B, num_outputs)`.

        Args:
            fitted: the model.
            numbers: indices of the examples.
            fresh: computes outputs of the examples of some rows of the batch.
        """
        now = [*fitted.parameters()]
        is_same = len(now) == len(self._parameters) and all(
            one.device == other.device and torch.equal(one, other)
            for one, other in zip(now, self._parameters, strict=True)
        )
        if not is_same:
            self._parameters, self._outputs = [each.detach().clone() for each in now], {}
        each = numbers.tolist()
        new = [i for i, number in enumerate(each) if number not in self._outputs]
        if new:
            found = fresh(torch.tensor(new, device=numbers.device))
            self._outputs |= {each[i]: own for i, own in zip(new, found, strict=True)}
        return torch.stack([self._outputs[number] for number in each])
