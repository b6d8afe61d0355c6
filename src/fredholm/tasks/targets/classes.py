"""Targets that are one of several classes.

Legend
    K, n, n_k   classes, training examples, and those of class k
    w_k         weight of class k in the loss: 1, or balanced n / (K n_k), whose mean over the examples is 1

Balanced accuracy is the mean, over the classes that occur, of the share of a class's examples that is predicted right
(Brodersen et al., 2010). With two classes, the area under the ROC curve is the chance that an example of the second
class gets a higher probability of it than an example of the first. With more, it is the mean over the areas of each
class against all others, for classes that some examples have and some lack. The Matthews correlation is in `matthews`.

In closed form (`models.RidgeHead`) a column per class is fitted, 1 at an example's class and -1 elsewhere. The logits
are a s_k + log w_k, where s_k are the scores. The factor a > 0 minimises the cross-entropy of left-out scores. As in
Platt's scaling (1999) an example's own class counts (m + 1) / (m + 2), with m examples of it, and the others share the
rest, so that a is finite where no left-out score is wrong. With weights the likeliest class under the weighted loss is
w_k times as likely, p_k w_k / Σ_j p_j w_j.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from fredholm.models.fitted.ridge_head import LogitRegressand, Readout
from fredholm.tasks.objective import Objective
from fredholm.tasks.optional_packages import importing_metrics

from .calibration import best_factor
from .target import Answer, Answers, Kind, Known, Target, TargetSettings

if TYPE_CHECKING:
    from torchmetrics import Metric

OBJECTIVES = {
    "accuracy": Objective(metric="accuracy", percent=True),
    "balanced_accuracy": Objective(metric="balanced_accuracy", percent=True),
    "macro_f1": Objective(metric="macro_f1", percent=True),
    "matthews": Objective(metric="matthews", needs="examples of two classes"),
    "auroc": Objective(metric="auroc", needs="examples of two classes"),
    "loss": Objective(metric="loss", maximise=False),
}
IMBALANCE = 3
"""Ratio of the largest to the smallest class above which a run gives advice."""
MOST_CURVES = 100
"""Largest number of classes for areas under curves, which need all probabilities in memory."""


@final
@dataclass(frozen=True, kw_only=True)
class ClassAnswers(Answers):
    """Classes: `values` int64 `(n,)`, each in `0 .. len(names) - 1`.

    Raises:
        ValueError: values of another type, shape or range.
    """

    kind: ClassVar[Kind] = "class"

    def __post_init__(self) -> None:
        if self.values.dtype != torch.int64 or self.values.ndim != 1:
            raise ValueError(f"classes are {self.values.dtype} {tuple(self.values.shape)}; pass int64 (n,)")
        for i in (~((self.values >= 0) & (self.values < len(self.names)))).nonzero()[:1, 0].tolist():
            raise ValueError(f"example {i}: class {int(self.values[i])}, but {len(self.names)} classes are named")

    @property
    def absent(self) -> tuple[str, ...]:
        """See `Answers.absent`."""
        counts = self.values.bincount(minlength=len(self.names)).tolist()
        return tuple(name for name, count in zip(self.names, counts, strict=True) if count == 0)

    @property
    def strata(self) -> Tensor:
        """The classes themselves."""
        return self.values

    @property
    def advice(self) -> tuple[str, ...]:
        """Advises balanced weights, where the largest class has more than 3 times as many examples as the smallest."""
        counts = self.values.bincount(minlength=len(self.names))
        most, least = int(counts.argmax()), int(counts.argmin())
        if int(counts[most]) <= IMBALANCE * int(counts[least]) or int(counts[least]) == 0:
            return ()
        return (
            f"{self.names[most]!r} has {int(counts[most]):,} training examples, {self.names[least]!r} "
            f"{int(counts[least]):,}: watch the balanced accuracy, and try --task.class-weights balanced",
        )

    def learn(self, settings: TargetSettings, data: str) -> "ClassTarget":
        """See `Answers.learn`."""
        counts = self.values.bincount(minlength=len(self.names))
        return ClassTarget(names=self.names, weights=learn_class_weights(self.names, counts, settings, data))


def learn_class_weights(
    names: tuple[str, ...], counts: Tensor, settings: TargetSettings, data: str
) -> tuple[float, ...]:
    """Returns w_k of classes with `counts` training examples, int64 `(K,)`; () where all are 1.

    Raises:
        ValueError: there are fewer than two classes, a weighted class does not occur, or a setting has no effect.
    """
    if len(names) < 2:
        raise ValueError(f"{data} has the classes {list(names)}; expected at least 2")
    settings.refuse("classes", "take a target of numbers", "quantiles")
    if settings.class_weights == "none":
        return ()
    for k in (counts == 0).nonzero()[:1, 0].tolist():
        raise ValueError(
            f"{data} has no training example of the class {names[k]!r}, which cannot be weighed; leave class_weights "
            "out"
        )
    return tuple((counts.sum() / (len(names) * counts.double())).tolist())


@dataclass(frozen=True, kw_only=True)
class LogitsOfClasses(Target, LogitRegressand):
    """One of several classes, trained by cross-entropy in nats; a model outputs a logit per class.

    Args:
        names: see `Target`.
        weights: w_k, each above 0; (): all are 1.
    """

    weights: tuple[float, ...] = ()

    kind: ClassVar[Kind] = "class"
    has_shares: ClassVar[bool] = True

    def _check_settings(self, settings: TargetSettings) -> None:
        settings.refuse_other(class_weights="balanced" if self.weights else "none", quantiles=())

    @property
    def output_names(self) -> tuple[str, ...]:
        """The class names."""
        return self.names

    def targets(self, values: Tensor) -> Tensor:
        """Returns the classes unchanged."""
        return values

    def columns(self, targets: Tensor) -> Tensor:
        """See `Regressand.columns`; targets are classes int64 `(n,)`."""
        return 2 * F.one_hot(targets, len(self.names)).double() - 1

    def readout(self, scores: Tensor, targets: Tensor) -> Readout:
        """See `Regressand.readout`, and the module docstring."""
        order = torch.arange(len(self.names), device=scores.device)
        gain = scores.new_full((len(self.names),), _gain(scores, targets))
        return Readout(order, gain, scores.new_tensor(self.weights or (1.0,) * len(self.names)).log())

    def soft(self, targets: Tensor, smoothing: float) -> Tensor:
        """Returns shares of the classes `(B, K)`, smoothed towards 1 / K (Szegedy et al., 2016)."""
        return (1 - smoothing) * F.one_hot(targets, len(self.names)).float() + smoothing / len(self.names)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns w_k times the cross-entropy, `(B,)`; targets are classes `(B,)`, or shares of each `(B, K)`."""
        weight = outputs.new_tensor(self.weights) if self.weights else None
        return F.cross_entropy(outputs, targets, weight=weight, reduction="none")

    def predictions(self, outputs: Tensor) -> Tensor:
        """Returns the probability of every class."""
        return outputs.softmax(-1)

    @property
    def about_answers(self) -> str:
        """A description of the probabilities."""
        return "the probability of every class; they sum to 1"

    def answer(self, outputs: Tensor) -> Answer:
        """Returns the probability of every class."""
        return Answer({}, dict(zip(self.names, self.answers(outputs).tolist(), strict=True)))


