"""Targets that are numbers.

Legend
    T, μ, σ     numbers an example has, their means and deviations over the training split;  z = (y - μ) / σ
    τ_q         quantiles that are predicted, Q of them
    ρ_τ(e)      max(τ e, (τ - 1) e), the quantile loss of an error e = z - ẑ        (Koenker and Bassett, 1978)

Predicted quantiles are sorted before use, which never increases the loss (Chernozhukov et al., 2010), so that a higher
quantile is never below a lower one. Training is on unsorted outputs.

In closed form (`models.RidgeHead`) z is fitted by squared error, which gives the mean. A quantile is this plus the
quantile of the left-out errors z_i - ẑ_i: the spread round the prediction is then the same for all examples (the
jackknife; for its coverage see Barber et al., Predictive inference with the jackknife+, 2021). The quantile τ of n
errors is at place τ (n + 1) of the sorted errors, linear between two, and constant beyond the first and the last.
"""

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from fredholm.models.fitted.example_weights import mean_of
from fredholm.models.fitted.ridge_head import Readout
from fredholm.tasks.files.cells import FINITE, LARGEST
from fredholm.tasks.objective import Objective
from fredholm.tasks.optional_packages import importing_metrics

from .target import Answer, Answers, Kind, Known, Target, TargetSettings

if TYPE_CHECKING:
    from torchmetrics import Metric

OBJECTIVES = {
    "mean_absolute_error": Objective(metric="mean_absolute_error", maximise=False),
    "root_mean_squared_error": Objective(metric="root_mean_squared_error", maximise=False),
    "r2": Objective(metric="r2", needs="true numbers that differ"),
    "pearson": Objective(metric="pearson", needs="true numbers that differ"),
    "spearman": Objective(metric="spearman", needs="true numbers that differ"),
    "loss": Objective(metric="loss", maximise=False),
}


def check_quantiles(levels: tuple[float, ...]) -> None:
    """Raises a ValueError unless the levels increase, above 0 and below 1."""
    if not all(lower < upper for lower, upper in itertools.pairwise((0.0, *levels, 1.0))):
        raise ValueError(f"quantiles are {levels}; expected numbers above 0 and below 1, increasing")


@final
@dataclass(frozen=True, kw_only=True)
class NumberAnswers(Answers):
    """Numbers: `values` float64 `(n, len(names))`, finite.

    Raises:
        ValueError: values of another type or shape, or that are no numbers.
    """

    kind: ClassVar[Kind] = "number"

    def __post_init__(self) -> None:
        if self.values.dtype != torch.float64 or self.values.ndim != 2 or self.values.shape[1] != len(self.names):
            raise ValueError(
                f"numbers are {self.values.dtype} {tuple(self.values.shape)}; pass float64 (n, {len(self.names)})"
            )
        for i, t in (~(self.values.abs() <= LARGEST)).nonzero()[:1].tolist():
            raise ValueError(f"example {i}: {self.names[t]} is {float(self.values[i, t])}; expected {FINITE}")

    @property
    def strata(self) -> Tensor:
        """Constant, since numbers have no strata."""
        return torch.zeros(len(self), dtype=torch.int64)

    def learn(self, settings: TargetSettings, data: str, weights: Tensor | None = None) -> "NumberTarget":
        """See `Known.learn`."""
        settings.refuse("numbers", "take a target of classes or labels", "class_weights")
        levels = settings.quantiles
        check_quantiles(levels)
        mean = mean_of(self.values, weights)
        deviation = mean_of((self.values - mean).square(), weights).sqrt()
        are_alike = (self.values == self.values[:1]).all(0)
        for name, centre, is_one in zip(self.names, mean.tolist(), are_alike.tolist(), strict=True):
            if is_one:
                raise ValueError(
                    f"all training values of {name!r} of {data} are {centre:g}; expected at least 2 of them"
                )
        for name, spread in zip(self.names, deviation.tolist(), strict=True):
            if not spread > 0:
                raise ValueError(
                    f"training values of {name!r} of {data} differ by less than can be computed with; use another unit"
                )
        return NumberTarget(
            names=self.names,
            mean=tuple(mean.tolist()),
            deviation=tuple(deviation.tolist()),
            quantiles=levels,
        )


