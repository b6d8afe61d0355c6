"""What is predicted of each example: the known answers, and what a model learns."""

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
"""One of several classes, any of several labels, or numbers."""
PLURALS: dict[Kind, str] = {"class": "classes", "labels": "labels", "number": "numbers"}
ClassWeights = Literal["none", "balanced"]


def check_names_differ(what: str, names: tuple[str, ...]) -> None:
    """Raises ValueError where a name is there twice: predictions of one name could not be kept apart."""
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ValueError(f"of the {what} two are called {name!r}; give each a name of its own")


@final
@dataclass(frozen=True, kw_only=True)
class TargetSettings:
    """What is asked of a target beyond the data; what has no effect is refused.

    Args:
        objective: the metric by which runs are compared; None: the kind's own.
        class_weights: `balanced` weighs the loss of every class, or of what has and what lacks a label, so that all
            count alike, however many examples there are of them.
        quantiles: of numbers, each above 0 and below 1, increasing: these are predicted by the quantile loss, in place
            of the mean by squared error; (): the mean.

    Raises:
        ValueError: other weights than these.
    """

    objective: str | None = None
    class_weights: ClassWeights = "none"
    quantiles: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.class_weights not in (known := get_args(ClassWeights)):
            raise ValueError(f"class_weights is {self.class_weights!r}; expected one of {', '.join(known)}")

    def refuse_other(self, **made: object) -> None:
        """Raises ValueError where these settings are not those that a run was made with."""
        for name, value in made.items():
            if getattr(self, name) != value:
                raise ValueError(f"{name} is {getattr(self, name)!r}; the run was made with {value!r}")

    def refuse(self, because: str, instead: str, *names: str) -> None:
        """Raises ValueError where one of these settings was given, which has no effect there."""
        refuse_idle("", type(self), because, instead, **{name: getattr(self, name) for name in names})


class Answer(NamedTuple):
    """What a model says of one example; see `Prediction`."""

    cells: dict[str, str | float]
    probabilities: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Known(ABC):
    """What is known of training data, from which it follows what a model is to predict.

    Args:
        names: of the classes, the labels or the numbers.
    """

    names: tuple[str, ...]

    @abstractmethod
    def learn(self, settings: TargetSettings, data: str) -> Target:
        """What a model is to predict, by what is known of the training split.

        Args:
            settings: what is asked for.
            data: what the answers belong to, for messages.

        Raises:
            ValueError: there is nothing to distinguish, or a setting has no effect.
        """


@dataclass(frozen=True, kw_only=True)
class Answers(Known):
    """The known answers of n examples.

    Args:
        names: see `Known`.
        values: one row an example, as the kind says.
    """

    kind: ClassVar[Kind]
    values: Tensor

    @final
    def __len__(self) -> int:
        return len(self.values)

    @final
    def select(self, indices: Tensor) -> Self:
        """Those of the examples `indices`, int64 `(m,)`."""
        return replace(self, values=self.values[indices])

    @property
    def absent(self) -> tuple[str, ...]:
        """Classes or labels that no example has."""
        return ()

    @property
    def advice(self) -> tuple[str, ...]:
        """What to try with such answers, one sentence each."""
        return ()

    @property
    @abstractmethod
    def strata(self) -> Tensor:
        """A number an example, int64 `(n,)`: a split takes the same share of all that have the same."""


@dataclass(frozen=True, kw_only=True)
class Target(Regressand):
    """What a model predicts of each example: how its outputs are scored and read.

    Args:
        names: of the classes, the labels or the numbers.
    """

    names: tuple[str, ...]

    kind: ClassVar[Kind]
    follows: ClassVar[type[Known]]
    """What it is learnt from."""
    has_shares: ClassVar[bool]
    """Whether targets are shares from 0 to 1, which can be smoothed."""

    def __post_init__(self) -> None:
        check_names_differ(PLURALS[self.kind], self.names)  # by which answers are named

    @property
    @abstractmethod
    def objectives(self) -> dict[str, Objective]:
        """What runs can be compared by, by its name; the first is meant where nothing is said."""

    @property
    def shown(self) -> tuple[Objective, ...]:
        """What is printed at the end of a run beside the objective."""
        return ()

    @final
    def objective(self, settings: TargetSettings) -> Objective:
        """The metric by which runs are compared.

        Raises:
            ValueError: there is no such metric, or this target was learnt by other settings.
        """
        self._check_settings(settings)
        known = self.objectives
        name = next(iter(known)) if settings.objective is None else settings.objective
        if name not in known:
            raise ValueError(f"objective is {name!r}; expected one of {', '.join(known)}")
        return known[name]

    @abstractmethod
    def _check_settings(self, settings: TargetSettings) -> None:
        """Raises ValueError unless this is what the settings ask for, apart from the objective."""

    @property
    @abstractmethod
    def output_names(self) -> tuple[str, ...]:
        """What each of the numbers is of, that a model gives for an example."""

    @property
    @final
    def num_outputs(self) -> int:
        """Numbers that a model gives for each example."""
        return len(self.output_names)

    @final
    def check(self, known: Known, data: str) -> None:
        """Raises ValueError unless what is known is of this kind and of these names."""
        if not isinstance(known, self.follows) or known.names != self.names:
            raise ValueError(
                f"what is known of {data} is {', '.join(known.names)}; the run was made with the {PLURALS[self.kind]} "
                f"{', '.join(self.names)}"
            )

    def count(self, targets: Tensor) -> int:
        """How many of `targets` are learnt from."""
        return len(targets)

    @abstractmethod
    def targets(self, values: Tensor) -> Tensor:
        """The `values` of `Answers` as losses take them."""

    @abstractmethod
    def soft(self, targets: Tensor, smoothing: float) -> Tensor:
        """Targets as numbers of which means can be taken, float32 `(B, ...)`, for examples that are mixed.

        Args:
            targets: as losses take them.
            smoothing: how far shares of classes or labels are moved to where nothing is known, from 0 to below 1.
        """

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What is trained on, of each example `(B,)`; of float32 outputs `(B, num_outputs)`."""

    @abstractmethod
    def metrics(self) -> dict[str, Metric]:
        """New accumulators by name, without the mean `loss`.

        Raises:
            ImportError: torchmetrics is not installed.
        """

    @abstractmethod
    def score(self, outputs: Tensor, targets: Tensor, metrics: dict[str, Metric]) -> None:
        """Adds outputs `(B, num_outputs)` to `metrics`."""

    @abstractmethod
    def predictions(self, outputs: Tensor) -> Tensor:
        """What outputs `(..., num_outputs)` say, `(..., len(names))`: probabilities, or numbers in the data's unit."""

    @property
    def answer_names(self) -> tuple[str, ...]:
        """What each of `answers` is of."""
        return self.names

    def answers(self, outputs: Tensor) -> Tensor:
        """All that outputs `(..., num_outputs)` say, `(..., len(answer_names))`; their predictions, and more."""
        return self.predictions(outputs)

    @property
    @abstractmethod
    def about_answers(self) -> str:
        """What `answers` are, for a person."""

    @final
    def slot(self, *axes: Axis) -> Slot:
        """`answers` as what a form gives, of outputs with these axes before their last."""
        return Slot("answers", (*axes, Axis(PLURALS[self.kind], len(self.answer_names))), self.about_answers)

    @final
    @property
    def axis_names(self) -> dict[str, tuple[str, ...]]:
        """The names along the last axis of `slot`."""
        return {PLURALS[self.kind]: self.answer_names}

    @abstractmethod
    def answer(self, outputs: Tensor) -> Answer:
        """What outputs `(num_outputs,)` say of one example."""