@final
@dataclass(frozen=True, kw_only=True)
class ClassTarget(LogitsOfClasses):
    """The class of an example; see `LogitsOfClasses`."""

    follows: ClassVar[type[Known]] = ClassAnswers

    @property
    def objectives(self) -> dict[str, Objective]:
        """Metrics and the loss; with balanced weights `balanced_accuracy` comes first."""
        known = {name: each for name, each in OBJECTIVES.items() if name != "auroc" or _has_curves(self.names)}
        return {"balanced_accuracy": known["balanced_accuracy"], **known} if self.weights else known

    @property
    def shown(self) -> tuple[Objective, ...]:
        """The accuracy, the balanced accuracy and, where it is measured, the area under the ROC curve."""
        known = self.objectives
        return tuple(known[name] for name in ("accuracy", "balanced_accuracy", "auroc") if name in known)

    def metrics(self) -> "dict[str, Metric]":
        """`accuracy`, `balanced_accuracy`, `macro_f1`, `matthews`, and with at most 100 classes `auroc`.

        Where all examples are of one class, the last two are undefined, and NaN.
        """
        with importing_metrics():
            from .ranking import AreaUnderROC
        names = ("accuracy", "balanced_accuracy", "macro_f1", "matthews")
        found = {name: of_confusion(name, len(self.names)) for name in names}
        return {**found, "auroc": AreaUnderROC()} if _has_curves(self.names) else found

    def score(self, outputs: Tensor, targets: Tensor, metrics: "dict[str, Metric]") -> None:
        """Adds outputs `(B, K)` for classes `(B,)`."""
        probabilities, odds = outputs.softmax(-1), _log_odds(outputs)
        for name, metric in metrics.items():
            if name != "auroc":
                metric.update(probabilities, targets)
            elif len(self.names) == 2:
                metric.update(odds[:, 1:], targets[:, None] == 1)
            else:
                metric.update(odds, F.one_hot(targets, len(self.names)).bool())


