"""Choices of a kernel machine by left-out errors: relevances, the turned metric, lengths, and shares of its kernels.

Legend
    κ_0 to κ_3, w, ℓ, R, s, f     see `kernel_machine.py`
    g (d,)     mean of |∂f/∂x_k|² over the examples, summed over outputs, weighted as all means of errors
    e, V       eigenvalues and eigenvectors of the mean outer product of the gradients of f, summed over outputs
    q          one of EXPONENTS

    a round      w ← (g / max g)^q,  or  R ← V diag((e / max e)^q);   both powers at least _LEAST

κ_1 decays along each axis separately, like a decision tree; κ_2 is isotropic. Both have a kink at the centre; κ_3 is
twice differentiable there, and suits smooth functions. The smallest mean square of left-out errors decides in turn: the
lengths of κ_1 and of κ_2 for w = 1, the round and q of each, with f the fit by that kernel in the round before, their
shares, the length of κ_3, its share (if errors or their squares are significantly smaller), and the share of κ_0. λ is
chosen each time. Errors fall and then rise along lengths, and along shares of κ_0, so longer and larger ones are tried
first, from the middle or from 0, until errors rise.

With FEWEST_TURNED examples and at most MOST_TURNED coordinates, further rounds turn the metric of κ_2 and κ_3, which
finds functions of sums and differences of coordinates. Such a metric fits noise, which left-out errors do not show,
since it has seen the example. So the rounds are repeated without each of FOLDS parts in turn, first for κ_2 alone, then
for all kernels. R is turned if the predictions for the parts are better both times: if their errors or the squares of
these are significantly smaller, and in the end of classes and labels the losses too. They then serve as left-out
predictions.

With few examples w fits noise too. So with at most FEW examples not only the rounds, but all choices are repeated
without each part. Predictions for the parts then also decide between w = 1 and the learned w, and serve as left-out
predictions if w is learned.

Source: recursive feature machines, Radhakrishnan et al. (arXiv 2212.13881), which are kernel ridge regressions by the
Laplace kernel κ_2 whose metric is the average outer product of the gradients. Deviations: its diagonal alone unless all
of it is surely better, over its largest entry; q = 1/2 is their metric, and q = 1/4, its root, is tried too, since it
keeps weakly relevant coordinates; κ_1, κ_0 and Matérn's kernel κ_3 besides κ_2; choices by left-out errors, and no
further rounds once one is no better.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar, final

import torch
from torch import Tensor

from fredholm.domains.checks import values_can_be_read
from fredholm.models.fitted.example_weights import mean_of, mean_of_all, some_of, weighed
from fredholm.models.fitted.kernel_fit import PENALTIES, KernelFit, best_fit, members_of
from fredholm.models.fitted.ridge_head import dealt, is_surely_less

LENGTHS = (0.6, 2.0, 6.0)
"""Candidates of ℓ_1 and ℓ_2, in units of the median distance."""
SMOOTH_PENALTIES = torch.cat([torch.logspace(-10, -5.5, 10, dtype=torch.float64), PENALTIES])
"""Candidates of λ with κ_3, whose small eigenvalues are far smaller."""
SMOOTH_LENGTHS, SMOOTH = (0.3, 1.0, 3.0, 10.0), (0.5, 0.9, 1.0)
"""Candidates of ℓ_3, in units of the median distance, and of its share, besides 0."""
LINEAR = (0.1, 0.5, 0.9, 1.0)
"""Candidates of the share of κ_0, besides 0."""
EXPONENTS = (0.5, 0.25)
FEWEST_TURNED, MOST_TURNED = 50, 256
"""Fewest examples, and most coordinates, with which the metric of κ_2 may be turned."""
FEW, FOLDS = 500, 5
"""Most examples with which all choices are cross-validated, and the number of folds."""
_LEAST = 1e-3
"""Smallest entry of w, so that no coordinate is lost to later rounds."""
_COORDINATES = 16
"""Coordinates per chunk of a distance in an exported graph."""
_SIDES = 2**15
"""Pairs of examples, times coordinates, processed at a time."""


@final
class Round(NamedTuple):
    """A round in which a metric was learned: whether it was turned, q, and λ of the fit before."""

    is_turned: bool
    exponent: float
    penalty: float


@final
class Metric(NamedTuple):
    """Parameters of κ_p: w, or R `(d, d)`, and ℓ, with distances and kernel between the examples, and the fit by it."""

    weight: Tensor
    rounds: tuple[Round, ...]
    """Rounds that led to w or R."""
    length: float
    multiple: float
    """ℓ in units of the median distance."""
    distance: Tensor
    kernel: Tensor
    fit: KernelFit


Metrics = tuple[Metric, Metric]
Shares = tuple[float, float, float, float]


@final
class Smooth(NamedTuple):
    """ℓ_3, κ_3 between the examples, and the fit by κ_3 alone."""

    length: float
    multiple: float
    """ℓ_3 in units of the median distance."""
    kernel: Tensor
    fit: KernelFit


@final
class Choice(NamedTuple):
    """The shares, the parameters of κ_1, κ_2 and κ_3, and the joint fit."""

    shares: Shares
    metrics: Metrics
    smooth: Smooth
    fit: KernelFit


def best_choice(part: "Part", num_rounds: int) -> Choice:
    """Chooses the kernel of a machine by left-out errors.

    Args:
        part: the examples.
        num_rounds: most rounds in which w is learned, and then R; 0: w is 1.
    """
    if not num_rounds:
        return part.choice(part.plain())
    return _choice_of_few(part, num_rounds) if len(part.x) <= FEW else _choice_of_many(part, num_rounds)


def _choice_of_few(part: "Part", num_rounds: int) -> Choice:
    """Decides between w = 1, the learned w and a turned metric by cross-validation of all choices."""
    folds, plain = list(part.folds()), part.plain()
    learnt = part.learnt(plain, num_rounds)
    turned = _turned(part, folds, learnt, num_rounds)
    answers = torch.zeros_like(part.wanted).repeat(3, 1, 1)
    for held, rest in folds:
        own = rest.plain()
        answers[:, held] = rest.answers(rest.choice(own), part.x[held])
        sharper = rest.learnt(own, num_rounds)
        if sharper is not own:
            answers[1:, held] = rest.answers(rest.choice(sharper), part.x[held])
        if turned is not learnt and (other := rest.turned(sharper, num_rounds)) is not sharper:
            answers[2, held] = rest.answers(rest.choice(other), part.x[held])
    is_turned = part.is_turned_better(answers[2], answers[1])
    answer = answers[2 if is_turned else 1]
    if part.error(answer) >= part.error(answers[0]):
        return part.choice(plain)
    return part.with_left_out(part.choice(turned if is_turned else learnt), answer)


def _choice_of_many(part: "Part", num_rounds: int) -> Choice:
    """Decides between the learned w and a turned metric by cross-validation of the rounds."""
    folds, learnt = list(part.folds()), part.learnt(part.plain(), num_rounds)
    choice, turned = part.choice(learnt), _turned(part, folds, learnt, num_rounds)
    if turned is learnt:
        return choice
    choices = choice, part.choice(turned)
    answers = torch.zeros_like(part.wanted).repeat(2, 1, 1)
    for held, rest in folds:
        for each, found in zip(answers, choices, strict=True):
            each[held] = rest.answers(rest.repeated(found), part.x[held])
    if not part.is_turned_better(answers[1], answers[0]):
        return choice
    return part.with_left_out(choices[1], answers[1])


def _turned(part: "Part", folds: "Sequence[tuple[Tensor, Part]]", learnt: Metrics, num_rounds: int) -> Metrics:
    """κ_2 with a turned metric; the same if it alone is not surely better, which saves time where nothing is gained."""
    turned = part.turned(learnt, num_rounds) if len(part.x) >= FEWEST_TURNED else learnt
    if turned is learnt:
        return learnt
    answers = torch.zeros_like(part.wanted).repeat(2, 1, 1)
    for held, rest in folds:
        for each, metrics in zip(answers, (learnt, turned), strict=True):
            each[held] = rest.answers_alone(rest.metric_like(2, metrics[1]), part.x[held])
    return turned if part.is_surely_better(answers[1], answers[0]) else learnt


@final
class Part:
    """Examples on which choices are made.

    Args:
        x: coordinates `(n, d)`.
        wanted: Y less `offset`, the mean of Y, `(n, c)`.
        groups: int64 `(n,)`, groups that are left out together; None: each example by itself.
        offset: `(c,)`, or a number.
        weights: weights of the examples, float64 `(n,)`; None: all are 1. Median distances are not weighted.
        losses: of predictions of Y less the mean, `(n, c)`, the losses `(n,)`; None: the squares of errors.
    """

    def __init__(
        self,
        x: Tensor,
        wanted: Tensor,
        groups: Tensor | None,
        *,
        offset: Tensor | float = 0.0,
        weights: Tensor | None = None,
        losses: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.x, self.wanted, self.offset, self.weights, self.losses = x, wanted, offset, weights, losses
        self.members = members_of(groups)
        self.groups = None if self.members is None else groups
        self.square = float(mean_of(x.square().sum(1), weights)) or 1.0

    def folds(self) -> "Iterator[tuple[Tensor, Part]]":
        """Yields masks `(n,)` of examples that are held out, and the others, whose predictions are less the mean."""
        own = dealt(len(self.x), self.groups, FOLDS, self.x.device)
        for k in own.unique():
            kept = own != k
            weights = some_of(self.weights, kept)
            offset = mean_of(self.wanted[kept], weights)
            groups = None if self.groups is None else self.groups[kept]
            yield ~kept, Part(self.x[kept], self.wanted[kept] - offset, groups, offset=offset, weights=weights)

    def error(self, answers: Tensor) -> float:
        """The mean square of the errors of predictions, less the mean."""
        return float(mean_of_all((self.wanted - answers).square(), self.weights))

    def with_left_out(self, choice: Choice, answers: Tensor) -> Choice:
        """A choice with other left-out predictions, less the mean."""
        return choice._replace(fit=choice.fit._replace(error=self.error(answers), left_out=answers))

    def is_surely_better(self, one: Tensor, other: Tensor) -> bool:
        """Whether predictions `(n, c)` have significantly smaller errors, or squares of errors, than others."""
        # squares may be dominated by one example, absolute errors by noise, so either test is enough
        squares = [(self.wanted - each).square().mean(1) for each in (one, other)]
        return self._is_surely_less(*(each.sqrt() for each in squares)) or self._is_surely_less(*squares)

    def is_turned_better(self, one: Tensor, other: Tensor) -> bool:
        """Whether predictions for held-out parts are surely better, their losses too."""
        if not self.is_surely_better(one, other):
            return False
        losses = self.losses
        return losses is None or self._is_surely_less(losses(one), losses(other))

    def _is_surely_less(self, errors: Tensor, others: Tensor) -> bool:
        return is_surely_less(errors, others, self.groups, self.weights)

    def plain(self) -> Metrics:
        """κ_1 and κ_2 with w = 1 and the best lengths."""
        one = torch.ones_like(self.x[0])
        return self._tried(1, one, LENGTHS), self._tried(2, one, LENGTHS)

    def learnt(self, plain: Metrics, num_rounds: int) -> Metrics:
        """κ_1 and κ_2 with learned w, in rounds that start from w = 1; the same if none is better."""
        first, second = (self._sharpened(p, metric, num_rounds) for p, metric in enumerate(plain, start=1))
        return plain if first is plain[0] and second is plain[1] else (first, second)

    def turned(self, learnt: Metrics, num_rounds: int) -> Metrics:
        """κ_2 with a turned metric, in rounds that start from a diagonal one; the same if none is surely better."""
        first, second = learnt
        if len(second.weight) > MOST_TURNED:
            return learnt
        turned = self._sharpened(2, second, num_rounds, is_turned=True)
        return (first, turned) if self.is_surely_better(turned.fit.left_out, second.fit.left_out) else learnt

    def choice(self, metrics: Metrics) -> Choice:
        """Chooses κ_3 and the shares of all kernels."""
        smooth = _walked(lambda multiple: self._smooth(metrics[1], multiple), SMOOTH_LENGTHS)
        # fits of single kernels exist already
        fits = {
            (0.0, 1.0, 0.0, 0.0): metrics[0].fit,
            (0.0, 0.0, 1.0, 0.0): metrics[1].fit,
            (0.0, 0.0, 0.0, 1.0): smooth.fit,
        }

        def best_of(tried: Iterable[Shares]) -> Choice:
            found = list[Choice]()
            for shares in tried:
                if shares not in fits:
                    penalties = SMOOTH_PENALTIES if shares[3] else PENALTIES
                    fits[shares] = self.fit(self._joint(shares, metrics, smooth), penalties)
                found.append(Choice(shares, metrics, smooth, fits[shares]))
            return min(found, key=_error)

        def beside_linear(of: Choice) -> Choice:
            _, first, second, third = of.shares

            def with_linear(share: float) -> Choice:
                rest = 1 - share
                return best_of([(share, rest * first, rest * second, rest * third)])

            return _walked(with_linear, (0.0, *LINEAR), start=0)

        kinked = best_of((0.0, first, 1 - first, 0.0) for first in (0.0, 0.5, 1.0))
        _, first, second, _ = kinked.shares
        smoothed = best_of((0.0, (1 - share) * first, (1 - share) * second, share) for share in SMOOTH)
        kinked, smoothed = beside_linear(kinked), beside_linear(smoothed)
        if smoothed.fit.error >= kinked.fit.error:
            return kinked
        return smoothed if self.is_surely_better(smoothed.fit.left_out, kinked.fit.left_out) else kinked

    def repeated(self, choice: Choice) -> Choice:
        """The fit with the rounds, lengths, penalties and shares of a choice by other examples."""
        first, second = (self.metric_like(p, metric) for p, metric in enumerate(choice.metrics, start=1))
        length = choice.smooth.multiple * second.length / second.multiple
        kernel = matern(second.distance, length)
        smooth = choice.smooth._replace(length=length, kernel=kernel)
        fit = self._fit_of(self._joint(choice.shares, (first, second), smooth), choice.fit.penalty)
        return Choice(choice.shares, (first, second), smooth, fit)

    def answers(self, choice: Choice, x: Tensor) -> Tensor:
        """Predictions of a fit for other examples, with the offset."""
        kernel = choice.shares[0] * (x @ self.x.T) / self.square
        for p, metric in enumerate(choice.metrics, start=1):
            distance = distances(scaled(x, metric.weight), scaled(self.x, metric.weight), p)
            kernel = kernel + choice.shares[p] * laplace(distance, metric.length)
            if p == 2:
                kernel = kernel + choice.shares[3] * matern(distance, choice.smooth.length)
        return self.offset + kernel @ choice.fit.dual

    def answers_alone(self, metric: Metric, x: Tensor) -> Tensor:
        """Predictions of the fit by κ_2 alone for other examples, with the offset."""
        distance = distances(scaled(x, metric.weight), scaled(self.x, metric.weight), 2)
        return self.offset + laplace(distance, metric.length) @ metric.fit.dual

    def fit(self, kernel: Tensor, penalties: Tensor = PENALTIES) -> KernelFit:
        """The fit with the best of some penalties."""
        return best_fit(kernel, self.wanted, self.members, penalties, self.weights)

    def _fit_of(self, kernel: Tensor, penalty: float) -> KernelFit:
        """The fit with one penalty, far faster than `fit`, since nothing is left out."""
        own = torch.ones_like(kernel[0]) if self.weights is None else 1 / self.weights
        factor = torch.linalg.cholesky(kernel + penalty * own.diag())
        return KernelFit(math.nan, penalty, torch.cholesky_solve(self.wanted, factor), self.wanted[:0])

    def _joint(self, shares: Shares, metrics: Metrics, smooth: Smooth) -> Tensor:
        """κ between the examples."""
        kernel = shares[1] * metrics[0].kernel + shares[2] * metrics[1].kernel + shares[3] * smooth.kernel
        return shares[0] * (self.x @ self.x.T) / self.square + kernel

    def _smooth(self, metric: Metric, multiple: float) -> Smooth:
        """κ_3 with the metric of κ_2."""
        length = multiple * metric.length / metric.multiple
        kernel = matern(metric.distance, length)
        return Smooth(length, multiple, kernel, self.fit(kernel, SMOOTH_PENALTIES))

    def _tried(self, p: int, weight: Tensor, lengths: Sequence[float], rounds: tuple[Round, ...] = ()) -> Metric:
        """The best of some lengths, in units of the median distance."""
        distance, unit = _own_distances(scaled(self.x, weight), p)

        def fitted(multiple: float) -> Metric:
            kernel = laplace(distance, multiple * unit)
            return Metric(weight, rounds, multiple * unit, multiple, distance, kernel, self.fit(kernel))

        return _walked(fitted, lengths)

    def metric_like(self, p: int, like: Metric) -> Metric:
        """The metric after the rounds of another one, which other examples led to."""

        def fitted(weight: Tensor, penalty: float) -> Metric:
            distance, unit = _own_distances(scaled(self.x, weight), p)
            kernel = laplace(distance, like.multiple * unit)
            fit = self._fit_of(kernel, penalty)
            return Metric(weight, like.rounds, like.multiple * unit, like.multiple, distance, kernel, fit)

        weight = torch.ones_like(self.x[0])
        for each in like.rounds:
            weight = self._sharper(p, fitted(weight, each.penalty), (each.exponent,), is_turned=each.is_turned)[0]
        return fitted(weight, like.fit.penalty)

    def _sharpened(self, p: int, best: Metric, num_rounds: int, *, is_turned: bool = False) -> Metric:
        """The metric after the best rounds, until one is no better."""
        for _ in range(num_rounds):
            tried = list[Metric]()
            weights = self._sharper(p, best, EXPONENTS, is_turned=is_turned)
            for exponent, weight in zip(EXPONENTS, weights, strict=True):
                rounds = (*best.rounds, Round(is_turned, exponent, best.fit.penalty))
                tried.append(self._tried(p, weight, (best.multiple,), rounds))
            sharper = min(tried, key=_error)
            if _error(sharper) >= _error(best):
                break
            best = sharper
        return best

    def _sharper(self, p: int, metric: Metric, exponents: Sequence[float], *, is_turned: bool) -> list[Tensor]:
        """The next w, or R, for each of some q."""
        values, vectors = torch.linalg.eigh(self._outer(metric)) if is_turned else (self._steepness(p, metric), None)
        if float(values.max()) <= 0:
            return [metric.weight for _ in exponents]
        weights = [((values / values.max()).clamp_min(0) ** q).clamp_min(_LEAST) for q in exponents]
        return weights if vectors is None else [vectors * each for each in weights]

    def _steepness(self, p: int, metric: Metric) -> Tensor:
        """g; the slope of κ_p at its kink, the example itself, counts as 0."""
        if p == 2:
            squares = (gradient.square() for gradient in self._gradients(metric))
            return torch.stack([mean_of(each, self.weights) for each in squares]).sum(0)
        slope, found = -metric.kernel / metric.length, list[Tensor]()
        for columns in self.x.T.contiguous().split(max(1, _SIDES // len(self.x) ** 2)):
            sides = (columns[:, :, None] - columns[:, None]).sign_()
            squares = ((slope * sides) @ metric.fit.dual).square()
            found.append(mean_of(squares.transpose(0, 1), self.weights).sum(1))
        return torch.cat(found) * metric.weight.square()

    def _outer(self, metric: Metric) -> Tensor:
        """The mean outer product of the gradients of f by κ_2, summed over outputs, `(d, d)`."""
        total = len(self.x) if self.weights is None else self.weights.sum()
        outer = (gradient.T @ weighed(gradient, self.weights) / total for gradient in self._gradients(metric))
        return torch.stack([*outer]).sum(0)

    def _gradients(self, metric: Metric) -> Iterator[Tensor]:
        """Yields the gradients `(n, d)` of each output of f by κ_2 at the examples."""
        slope = torch.where(metric.distance > 0, -metric.kernel / metric.length / metric.distance, 0.0)
        for own in metric.fit.dual.T[..., None]:
            gradient = scaled(slope @ own * self.x - slope @ (own * self.x), metric.weight)
            yield scaled(gradient, metric.weight.mT if metric.weight.ndim == 2 else metric.weight)


_Tried = TypeVar("_Tried", Metric, Smooth, Choice)


def _error(of: Metric | Smooth | Choice) -> float:
    return of.fit.error


def _walked(fitted: Callable[[float], _Tried], candidates: Sequence[float], start: int | None = None) -> _Tried:
    """The best fit on a walk from the middle candidate, or `start`, up or else down, until one is no better."""
    start = (len(candidates) - 1) // 2 if start is None else start
    first = best = fitted(candidates[start])
    for others in (candidates[start + 1 :], candidates[:start][::-1]):
        for each in others if best is first else ():
            tried = fitted(each)
            if _error(tried) >= _error(best):
                break
            best = tried
    return best


def scaled(x: Tensor, weight: Tensor) -> Tensor:
    """w ∘ x, or Rᵀ x, of examples `(n, d)`."""
    return x * weight if weight.ndim == 1 else x @ weight


def laplace(distance: Tensor, length: float | Tensor) -> Tensor:
    """κ_1 or κ_2."""
    return torch.exp(-distance / length)


def matern(distance: Tensor, length: float | Tensor) -> Tensor:
    """κ_3."""
    r = math.sqrt(5) * distance / length
    return (1 + r + r.square() / 3) * torch.exp(-r)


def distances(x: Tensor, y: Tensor, p: int) -> Tensor:
    """Distances `(B, m)`, of the p-norm, of `(B, d)` and `(m, d)`."""
    if values_can_be_read(x):
        # matrix products would lose all precision for nearly coincident points
        return torch.cdist(x, y, p=float(p), compute_mode="donot_use_mm_for_euclid_dist")
    total = x.new_zeros(x.shape[0], y.shape[0])  # in operations that can be exported
    for own, other in zip(x.split(_COORDINATES, 1), y.split(_COORDINATES, 1), strict=True):
        total = total + (own[:, None] - other).abs().pow(p).sum(-1)
    return total if p == 1 else total.sqrt()


def _own_distances(x: Tensor, p: int) -> tuple[Tensor, float]:
    """Pairwise distances `(n, n)`, each computed once, and their median; 1 if all are 0 or there are none."""
    found, pairs = x.new_zeros(len(x), len(x)), torch.pdist(x, float(p))
    found.masked_scatter_(torch.ones_like(found, dtype=torch.bool).triu(1), pairs)
    median = (float(pairs.median()) or float(pairs.mean())) if len(pairs) else 0.0
    return found + found.T, median or 1.0
