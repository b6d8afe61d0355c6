"""Targets that are any subset of several labels.

Legend
    L, n, n_l   labels, training examples, and those with label l
    w_l         weights in the loss of examples with and without label l: both 1, or balanced n / (2 n_l) and
                n / (2 (n - n_l)), so that both count equally and the mean over the examples is 1

In closed form (`models.RidgeHead`) a column per label is fitted, 1 where an example has it and -1 elsewhere. The logit
of label l is a_l s_l, where s_l is the score, plus the logarithm of the ratio of its two weights, by which the
likeliest prediction under the weighted loss is shifted. The factor a_l > 0 minimises the cross-entropy of the left-out
scores with (m + 1) / (m + 2) for the m examples with the label, and 1 / (m' + 2) for the m' others (Platt, 1999), so
that it is finite where no left-out score is wrong.
"""

import math
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

_BOTH, _ANY = "a label that some examples have and some lack", "an example with a label"
OBJECTIVES = {
    "average_precision": Objective(metric="average_precision", needs=_BOTH),
    "auroc": Objective(metric="auroc", needs=_BOTH),
    "micro_f1": Objective(metric="micro_f1", percent=True, needs=_ANY),
    "macro_f1": Objective(metric="macro_f1", percent=True, needs=_ANY),
    "exact_match": Objective(metric="exact_match", percent=True),
    "loss": Objective(metric="loss", maximise=False),
}

LEAST = 0.5
"""Probability from which a label is predicted."""
OF_PREDICTED = ("micro_f1", "macro_f1")
"""Counted metrics of the predicted labels; rankings use the probabilities."""


@final
@dataclass(frozen=True, kw_only=True)
class LabelAnswers(Answers):
    """Labels: `values` bool `(n, len(names))`, True = the example has this label.

    Raises:
        ValueError: values of another type or shape.
    """

    kind: ClassVar[Kind] = "labels"

    def __post_init__(self) -> None:
        if self.values.dtype != torch.bool or self.values.ndim != 2 or self.values.shape[1] != len(self.names):
            raise ValueError(
                f"labels are {self.values.dtype} {tuple(self.values.shape)}; pass bool (n, {len(self.names)})"
            )

    @property
    def absent(self) -> tuple[str, ...]:
        """See `Answers.absent`."""
        return tuple(name for name, any_has in zip(self.names, self.values.any(0).tolist(), strict=True) if not any_has)

    @property
    def strata(self) -> Tensor:
        """The number of the rarest label of each example; the number of labels where it has none."""
        counts = self.values.sum(0)
        by_rarity = counts.argsort(stable=True)
        ordered = self.values[:, by_rarity]
        first = ordered.long().argmax(1) if len(self.names) else torch.zeros(len(self), dtype=torch.int64)
        return torch.where(ordered.any(1), by_rarity[first], len(self.names))

    def learn(self, settings: TargetSettings, data: str) -> "LabelTarget":
        """See `Answers.learn`."""
        counts = self.values.sum(0).double()
        if not len(self.names) or bool(((counts == 0) | (counts == len(self))).all()):
            raise ValueError(f"every training example of {data} has the same labels; expected some that differ")
        if len(self.names) == 1:
            raise ValueError(
                f"{data} has one label, {self.names[0]!r}, which an example has or lacks; make it two classes"
            )
        settings.refuse("labels", "take a target of numbers", "quantiles")
        if settings.class_weights == "none":
            return LabelTarget(names=self.names)
        for name, count in zip(self.names, counts.tolist(), strict=True):
            if count in (0, len(self)):
                which = "no training example" if count == 0 else "every training example"
                raise ValueError(
                    f"{which} of {data} has the label {name!r}, which cannot be weighed; leave class_weights out"
                )
        present, absent = (tuple((len(self) / (2 * each)).tolist()) for each in (counts, len(self) - counts))
        return LabelTarget(names=self.names, present=present, absent=absent)