def _log_odds(outputs: Tensor) -> Tensor:
    """Returns log p / (1 - p) of each class `(B, K)`, which orders probabilities even where they round to 1 in float32.

    Results are bitwise equal for logits that differ by a constant or by the order of the other classes.
    """
    ordered, order = outputs.double().sort(-1, descending=True)
    ordered = ordered - ordered[:, :1]
    none = torch.full_like(ordered[:, :1], -torch.inf)
    before = torch.cat([none, ordered.logcumsumexp(-1)[:, :-1]], dim=-1)
    after = torch.cat([ordered.flip(-1).logcumsumexp(-1).flip(-1)[:, 1:], none], dim=-1)
    odds = ordered - torch.logaddexp(before, after)
    # for equal logits the sums over the other classes might differ by rounding
    first = torch.searchsorted(-ordered, -ordered).clamp(max=odds.shape[1] - 1)
    return torch.empty_like(odds).scatter(-1, order, odds.gather(-1, first)).float()


def _has_curves(names: tuple[str, ...]) -> bool:
    return len(names) <= MOST_CURVES


def of_confusion(name: str, num_classes: int) -> "Metric":
    """Returns a new metric of true and predicted classes, by the name of an objective, in float64."""
    from torchmetrics.classification import MulticlassConfusionMatrix
    from torchmetrics.metric import CompositionalMetric

    return CompositionalMetric(_OF_CONFUSION[name], MulticlassConfusionMatrix(num_classes), None)


def share_right(confusion: Tensor) -> Tensor:
    """Returns the share of examples whose class is predicted, of a confusion matrix `(K, K)`, true classes first."""
    return confusion.diagonal().sum().double() / confusion.sum()


def mean_recall(confusion: Tensor) -> Tensor:
    """Returns the mean recall over the classes that occur, the non-zero rows of a confusion matrix `(K, K)`."""
    occurs = confusion.sum(1) > 0
    return (confusion.diagonal()[occurs].double() / confusion.sum(1)[occurs]).mean()


def mean_f1(confusion: Tensor) -> Tensor:
    """Returns the mean F1 over the classes that occur or are predicted, of a confusion matrix `(K, K)`."""
    both = confusion.sum(1) + confusion.sum(0)
    return (2 * confusion.diagonal()[both > 0].double() / both[both > 0]).mean()


def mean_iou(confusion: Tensor) -> Tensor:
    """Returns the mean intersection over union of the classes that occur or are predicted, of a matrix `(K, K)`."""
    right, both = confusion.diagonal(), confusion.sum(1) + confusion.sum(0)
    return (right[both > 0].double() / (both - right)[both > 0]).mean()


def matthews(confusion: Tensor) -> Tensor:
    """Returns the Matthews correlation of true and predicted classes (Gorodkin, 2004), of a confusion matrix `(K, K)`.

    NaN where all examples are of one class; 0 where all predictions are.
    """
    counts = confusion.double()
    true, predicted, total = counts.sum(1), counts.sum(0), counts.sum()
    of_true, of_predicted = total**2 - true.square().sum(), total**2 - predicted.square().sum()
    both = counts.diagonal().sum() * total - true @ predicted
    return torch.where(of_true > 0, both / (of_true * of_predicted).sqrt().clamp(min=1), torch.nan)


_OF_CONFUSION = {
    "accuracy": share_right,
    "balanced_accuracy": mean_recall,
    "macro_f1": mean_f1,
    "matthews": matthews,
    "mean_iou": mean_iou,
}


def _gain(scores: Tensor, labels: Tensor) -> float:
    """Returns the factor of the scores `(n, K)` that minimises the cross-entropy with smoothed classes."""
    classes = scores.shape[1]
    counts = labels.bincount(minlength=classes)[labels].double()[:, None]
    wanted = torch.where(F.one_hot(labels, classes).bool(), counts + 1, 1 / max(classes - 1, 1)) / (counts + 2)
    return best_factor(lambda a: float(((scores * a).softmax(-1) - wanted).mul(scores).sum()))