@final
@dataclass(frozen=True, kw_only=True)
class NumberTarget(Target):
    """Numbers of an example, trained by the squared error of standardised numbers, or by the quantile loss.

    Outputs are z of each number, or each of its quantiles, `(B, T Q)`, the quantiles of a number side by side.

    Args:
        names: see `Target`.
        mean, deviation: μ and σ of each number.
        quantiles: τ; (): the mean is predicted.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    quantiles: tuple[float, ...] = ()

    kind: ClassVar[Kind] = "number"
    follows: ClassVar[type[Known]] = NumberAnswers
    has_shares: ClassVar[bool] = False
    has_numbers: ClassVar[bool] = True

    @property
    def objectives(self) -> dict[str, Objective]:
        """Metrics and the loss; for several numbers the one that is independent of units comes first."""
        if len(self.names) == 1:
            return OBJECTIVES
        return {name: OBJECTIVES[name] for name in ("r2", "mean_absolute_error", "root_mean_squared_error", "loss")}

    @property
    def shown(self) -> tuple[Objective, ...]:
        """Errors in the unit of the data, and the explained share of the variance."""
        return tuple(OBJECTIVES[name] for name in ("mean_absolute_error", "root_mean_squared_error", "r2"))

    def _check_settings(self, settings: TargetSettings) -> None:
        settings.refuse_other(class_weights="none", quantiles=self.quantiles)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The numbers, or their quantiles, such as `height at 0.1`."""
        return tuple(f"{name} at {level:g}" for name in self.names for level in self.quantiles) or self.names

    def targets(self, values: Tensor) -> Tensor:
        """Returns z, float32 `(B, T)`."""
        mean, deviation = values.new_tensor(self.mean), values.new_tensor(self.deviation)
        return ((values - mean) / deviation).float()

    def columns(self, targets: Tensor) -> Tensor:
        """See `Regressand.columns`: z."""
        return targets.double()

    def readout(self, scores: Tensor, targets: Tensor, weights: Tensor | None = None) -> Readout:
        """See `Regressand.readout`, and the module docstring."""
        order = torch.arange(len(self.names), device=scores.device)
        order = order.repeat_interleave(max(len(self.quantiles), 1))
        shift = scores.new_zeros(len(order))
        if self.quantiles:
            shift = _quantiles_of(targets.double() - scores, self.quantiles, weights).flatten()
        return Readout(order, torch.ones_like(shift), shift)

    def soft(self, targets: Tensor, smoothing: float) -> Tensor:
        """Returns z; raises a ValueError for `smoothing` above 0, since a number has no shares."""
        if smoothing:
            raise ValueError(f"smoothing is {smoothing}; numbers cannot be smoothed: leave it at 0")
        return targets

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean over numbers and quantiles, `(B,)`."""
        if not self.quantiles:
            return (outputs - targets).square().mean(1)
        levels = outputs.new_tensor(self.quantiles)
        errors = targets[..., None] - outputs.unflatten(-1, (len(self.names), -1))
        return torch.maximum(levels * errors, (levels - 1) * errors).mean((1, 2))

    def metrics(self) -> "dict[str, Metric]":
        """Returns `mean_absolute_error` and `root_mean_squared_error` in the unit of the data, and `r2`.

        They are means over numbers; the root is that of the mean over all examples and numbers. For a single number
        also `pearson` and `spearman`. With quantiles the one nearest to one half is the prediction, and `coverage` is
        the share of numbers between the lowest quantile and the highest.
        """
        with importing_metrics():
            from fredholm.tasks.mean_metrics import Mean, RootMean

            from .agreement import R2, Pearson, Spearman
        return {
            "mean_absolute_error": Mean(),
            "root_mean_squared_error": RootMean(),
            "r2": R2(len(self.names)),
            **({"pearson": Pearson(), "spearman": Spearman()} if len(self.names) == 1 else {}),
            **({"coverage": Mean()} if len(self.quantiles) > 1 else {}),
        }

    def score(
        self, outputs: Tensor, targets: Tensor, metrics: "dict[str, Metric]", weights: Tensor | None = None
    ) -> None:
        """Adds outputs `(B, T Q)`."""
        predicted, true = self.levels_of(outputs), self._unstandardised(targets)
        number = self.number_of(predicted)
        metrics["mean_absolute_error"].update((number - true).abs().mean(1), weights)
        metrics["root_mean_squared_error"].update((number - true).square().mean(1), weights)
        metrics["r2"].update(number, true, weights)
        if len(self.names) == 1:
            metrics["pearson"].update(number[:, 0], true[:, 0], weights)
            metrics["spearman"].update(number[:, 0], true[:, 0], weights)
        if len(self.quantiles) > 1:
            is_covered = (predicted[..., 0] <= true) & (true <= predicted[..., -1])
            metrics["coverage"].update(is_covered.double().mean(1), weights)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Returns the numbers in data units; with quantiles that nearest to one half, or the mean of two as near."""
        return self.number_of(self.levels_of(outputs))

    @property
    def answer_names(self) -> tuple[str, ...]:
        """The names of the numbers; with quantiles also of each quantile."""
        return (*self.names, *self.output_names) if self.quantiles else self.names

    def answers(self, outputs: Tensor) -> Tensor:
        """See `Target.answers`: every number, and every quantile where they are predicted."""
        levels = self.levels_of(outputs)
        number = self.number_of(levels)
        return torch.cat([number, levels.flatten(-2)], dim=-1) if self.quantiles else number

    @property
    def about_answers(self) -> str:
        """A description of the numbers and their quantiles."""
        return "every number in the unit of the data" + ("; then their quantiles" if self.quantiles else "")

    def answer(self, outputs: Tensor) -> Answer:
        """Returns every number by name, and every predicted quantile, such as `height at 0.1`."""
        return Answer(dict(zip(self.answer_names, self.answers(outputs).tolist(), strict=True)), {})

    def levels_of(self, outputs: Tensor) -> Tensor:
        """Returns float64 `(..., T, Q)` in the unit of the data, ascending; Q is 1 where the mean is predicted."""
        return self._unstandardised(outputs.unflatten(-1, (len(self.names), -1)).sort(-1).values.mT).mT

    def _unstandardised(self, numbers: Tensor) -> Tensor:
        """Returns the numbers in the unit of the data, in float64, since float32 may not resolve their deviations."""
        numbers = numbers.double()
        return numbers * numbers.new_tensor(self.deviation) + numbers.new_tensor(self.mean)

    def number_of(self, predicted: Tensor) -> Tensor:
        """Returns the prediction of each number, `(..., T)`, from `(..., T, Q)`."""
        distances = [abs(level - 0.5) for level in self.quantiles or (0.5,)]
        nearest = [q for q, distance in enumerate(distances) if distance <= min(distances) + 1e-9]
        return predicted[..., nearest].mean(-1)


