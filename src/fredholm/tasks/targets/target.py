"""Prediction targets: the known values of examples, and the target that a model learns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self, final, get_args

from torch import Tensor

from fredholm._settings import refuse_idle
from fredholm.models.fitted.ridge_head import Regressand
from fredholm.tasks.objective import Objective
from fredholm.tasks.tensor_form import Axis, Slot

if TYPE_CHECKING:
    from torchmetrics import Metric

Kind = Literal["class", "labels", "number"]
"""Kinds of targets: one of several classes, any of several labels, or numbers."""
PLURALS: dict[Kind, str] = {"class": "classes", "labels": "labels", "number": "numbers"}
ClassWeights = Literal["none", "balanced"]


def check_names_differ(what: str, names: tuple[str, ...]) -> None:
    """Raises a ValueError for a repeated name, since predictions of one name could not be distinguished."""
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ValueError(f"of the {what} two are called {name!r}; give each a name of its own")


@final
@dataclass(frozen=True, kw_only=True)
class TargetSettings:
    """Settings of a target beyond the data; those without effect are refused.

    Args:
        objective: metric by which runs are compared; None: the default of the kind.
        class_weights: `balanced` weighs the loss of every class, or of examples with and without a label, so that all
            count equally, however many examples they have.
        quantiles: levels for numbers, above 0 and below 1, increasing, which are predicted by the quantile loss in
            place of the mean by squared error; (): the mean.

    Raises:
        ValueError: class_weights has another value.
    """

    objective: str | None = None
    class_weights: ClassWeights = "none"
    quantiles: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.class_weights not in (known := get_args(ClassWeights)):
            raise ValueError(f"class_weights is {self.class_weights!r}; expected one of {', '.join(known)}")

    def refuse_other(self, **made: object) -> None:
        """Raises a ValueError where settings differ from those of the run."""
        for name, value in made.items():
            if getattr(self, name) != value:
                raise ValueError(f"{name} is {getattr(self, name)!r}; the run was made with {value!r}")

    def refuse(self, because: str, instead: str, *names: str) -> None:
        """Raises a ValueError for each named setting that was given, since it has no effect there."""
        refuse_idle("", type(self), because, instead, **{name: getattr(self, name) for name in names})


class Answer(NamedTuple):
    """Prediction for one example; see `Prediction`."""

    cells: dict[str, str | float]
    probabilities: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Known(ABC):
    """Known targets of training data, which determine the target of a model.

    Args:
        names: names of the classes, the labels or the numbers.
    """

    names: tuple[str, ...]

    @abstractmethod
    def learn(self, settings: TargetSettings, data: str, weights: Tensor | None = None) -> Target:
        """Returns the target of a model, learnt from the training split.

        Args:
            settings: settings of the target.
            data: name of the data, for messages.
            weights: weights of the examples, `(n,)`; None: all are 1.

        Raises:
            ValueError: there is nothing to distinguish, or a setting has no effect.
        """


@dataclass(frozen=True, kw_only=True)
class Answers(Known):
    """Known targets of n examples.

    Args:
        names: see `Known`.
        values: one row per example, as described by the kind.
    """

    kind: ClassVar[Kind]
    values: Tensor

    @final
    def __len__(self) -> int:
        return len(self.values)

    @final
    def select(self, indices: Tensor) -> Self:
        """Returns the targets of the examples `indices`, int64 `(m,)`."""
        return replace(self, values=self.values[indices])

    @property
    def absent(self) -> tuple[str, ...]:
        """Names of classes or labels that no example has."""
        return ()

    @property
    def advice(self) -> tuple[str, ...]:
        """Advice for such targets, one sentence each."""
        return ()

    @property
    @abstractmethod
    def strata(self) -> Tensor:
        """Stratum of each example, int64 `(n,)`: a split takes the same share of every stratum."""


@dataclass(frozen=True, kw_only=True)
class Target(Regressand):
    """Prediction target of an example: loss, metrics and interpretation of a model's outputs.

    Args:
        names: names of the classes, the labels or the numbers.
    """

    names: tuple[str, ...]

    kind: ClassVar[Kind]
    follows: ClassVar[type[Known]]
    """Class of the known targets that it is learnt from."""
    has_shares: ClassVar[bool]
    """Whether targets are shares from 0 to 1, which can be smoothed."""

    def __post_init__(self) -> None:
        check_names_differ(PLURALS[self.kind], self.names)  # predictions are identified by name

    @property
    @abstractmethod
    def objectives(self) -> dict[str, Objective]:
        """Metrics by which runs can be compared, by name; the first is the default."""

    @property
    def shown(self) -> tuple[Objective, ...]:
        """Metrics that are printed at the end of a run beside the objective."""
        return ()

    @final
    def objective(self, settings: TargetSettings) -> Objective:
        """Returns the metric by which runs are compared.

        Raises:
            ValueError: there is no such metric, or this target was learnt with other settings.
        """
        self._check_settings(settings)
        known = self.objectives
        name = next(iter(known)) if settings.objective is None else settings.objective
        if name not in known:
            raise ValueError(f"objective is {name!r}; expected one of {', '.join(known)}")
        return known[name]

    @abstractmethod
    def _check_settings(self, settings: TargetSettings) -> None:
        """Raises a ValueError unless the target matches the settings, apart from the objective."""

    @property
    @abstractmethod
    def output_names(self) -> tuple[str, ...]:
        """Names of the numbers that a model outputs for an example."""

    @property
    @final
    def num_outputs(self) -> int:
        """Number of a model's outputs per example."""
        return len(self.output_names)

    @final
    def check(self, known: Known, data: str) -> None:
        """Raises a ValueError unless known targets are of this kind and these names."""
        if not isinstance(known, self.follows) or known.names != self.names:
            raise ValueError(
                f"the targets of {data} are {', '.join(known.names)}; the run was made with the {PLURALS[self.kind]} "
                f"{', '.join(self.names)}"
            )

    def count(self, targets: Tensor) -> int:
        """Returns the number of `targets` that enter the loss."""
        return len(targets)

    @abstractmethod
    def targets(self, values: Tensor) -> Tensor:
        """Converts the `values` of `Answers` to the form that losses take."""

    @abstractmethod
    def soft(self, targets: Tensor, smoothing: float) -> Tensor:
        """Converts targets to numbers that can be averaged, float32 `(B, ...)`, for examples that are mixed.

        Args:
            targets: in the form that losses take.
            smoothing: amount of smoothing of shares of classes or labels, from 0 to below 1.
        """

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the training loss of each example, `(B,)`, of float32 outputs `(B, num_outputs)`."""

    @abstractmethod
    def metrics(self) -> dict[str, Metric]:
        """Returns new accumulators by name, without the mean `loss`.

        Raises:
            ImportError: torchmetrics is not installed.
        """

    @abstractmethod
    def score(
        self, outputs: Tensor, targets: Tensor, metrics: dict[str, Metric], weights: Tensor | None = None
    ) -> None:
        """Updates `metrics` with outputs `(B, num_outputs)`, and weights `(B,)` of the examples; None: all are 1."""

    @abstractmethod
    def predictions(self, outputs: Tensor) -> Tensor:
        """Converts outputs `(..., num_outputs)` to `(..., len(names))`: probabilities, or numbers in data units."""

    @property
    def answer_names(self) -> tuple[str, ...]:
        """Names of the entries of `answers`."""
        return self.names

    def answers(self, outputs: Tensor) -> Tensor:
        """Converts outputs `(..., num_outputs)` to all predicted quantities, `(..., len(answer_names))`."""
        return self.predictions(outputs)

    @property
    @abstractmethod
    def about_answers(self) -> str:
        """Description of `answers` for people."""

    @final
    def slot(self, *axes: Axis) -> Slot:
        """Returns `answers` as the output slot of a form, with these axes before the last one."""
        return Slot("answers", (*axes, Axis(PLURALS[self.kind], len(self.answer_names))), self.about_answers)

    @final
    @property
    def axis_names(self) -> dict[str, tuple[str, ...]]:
        """The names along the last axis of `slot`."""
        return {PLURALS[self.kind]: self.answer_names}

    @abstractmethod
    def answer(self, outputs: Tensor) -> Answer:
        """Returns the prediction for one example from outputs `(num_outputs,)`."""