@final
@dataclass(frozen=True, kw_only=True)
class LabelTarget(Target, LogitRegressand):
    """The labels of an example, trained by the mean binary cross-entropy in nats; a model outputs a logit per label.

    Args:
        names: see `Target`.
        present, absent: weights of examples with and without each label, each above 0; (): all are 1.
    """

    present: tuple[float, ...] = ()
    absent: tuple[float, ...] = ()

    kind: ClassVar[Kind] = "labels"
    follows: ClassVar[type[Known]] = LabelAnswers
    has_shares: ClassVar[bool] = True

    @property
    def objectives(self) -> dict[str, Objective]:
        """Metrics and the loss."""
        return OBJECTIVES

    @property
    def shown(self) -> tuple[Objective, ...]:
        """The area under the ROC curve, and the share of examples whose labels are all predicted right."""
        return (OBJECTIVES["auroc"], OBJECTIVES["exact_match"])

    def _check_settings(self, settings: TargetSettings) -> None:
        settings.refuse_other(class_weights="balanced" if self.present else "none", quantiles=())

    @property
    def output_names(self) -> tuple[str, ...]:
        """The label names."""
        return self.names

    def targets(self, values: Tensor) -> Tensor:
        """Returns 1 where an example has a label, else 0; float32."""
        return values.float()

    def columns(self, targets: Tensor) -> Tensor:
        """See `Regressand.columns`; targets are 1 and 0 `(n, L)`."""
        return 2 * targets.double() - 1

    def readout(self, scores: Tensor, targets: Tensor) -> Readout:
        """See `Regressand.readout`, and the module docstring."""
        has = targets > 0.5
        count = has.double().sum(0)
        wanted = torch.where(has, (count + 1) / (count + 2), 1 / (len(has) - count + 2))
        gains = [
            best_factor(lambda a, s=s, t=t: float(((a * s).sigmoid() - t).mul(s).sum()))
            for s, t in zip(scores.T, wanted.T, strict=True)
        ]
        shift = scores.new_tensor([math.log(p / a) for p, a in zip(self.present, self.absent, strict=True)])
        order = torch.arange(len(self.names), device=scores.device)
        return Readout(order, scores.new_tensor(gains), shift if self.present else torch.zeros_like(scores[0]))

    def soft(self, targets: Tensor, smoothing: float) -> Tensor:
        """Returns the targets smoothed towards one half."""
        return (1 - smoothing) * targets + smoothing / 2

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean over labels, `(B,)`; targets are floats `(B, L)` from 0 to 1."""
        if not self.present:
            return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)
        present, absent = outputs.new_tensor(self.present), outputs.new_tensor(self.absent)
        with_it, without = F.logsigmoid(outputs), F.logsigmoid(-outputs)
        return -(present * targets * with_it + absent * (1 - targets) * without).mean(1)

    def metrics(self) -> "dict[str, Metric]":
        """Returns `average_precision` and `auroc`, means over labels; `micro_f1`, `macro_f1`, `exact_match` at 0.5.

        The first two leave out labels that all or no examples of a split have, and `macro_f1` those that no example has
        and that are never predicted. A mean over no labels, and both F1 where no example has a label, is NaN.
        `exact_match` is the share of examples whose labels are all predicted right.
        """
        with importing_metrics():
            from torchmetrics.classification import MultilabelStatScores
            from torchmetrics.metric import CompositionalMetric

            from fredholm.tasks.mean_metrics import Mean

            from .ranking import AreaUnderROC, AveragePrecision
        num_labels = len(self.names)
        return {
            "average_precision": AveragePrecision(),
            "auroc": AreaUnderROC(),
            "micro_f1": CompositionalMetric(_micro_f1, MultilabelStatScores(num_labels, average="none"), None),
            "macro_f1": CompositionalMetric(_macro_f1, MultilabelStatScores(num_labels, average="none"), None),
            "exact_match": Mean(),
        }

    def score(self, outputs: Tensor, targets: Tensor, metrics: "dict[str, Metric]") -> None:
        """Adds outputs `(B, L)`."""
        has, predicted = targets > 0.5, outputs.sigmoid() >= LEAST
        for name, metric in metrics.items():
            if name == "exact_match":
                metric.update((predicted == has).all(-1))
            else:
                # logits rank as probabilities do, but those near 1 round to equal float32 numbers
                metric.update(predicted.long() if name in OF_PREDICTED else outputs, has)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Returns the probability of every label."""
        return outputs.sigmoid()

    @property
    def about_answers(self) -> str:
        """A description of the probabilities."""
        return f"the probability of every label, each by itself; those of at least {LEAST} are predicted"

    def answer(self, outputs: Tensor) -> Answer:
        """Returns the `labels` from a probability of one half on, joined by |, and the probability of every label."""
        probabilities = dict(zip(self.names, self.answers(outputs).tolist(), strict=True))
        predicted = "|".join(name for name, value in probabilities.items() if value >= LEAST)
        return Answer(
            {"labels": predicted, **{f"probability of {name}": value for name, value in probabilities.items()}}, {}
        )


def _micro_f1(counts: Tensor) -> Tensor:
    """Returns the F1 of all labels together, from torchmetrics' counts `(L, 5)`; NaN where no example has a label."""
    right, wrong, _, missed, have = counts.sum(0).double()
    return torch.where(have > 0, 2 * right / (2 * right + wrong + missed), torch.nan)


def _macro_f1(counts: Tensor) -> Tensor:
    """Returns the mean F1 of the labels that occur or are predicted; NaN where no example has a label."""
    right, wrong, _, missed, have = counts.double().T
    occurs = right + wrong + missed > 0
    each = 2 * right[occurs] / (2 * right + wrong + missed)[occurs]
    return torch.where(have.sum() > 0, each.mean(), torch.nan)