def _quantiles_of(errors: Tensor, levels: tuple[float, ...], weights: Tensor | None) -> Tensor:
    """Returns the quantiles of each column of errors `(n, T)`, `(T, Q)`."""
    if weights is not None:
        return torch.stack([_weighted_quantiles(column, levels, weights) for column in errors.T])
    ordered, n = errors.sort(0).values, len(errors)
    place = (errors.new_tensor(levels) * (n + 1) - 1).clamp(0, n - 1)
    below = place.long().clamp(max=max(n - 2, 0))
    above = (below + 1).clamp(max=n - 1)
    return torch.lerp(ordered[below], ordered[above], (place - below)[:, None]).T


def _weighted_quantiles(errors: Tensor, levels: tuple[float, ...], weights: Tensor) -> Tensor:
    """Returns the quantiles of errors `(n,)`, `(Q,)`: an error of weight w holds w places among the sorted ones."""
    ordered, order = errors.sort()
    ends = weights[order].cumsum(0)
    # below a weight of 1 the first place would be behind the last one: both are the middle
    short = (1 - weights[order]).clamp_min(0) / 2
    places = torch.stack([ends - weights[order] + 1 - short, ends + short], 1).flatten()
    values = ordered.repeat_interleave(2)
    place = (errors.new_tensor(levels) * (ends[-1] + 1)).clamp(places[0], places[-1])
    above = torch.searchsorted(places, place).clamp(1, len(places) - 1)
    width = places[above] - places[above - 1]
    share = (place - places[above - 1]) / torch.where(width > 0, width, 1.0)
    return torch.lerp(values[above - 1], values[above], share)
