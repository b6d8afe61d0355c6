"""Kernel ridge regression with a learned relevance of each coordinate, in closed form.

Legend
    x (d,)     the coordinates of an example                 Y (n, c)  regression targets, from a `Regressand`
    c_1..c_m   centres: the n training examples, or m drawn of them         Ȳ (c,)   its column means
    w_p (d,)   relevance of coordinates in κ_p, 0 to 1       ℓ_p > 0   length of κ_p
    R (d, d)   diag(w_2), or the turned metric of κ_2 and κ_3
    s          shares of κ_0 to κ_3, whose sum is 1          λ > 0     the penalty
    v          mean of ‖x‖² over the examples of CHOSEN      K_ij = κ(x_i, c_j)

    κ_0(x, y) = ⟨x, y⟩ / v          κ_1(x, y) = exp(-‖w_1 ∘ (x - y)‖_1 / ℓ_1)
                                    κ_2(x, y) = exp(-‖Rᵀ(x - y)‖ / ℓ_2)
    κ_3(x, y) = (1 + r + r²/3) exp(-r),   r = √5 ‖Rᵀ(x - y)‖ / ℓ_3
    κ = s_0 κ_0 + s_1 κ_1 + s_2 κ_2 + s_3 κ_3
    f(x) = Ȳ + Σ_j κ(x, c_j) A_j = Ȳ + ∫ κ(x, y) α(y) dμ(y),   μ the uniform measure on the centres, α = m A
    centres that are all examples:   A = G (Y - Ȳ),  G = (K + λI)⁻¹;   without example i f is  Y_i - E_i / G_ii,
                                     E_i = A_i + (Y_i - Ȳ) Σ_j G_ij / (n - 1),  which leaves i out of Ȳ too
    some of them:   A = B⁻¹ Kᵀ (Y - Ȳ),  B = KᵀK + λ κ(c, c);   without i  Y_i - (Y_i - f_i) / (1 - [K B⁻¹ Kᵀ]_ii)

κ_1 decays along each axis separately, like a decision tree; κ_2 is isotropic. Both have a kink at the centre; κ_3 is
twice differentiable there, and suits smooth functions. Relevances are learned in rounds: w is initially 1, and then
(g / max g)^q, at least _LEAST, with g_k the mean of |∂f/∂x_k|² over the examples, summed over outputs, f the fit of the
round before, and q one of EXPONENTS. The smallest mean square of left-out errors, on at most CHOSEN examples, decides
in turn: the lengths of κ_1 and of κ_2 for w = 1, the round and q of each, their shares, the length of κ_3, its share
(if errors or their squares are significantly smaller), and the share of κ_0.

λ is chosen each time, where a smaller one must lower the errors by a thousandth, and again among three candidates with
all examples. Left-out predictions are exact for given choices and, with fewer centres than examples, a given Ȳ, which
includes the example.

With at most MOST_TURNED coordinates, further rounds turn the metric of κ_2, which finds functions of sums and
differences of coordinates: R = V diag(r), r = (e / max e)^q, at least _LEAST, with e and V the eigenvalues and
eigenvectors of the mean outer product of the gradients of the round before. Such a metric fits noise, which left-out errors do not show, since the
metric has seen the example. So metrics are learned again, in the same rounds, without each of FOLDS parts in turn. R is
turned if the predictions of κ_2 or κ_3 for the parts are then better: if their errors or the squares of these are
significantly smaller, and of classes and labels the losses too. If it is turned and all examples are centres, the
left-out predictions are those for the parts.

With few examples w fits noise in the same way. So with at most FEW examples all choices are repeated without each of
FOLDS parts in turn, with w = 1 and with the learned w. The predictions for the left-out parts decide between the two,
and whether R is turned. If w is learned and all examples are centres, these are the left-out predictions.

Source: recursive feature machines, Radhakrishnan et al. (arXiv 2212.13881), which are kernel ridge regressions by the
Laplace kernel κ_2 whose metric is the average outer product of the gradients. Deviations: its diagonal alone unless all
of it is surely better, over its largest entry; q = 1/2 is their metric, and q = 1/4, its root, is tried too, since it
keeps weakly relevant coordinates; κ_1, κ_0 and Matérn's kernel κ_3 besides κ_2; choices by left-out errors, and no
further rounds once one is no better. Fewer centres are the subset of regressors (Williams and Seeger, 2001).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm._precision import without_autocast
from fredholm._settings import check_count
from fredholm.domains.checks import values_can_be_read
from fredholm.models.fitted.fitted_model import CoordinateModel, Losses, Solution
from fredholm.models.fitted.ridge_head import dealt, is_surely_less, left_out_mean_shift

PENALTIES = torch.logspace(-5, 2, 15, dtype=torch.float64)
"""Candidates of λ, in units of κ(x, x)."""
LENGTHS = (0.6, 2.0, 6.0)
"""Candidates of ℓ_1 and ℓ_2, in units of the median distance."""
SMOOTH_PENALTIES = torch.cat([torch.logspace(-10, -5.5, 10, dtype=torch.float64), PENALTIES])
"""Candidates of λ with κ_3, whose small eigenvalues are far smaller."""
SMOOTH_LENGTHS, SMOOTH = (0.3, 1.0, 3.0, 10.0), (0.5, 0.9, 1.0)
"""Candidates of ℓ_3, in units of the median distance, and of its share, besides 0."""
EXPONENTS = (0.5, 0.25)
ROUNDS = 3
"""Most rounds in which w is learned."""
MOST_TURNED = 256
"""Most coordinates with which the metric of κ_2 may be turned."""
CHOSEN = 1500
"""Default of the most examples on which choices are made."""
FEW, FOLDS = 500, 5
"""Most examples for which cross-validation decides whether w is learned, and its number of folds."""
LINEAR = (0.1, 0.5, 0.9, 1.0)
"""Candidates of the share of κ_0, besides 0."""
REFINED = (1 / 3, 1.0, 3.0)
"""Multiples of λ that are candidates with all examples."""
_BETTER = 0.999
"""A smaller λ, which loses more to rounding, is taken if its error is at most this multiple of a larger one's."""
_LEAST = 1e-3
"""Smallest entry of w, so that no coordinate is lost to later rounds."""
_COORDINATES = 16
"""Coordinates per chunk of a distance in an exported graph."""
_SINGULAR = 1e-13
"""Eigenvalues of κ(c, c), relative to the largest, that count as 0."""
_ROWS = 2048
"""Rows of the kernel computed at a time."""
_SIDES = 2**15
"""Pairs of examples, times coordinates, processed at a time."""
_OUTPUTS = 512
"""Outputs of an example, times penalties, computed at a time."""


@final
class KernelMachine(CoordinateModel):
    """An integral over training examples, fitted by kernel ridge regression.

    Args:
        num_coordinates: d.
        num_outputs: number of outputs, such as classes.
        num_centres: most centres m; further examples are used in the fit, but are no centres.
        num_rounds: most rounds in which w is learned; 0: w is 1, so that coordinates count by their variance.
        num_chosen: most examples on which choices are made, drawn at random; at least 2.

    Attributes:
        dual: float64 `(num_centres, num_outputs)`, A after the regressand's readout; 0 before a fit. A parameter, so
            that gradient steps may continue from the fit.
        bias: `(num_outputs,)`.
        centres: `(num_centres, d)`; unused rows are 0.
        relevance: `(2, d)`, w_1 and w_2; of a turned metric the norms of the rows of R, over the largest.
        metric: `(d, d)`, R; `(0, 0)` with more than MOST_TURNED coordinates, where R is diag(w_2).
        lengths: `(3,)`, ℓ_1 to ℓ_3.
        shares: `(4,)`; κ_2 alone before a fit.
        penalty: λ of the last fit, a float64 scalar; NaN before one.

    Raises:
        ValueError: on sizes below 1.
    """

    centres: Tensor
    relevance: Tensor
    metric: Tensor
    lengths: Tensor
    shares: Tensor
    square: Tensor
    penalty: Tensor

    def __init__(
        self,
        num_coordinates: int,
        num_outputs: int,
        num_centres: int,
        *,
        num_rounds: int = ROUNDS,
        num_chosen: int = CHOSEN,
    ) -> None:
        super().__init__(num_coordinates, num_outputs)
        check_count("models.KernelMachine", "num_centres", num_centres)
        check_count("models.KernelMachine", "num_rounds", num_rounds, least=0)
        check_count("models.KernelMachine", "num_chosen", num_chosen, least=2)
        self.num_rounds, self.num_chosen = num_rounds, num_chosen
        # float64, since a smooth kernel's large terms cancel
        self.dual = nn.Parameter(torch.zeros(num_centres, num_outputs, dtype=torch.float64))
        self.register_buffer("centres", torch.zeros(num_centres, num_coordinates, dtype=torch.float64))
        self.register_buffer("relevance", torch.ones(2, num_coordinates, dtype=torch.float64))
        size = num_coordinates if num_coordinates <= MOST_TURNED else 0
        self.register_buffer("metric", torch.eye(size, dtype=torch.float64))
        self.register_buffer("lengths", torch.ones(3, dtype=torch.float64))
        self.register_buffer("shares", torch.tensor([0.0, 0.0, 1.0, 0.0]))
        self.register_buffer("square", torch.ones((), dtype=torch.float64))
        self.register_buffer("penalty", torch.tensor(torch.nan, dtype=torch.float64))

    def forward(self, coordinates: Tensor) -> Tensor:
        """Maps `(B, d)` to outputs `(B, num_outputs)`, which are all equal before a fit."""
        with without_autocast(coordinates):
            # in float64, since the sum over centres has terms of both signs, which cancel
            coordinates = coordinates.to(self.bias.dtype).double()
            kernel = self.kernel(coordinates, self.centres.double())
            answers = kernel @ self.dual.double() + self.bias.double()
            return answers.to(self.bias.dtype)

    def _solved(self, x: Tensor, wanted: Tensor, groups: Tensor | None, losses: Losses | None) -> Solution:
        offset = wanted.mean(0)
        some = torch.randperm(len(x))[: self.num_chosen].sort().values.to(x.device)
        part = _Part(x[some], (wanted - offset)[some], members_of(groups, some))
        if losses is not None:
            part.losses = lambda answers: losses(answers + offset, some)
        own = None if groups is None else groups[some]
        if self.num_rounds and len(some) <= FEW:
            chosen = _chosen_of_few(part, own, self.num_rounds)
        else:
            chosen = _chosen_of_many(part, own, self.num_rounds)
        for p, each in enumerate(chosen.metrics):
            self.relevance[p].copy_(_relevance(each.weight))
            self.lengths[p] = each.length
        if len(self.metric):
            weight = chosen.metrics[1].weight
            self.metric.copy_(weight if weight.ndim == 2 else weight.diag())
        self.lengths[2] = chosen.smooth.length
        self.square.fill_(part.square)
        self.shares.copy_(torch.tensor(chosen.shares))
        order = torch.randperm(len(x))[: len(self.centres)].sort().values.to(x.device)
        centres = x[order]
        if len(some) == len(order) == len(x):
            found = chosen.fit
        else:
            tried = [multiple * chosen.fit.penalty for multiple in REFINED]
            members = members_of(groups)
            if len(order) == len(x):
                found = self._whole(x, wanted - offset, tried, members)
            else:
                found = self._by_centres(x, centres, wanted - offset, tried, members)
        self.centres.zero_()
        self.centres[: len(centres)] = centres.to(self.centres)
        self.penalty.fill_(found.penalty)
        return Solution(found.dual, offset, offset + found.left_out)

    def _read(self, weights: Tensor) -> None:
        self.dual.zero_()
        self.dual[: len(weights)] = weights.to(self.dual)

    def kernel(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns κ of the last fit between `(B, d)` and `(m, d)`, float64."""
        shares = self.shares.double()
        kernel = shares[0] * (x @ y.T) / self.square.double()
        for p, of in ((1, (_laplace,)), (2, (_laplace, _matern))):
            taken = [k for k in range(len(of)) if not values_can_be_read(x) or shares[p + k] > 0]
            if taken:
                weight = (self.metric if p == 2 and len(self.metric) else self.relevance[p - 1]).to(x.dtype)
                distance = _distance(_scaled(x, weight), _scaled(y, weight), p)
                for k in taken:
                    kernel = kernel + shares[p + k] * of[k](distance, self.lengths[p + k - 1].to(x.dtype))
        return kernel

    def _whole(
        self, x: Tensor, wanted: Tensor, penalties: Sequence[float], members: list[Tensor] | None
    ) -> "KernelFit":
        """The best fit whose centres are all examples."""
        kernel, best = self.kernel(x, x), None
        moved = left_out_mean_shift(wanted, members)
        for penalty in penalties:
            system = kernel.clone()
            system.diagonal().add_(penalty)
            factor = torch.linalg.cholesky(system)
            inverse = torch.cholesky_inverse(factor)
            dual = inverse @ wanted
            without = dual + inverse.sum(1)[:, None] * moved
            if members is None:
                errors = without / inverse.diagonal()[:, None]
            else:
                errors = torch.empty_like(dual)
                for own in members:
                    errors[own] = torch.linalg.solve(inverse[own][:, own], without[own])
            best = _better(best, KernelFit(float(errors.square().mean()), penalty, dual, wanted - errors))
        assert best is not None
        return best

    def _by_centres(
        self, x: Tensor, centres: Tensor, wanted: Tensor, penalties: Sequence[float], members: list[Tensor] | None
    ) -> "KernelFit":
        """The best fit whose centres are some of the examples."""
        values, vectors = torch.linalg.eigh(self.kernel(centres, centres))
        kept = values > _SINGULAR * values[-1]
        # with Φ = K T the penalty λ AᵀκA is that of a ridge regression, which loses no precision in small eigenvalues
        to_features = vectors[:, kept] / values[kept].sqrt()
        gram = to_features.new_zeros(2 * (to_features.shape[1],))
        right = to_features.new_zeros(len(gram), wanted.shape[1])
        for rows, kernel in self._by_rows(x, centres):
            features = kernel @ to_features
            gram.addmm_(features.T, features)
            right.addmm_(features.T, wanted[rows])
        values, vectors = torch.linalg.eigh(gram)
        values, to_features, right = values.clamp_min(0), to_features @ vectors, vectors.T @ right
        left = [torch.empty_like(wanted) for _ in penalties]
        parts = _row_blocks(len(x)) if members is None else members
        for own in parts:
            features = self.kernel(x[own], centres) @ to_features
            for penalty, found in zip(penalties, left, strict=True):
                shrunk = features / (values + penalty)
                errors = wanted[own] - shrunk @ right
                if members is None:
                    found[own] = errors / (1 - (shrunk * features).sum(1)).clamp_min(1e-6)[:, None]
                else:
                    eye = torch.eye(len(features), dtype=features.dtype, device=features.device)
                    found[own] = torch.linalg.solve((1 + 1e-6) * eye - shrunk @ features.T, errors)
        best = None
        for penalty, found in zip(penalties, left, strict=True):
            dual = to_features @ (right / (values + penalty)[:, None])
            best = _better(best, KernelFit(float(found.square().mean()), penalty, dual, wanted - found))
        assert best is not None
        return best

    def _by_rows(self, x: Tensor, centres: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yields K in chunks of rows."""
        for rows in _row_blocks(len(x)):
            yield rows, self.kernel(x[rows], centres)


@final
class KernelFit(NamedTuple):
    """The mean square of the left-out errors, λ, A, and the left-out predictions less Ȳ."""

    error: float
    penalty: float
    dual: Tensor
    left_out: Tensor


def best_fit(kernel: Tensor, wanted: Tensor, members: list[Tensor] | None, penalties: Tensor) -> KernelFit:
    """The fit with all examples as centres and the best of some penalties.

    Args:
        kernel: between the examples, `(n, n)`.
        wanted: Y - Ȳ, `(n, c)`.
        members: groups of examples that are left out together; None: each by itself.
        penalties: λ, ascending.
    """
    return best_fits(kernel, [wanted], members, penalties)[0]


def best_fits(
    kernel: Tensor, parts: Sequence[Tensor], members: list[Tensor] | None, penalties: Tensor
) -> list[KernelFit]:
    """`best_fit` for each of several Y, with one decomposition of the kernel."""
    values, vectors = torch.linalg.eigh(kernel)
    return [_best_of(values.clamp_min(0), vectors, wanted, members, penalties) for wanted in parts]


def _best_of(
    values: Tensor, vectors: Tensor, wanted: Tensor, members: list[Tensor] | None, penalties: Tensor
) -> KernelFit:
    projected, of_one, best = vectors.T @ wanted, vectors.sum(0), None
    moved, square = left_out_mean_shift(wanted, members), vectors.square()
    for some in penalties.flip(0).to(values).split(max(1, _OUTPUTS // wanted.shape[1])):
        shrunk = 1 / (values + some[:, None])
        dual = (vectors @ (shrunk[..., None] * projected).transpose(0, 1).flatten(1)).unflatten(1, (len(some), -1))
        without = dual + (vectors @ (shrunk * of_one).T)[..., None] * moved[:, None]
        if members is None:
            errors = without / (square @ shrunk.T)[..., None]
        else:
            errors = torch.empty_like(dual)
            for own in members:
                inverse = (vectors[own] * shrunk[:, None]) @ vectors[own].T
                errors[own] = torch.linalg.solve(inverse, without[own].transpose(0, 1)).transpose(0, 1)
        for k, error in enumerate(errors.square().mean((0, 2)).tolist()):
            if best is None or error < _BETTER * best.error:
                best = KernelFit(error, float(some[k]), dual[:, k].clone(), wanted - errors[:, k])
    assert best is not None
    return best


@final
class _Round(NamedTuple):
    """A round in which a metric is learned: whether all of it, q, and λ of the fit before."""

    is_turned: bool
    exponent: float
    penalty: float


@final
class _Metric(NamedTuple):
    """Learned parameters of κ_p: w and ℓ, with distances and kernel between the examples, and the fit by κ_p alone.

    A turned metric has R, `(d, d)`, in place of w. `rounds` are those that led to it.
    """

    weight: Tensor
    rounds: "tuple[_Round, ...]"
    length: float
    multiple: float
    """ℓ in units of the median distance."""
    distance: Tensor
    kernel: Tensor
    fit: KernelFit


_Metrics = tuple[_Metric, _Metric]
_Shares = tuple[float, float, float, float]


@final
class _Smooth(NamedTuple):
    """ℓ_3, κ_3 between the examples, and the fit by κ_3 alone."""

    length: float
    multiple: float
    """ℓ_3 in units of the median distance."""
    kernel: Tensor
    fit: KernelFit


@final
class _Choice(NamedTuple):
    """The shares, the parameters of κ_1, κ_2 and κ_3, and the joint fit."""

    shares: _Shares
    metrics: _Metrics
    smooth: _Smooth
    fit: KernelFit


@final
class _Part:
    """Examples on which choices are made: coordinates, centred targets, and groups that are left out together."""

    losses: Callable[[Tensor], Tensor] | None = None
    """Losses `(n,)` of predictions, less the mean, `(n, c)`, beside the squares of errors."""

    def __init__(self, x: Tensor, wanted: Tensor, members: list[Tensor] | None) -> None:
        self.x, self.wanted, self.members = x, wanted, members
        self.square = float(x.square().sum(1).mean()) or 1.0

    def fit(self, kernel: Tensor, penalties: Tensor = PENALTIES) -> KernelFit:
        """The fit with the best of some penalties; with one alone, without left-out predictions."""
        if len(penalties) > 1:
            return best_fit(kernel, self.wanted, self.members, penalties)
        factor = torch.linalg.cholesky(kernel + float(penalties) * torch.eye(len(kernel)).to(kernel))
        # nothing is chosen, so left-out predictions are not needed
        return KernelFit(math.nan, float(penalties), torch.cholesky_solve(self.wanted, factor), self.wanted[:0])

    def is_surely_better(self, one: Tensor, other: Tensor) -> bool:
        """Whether predictions `(n, c)` have significantly smaller errors, or squares of errors, than others."""
        # squares may be dominated by one example, absolute errors by noise, so either test is enough
        smaller, larger = self._errors(one), self._errors(other)
        return is_surely_less(smaller, larger) or is_surely_less(smaller.square(), larger.square())

    def has_surely_less_loss(self, one: Tensor, other: Tensor) -> bool:
        """Whether predictions `(n, c)` have significantly smaller losses than others, or there are no losses."""
        if self.losses is None:
            return True
        return is_surely_less(*(self._by_group(self.losses(answers)) for answers in (one, other)))

    def _errors(self, answers: Tensor) -> Tensor:
        """Errors, root mean squares over outputs, of each example or summed over each group."""
        return self._by_group((self.wanted - answers).square().mean(1).sqrt())

    def _by_group(self, errors: Tensor) -> Tensor:
        return errors if self.members is None else torch.stack([errors[own].sum() for own in self.members])

    def plain(self) -> _Metrics:
        """κ_1 and κ_2 with w = 1 and the best lengths."""
        one = torch.ones_like(self.x[0])
        return self._tried(1, one, LENGTHS), self._tried(2, one, LENGTHS)

    def learnt(self, plain: _Metrics, num_rounds: int = ROUNDS) -> _Metrics:
        """κ_1 and κ_2 with learned w, in rounds that start from w = 1."""
        first, second = (self._sharpened(p, metric, num_rounds) for p, metric in enumerate(plain, start=1))
        return first, second

    def turned(self, metric: _Metric, num_rounds: int = ROUNDS) -> _Metric:
        """κ_2 with a turned metric, in rounds that start from a diagonal one; the same if none is better."""
        if len(metric.weight) > MOST_TURNED or not num_rounds:
            return metric
        first = self._sharpened(2, metric, 1, is_turned=True)
        if first is metric:
            return metric
        return self._sharpened(2, first, num_rounds - 1, (first.rounds[-1].exponent,), is_turned=True)

    def repeated(self, rounds: "Sequence[_Round]", like: _Metric) -> list[_Metric]:
        """κ_2 with w = 1, and its metrics after each of some rounds, with the penalties that these had.

        Args:
            rounds: the rounds.
            like: the metric that they led to, of other examples.
        """
        penalties = torch.tensor([each.penalty for each in rounds] + [like.fit.penalty])[:, None]
        one = torch.ones_like(self.x[0])
        found = [self._tried(2, one, (like.multiple,), (), penalties[0])]
        for each, penalty in zip(rounds, penalties[1:], strict=True):
            steep = self._steep(2, found[-1], each.is_turned)
            found.append(self._next(2, found[-1], steep, each, penalty))
        return found

    def answers_of(self, of: "_Metric | _Smooth", metric: _Metric, x: Tensor) -> Tensor:
        """Predictions for other examples, less the mean, of the fit by κ_2 or κ_3 alone with a metric."""
        distance = _distance(_scaled(x, metric.weight), _scaled(self.x, metric.weight), 2)
        kernel = _laplace(distance, of.length) if isinstance(of, _Metric) else _matern(distance, of.length)
        return kernel @ of.fit.dual

    def joint(self, shares: _Shares, metrics: _Metrics, smooth: _Smooth) -> Tensor:
        """κ between the examples."""
        _, first, second, third = shares
        kernel = first * metrics[0].kernel + second * metrics[1].kernel + third * smooth.kernel
        return kernel + shares[0] * (self.x @ self.x.T) / self.square

    def chosen_like(self, choice: _Choice, metric: _Metric) -> _Choice:
        """The fit with the shares, lengths and penalty of another one, its w_1, and another metric of κ_2."""
        penalty, first = torch.tensor([choice.fit.penalty]), choice.metrics[0]
        metrics = self._tried(1, first.weight, (first.multiple,), first.rounds, penalty), metric
        smooth = self.smooth_like(metric, choice.smooth)
        fit = self.fit(self.joint(choice.shares, metrics, smooth), penalty)
        return _Choice(choice.shares, metrics, smooth, fit)

    def answers(self, choice: _Choice, x: Tensor) -> Tensor:
        """Predictions of a fit for other examples, less the mean."""
        kernel = choice.shares[0] * (x @ self.x.T) / self.square
        for p, metric in enumerate(choice.metrics, start=1):
            if not any(choice.shares[1:2] if p == 1 else choice.shares[2:]):
                continue
            distance = _distance(_scaled(x, metric.weight), _scaled(self.x, metric.weight), p)
            kernel = kernel + choice.shares[p] * _laplace(distance, metric.length)
            if p == 2:
                kernel = kernel + choice.shares[3] * _matern(distance, choice.smooth.length)
        return kernel @ choice.fit.dual

    def smooth(self, metric: _Metric) -> _Smooth:
        """The best κ_3 with the metric of κ_2."""
        return min((self._smooth(metric, multiple, SMOOTH_PENALTIES) for multiple in SMOOTH_LENGTHS), key=_error)

    def smooth_like(self, metric: _Metric, other: _Smooth) -> _Smooth:
        """κ_3 with the metric of κ_2, and the length and penalty of another fit."""
        return self._smooth(metric, other.multiple, torch.tensor([other.fit.penalty]))

    def _smooth(self, metric: _Metric, multiple: float, penalties: Tensor) -> _Smooth:
        length = multiple * metric.length / metric.multiple
        kernel = _matern(metric.distance, length)
        return _Smooth(length, multiple, kernel, self.fit(kernel, penalties))

    def _tried(
        self,
        p: int,
        weight: Tensor,
        lengths: Sequence[float],
        rounds: "tuple[_Round, ...]" = (),
        penalties: Tensor = PENALTIES,
    ) -> _Metric:
        """The best of some lengths, in units of the median distance."""
        distance, unit = _distances(_scaled(self.x, weight), p)
        found = list[_Metric]()
        for multiple in lengths:
            kernel = _laplace(distance, multiple * unit)
            fit = self.fit(kernel, penalties)
            found.append(_Metric(weight, rounds, multiple * unit, multiple, distance, kernel, fit))
        return min(found, key=_error)

    def _sharpened(
        self, p: int, best: _Metric, num_rounds: int, exponents: Sequence[float] = EXPONENTS, *, is_turned: bool = False
    ) -> _Metric:
        """The metric after the best rounds, until one is no better."""
        for _ in range(num_rounds):
            steep = self._steep(p, best, is_turned)
            rounds = [_Round(is_turned, exponent, best.fit.penalty) for exponent in exponents]
            sharper = min((self._next(p, best, steep, each) for each in rounds), key=_error)
            if _error(sharper) >= _error(best):
                break
            best = sharper
        return best

    def _steep(self, p: int, metric: _Metric, is_turned: bool) -> tuple[Tensor, Tensor | None]:
        """g, or e and V."""
        if not is_turned:
            return self._steepness(p, metric), None
        values, vectors = torch.linalg.eigh(self._outer(metric))
        return values.clamp_min(0), vectors

    def _next(
        self,
        p: int,
        metric: _Metric,
        steep: tuple[Tensor, Tensor | None],
        each: "_Round",
        penalties: Tensor = PENALTIES,
    ) -> _Metric:
        """The metric after one more round."""
        values, vectors = steep
        weight, rounds = metric.weight, (*metric.rounds, each)
        if float(values.max()) > 0:
            weight = ((values / values.max()) ** each.exponent).clamp_min(_LEAST)
            weight = weight if vectors is None else vectors * weight
        return self._tried(p, weight, (metric.multiple,), rounds, penalties)

    def _steepness(self, p: int, metric: _Metric) -> Tensor:
        """g at the examples; the slope of κ_p at its kink, the example itself, counts as 0."""
        if p == 2:
            return torch.stack([gradient.square().mean(0) for gradient in self._gradients(metric)]).sum(0)
        slope, found = -metric.kernel / metric.length, list[Tensor]()
        for columns in self.x.T.contiguous().split(max(1, _SIDES // len(self.x) ** 2)):
            sides = (columns[:, :, None] - columns[:, None]).sign_()
            found.append(((slope * sides) @ metric.fit.dual).square().mean(1).sum(1))
        return torch.cat(found) * metric.weight.square()

    def _outer(self, metric: _Metric) -> Tensor:
        """The mean outer product of the gradients of f by κ_2, summed over outputs, `(d, d)`."""
        return torch.stack([gradient.T @ gradient / len(self.x) for gradient in self._gradients(metric)]).sum(0)

    def _gradients(self, metric: _Metric) -> Iterator[Tensor]:
        """Yields the gradients `(n, d)` of each output of f by κ_2 at the examples."""
        slope = torch.where(metric.distance > 0, -metric.kernel / metric.length / metric.distance, 0.0)
        for own in metric.fit.dual.T:
            own = own[:, None]
            gradient = _scaled(slope @ own * self.x - slope @ (own * self.x), metric.weight)
            yield gradient * metric.weight if metric.weight.ndim == 1 else gradient @ metric.weight.T


def _error(of: _Metric | _Smooth | _Choice) -> float:
    return of.fit.error


def _chosen_of_few(part: _Part, groups: Tensor | None, num_rounds: int = ROUNDS) -> _Choice:
    """Chooses between w = 1 and the learned w by cross-validation, in which w is learned without the held-out part.

    If w is learned, the cross-validated predictions become the left-out ones.
    """
    own, folds = dealt(len(part.x), groups, FOLDS, part.x.device), list[_Fold]()
    for k in own.unique():
        offset = part.wanted[own != k].mean(0)
        rest = _Part(part.x[own != k], part.wanted[own != k] - offset, members_of(groups, own != k))
        plain = rest.plain()
        first, second = rest.learnt(plain, num_rounds)
        learnt = [_Learnt(rest, first, each) for each in (second, rest.turned(second, num_rounds))]
        folds.append(_Fold(own == k, offset, rest, plain, learnt))
    alone, answers = torch.zeros_like(part.wanted).repeat(2, 2, 1, 1), torch.zeros_like(part.wanted).repeat(2, 1, 1)
    for fold in folds:
        for each, learnt in zip(alone, fold.learnt, strict=True):
            for one, of in zip(each, (learnt.second, learnt.smooth), strict=True):
                one[fold.held] = fold.offset + fold.rest.answers_of(of, learnt.second, part.x[fold.held])
    is_turned = _is_turned_better(part, alone)
    for fold in folds:
        learnt = fold.learnt[is_turned]
        answers[:, fold.held] = fold.offset + fold.rest.answers(
            _chosen(_Learnt(fold.rest, *fold.plain)), part.x[fold.held]
        )
        if learnt.first is not fold.plain[0] or learnt.second is not fold.plain[1]:
            answers[1, fold.held] = fold.offset + fold.rest.answers(_chosen(learnt), part.x[fold.held])
    errors = (part.wanted - answers).square().mean((1, 2)).tolist()
    if errors[1] >= errors[0]:
        return _chosen(_Learnt(part, *part.plain()))
    first, second = part.learnt(part.plain(), num_rounds)
    found = _chosen(_Learnt(part, first, part.turned(second, num_rounds) if is_turned else second))
    return found._replace(fit=found.fit._replace(error=errors[1], left_out=answers[1]))


@final
class _Learnt:
    """Metrics of κ_1 and κ_2 learned from a part, and the κ_3 that goes with them."""

    def __init__(self, part: _Part, first: _Metric, second: _Metric) -> None:
        self.part, self.first, self.second = part, first, second

    @cached_property
    def smooth(self) -> _Smooth:
        """The best κ_3."""
        return self.part.smooth(self.second)


@final
class _Fold(NamedTuple):
    """Examples that are held out `(n,)`, the mean of Y over the others, the others, and metrics learned from these.

    `learnt` has the diagonal and the turned metric.
    """

    held: Tensor
    offset: Tensor
    rest: _Part
    plain: _Metrics
    learnt: list[_Learnt]


@final
class _Repeated(NamedTuple):
    """Examples that are held out `(n,)`, the mean of Y over the others, the others, and κ_2 as it was learned from all.

    `metrics` are the diagonal and the turned one.
    """

    held: Tensor
    offset: Tensor
    rest: _Part
    metrics: _Metrics


def _chosen_of_many(part: _Part, groups: Tensor | None, num_rounds: int) -> _Choice:
    """Learns w, and turns the metric of κ_2 if predictions for held-out parts are then surely better.

    If it is turned, the left-out predictions are those for the held-out parts, from metrics learned without the part.
    """
    first, second = part.learnt(part.plain(), num_rounds)
    turned = part.turned(second, num_rounds)
    found = [_Learnt(part, first, each) for each in (second, turned)]
    # left-out errors favour the turned metric, which has seen the examples
    if not part.is_surely_better(turned.fit.left_out, second.fit.left_out):
        return _chosen(found[0])
    own, folds = dealt(len(part.x), groups, FOLDS, part.x.device), list[_Repeated]()
    for k in own.unique():
        offset = part.wanted[own != k].mean(0)
        rest = _Part(part.x[own != k], part.wanted[own != k] - offset, members_of(groups, own != k))
        metrics = rest.repeated(turned.rounds, turned)
        folds.append(_Repeated(own == k, offset, rest, (metrics[len(second.rounds)], metrics[-1])))
    answers = torch.zeros_like(part.wanted).repeat(2, 2, 1, 1)
    for fold in folds:
        for each, metric in zip(answers, fold.metrics, strict=True):
            each[0, fold.held] = fold.offset + fold.rest.answers_of(metric, metric, part.x[fold.held])
    straight, other = (part.wanted - answers[:, 0]).square().mean((1, 2)).tolist()
    if other >= straight:
        return _chosen(found[0])
    for fold in folds:
        for each, metric, learnt in zip(answers, fold.metrics, found, strict=True):
            smooth = fold.rest.smooth_like(metric, learnt.smooth)
            each[1, fold.held] = fold.offset + fold.rest.answers_of(smooth, metric, part.x[fold.held])
    if not _is_turned_better(part, answers):
        return _chosen(found[0])
    choice, left_out = _chosen(found[1]), torch.zeros_like(part.wanted)
    for fold in folds:
        own_choice = fold.rest.chosen_like(choice, fold.metrics[1])
        left_out[fold.held] = fold.offset + fold.rest.answers(own_choice, part.x[fold.held])
    error = float((part.wanted - left_out).square().mean())
    return choice._replace(fit=choice.fit._replace(error=error, left_out=left_out))


def _is_turned_better(part: _Part, answers: Tensor) -> bool:
    """Whether predictions `(2, 2, n, c)`, the better ones of κ_2 and κ_3, are surely better with a turned metric."""
    errors = (part.wanted - answers).square().mean((2, 3))
    straight, turned = (of[int(error.argmin())] for of, error in zip(answers, errors, strict=True))
    return part.is_surely_better(turned, straight) and part.has_surely_less_loss(turned, straight)


def _chosen(learnt: _Learnt) -> _Choice:
    """Chooses κ_3 and the shares of all kernels."""
    part, metrics, smooth = learnt.part, (learnt.first, learnt.second), learnt.smooth
    # fits of single kernels exist already
    fits = {
        (0.0, 1.0, 0.0, 0.0): metrics[0].fit,
        (0.0, 0.0, 1.0, 0.0): metrics[1].fit,
        (0.0, 0.0, 0.0, 1.0): smooth.fit,
    }

    def best_of(tried: Iterable[_Shares]) -> _Choice:
        found = list[_Choice]()
        for shares in tried:
            if shares not in fits:
                penalties = SMOOTH_PENALTIES if shares[3] else PENALTIES
                fits[shares] = part.fit(part.joint(shares, metrics, smooth), penalties)
            found.append(_Choice(shares, metrics, smooth, fits[shares]))
        return min(found, key=_error)

    def beside_linear(of: _Choice) -> _Choice:
        _, first, second, third = of.shares
        parts = ((s, (1 - s) * first, (1 - s) * second, (1 - s) * third) for s in LINEAR)
        return min(of, best_of(parts), key=_error)

    kinked = best_of((0.0, first, 1 - first, 0.0) for first in (0.0, 0.5, 1.0))
    _, first, second, _ = kinked.shares
    smoothed = best_of((0.0, (1 - share) * first, (1 - share) * second, share) for share in SMOOTH)
    kinked, smoothed = beside_linear(kinked), beside_linear(smoothed)
    if smoothed.fit.error >= kinked.fit.error:
        return kinked
    return smoothed if part.is_surely_better(smoothed.fit.left_out, kinked.fit.left_out) else kinked


def _scaled(x: Tensor, weight: Tensor) -> Tensor:
    """w ∘ x, or Rᵀ x, of examples."""
    return x * weight if weight.ndim == 1 else x @ weight


def _relevance(weight: Tensor) -> Tensor:
    """w, or the norms of the rows of R over the largest."""
    if weight.ndim == 1:
        return weight
    found = weight.norm(dim=1)
    return found / found.max()


def _row_blocks(count: int) -> list[slice]:
    return [slice(start, min(start + _ROWS, count)) for start in range(0, count, _ROWS)]


def _better(best: KernelFit | None, other: KernelFit) -> KernelFit:
    return other if best is None or other.error < best.error else best


def _laplace(distance: Tensor, length: float | Tensor) -> Tensor:
    """κ_1 or κ_2."""
    return torch.exp(-distance / length)


def _matern(distance: Tensor, length: float | Tensor) -> Tensor:
    """κ_3."""
    r = math.sqrt(5) * distance / length
    return (1 + r + r.square() / 3) * torch.exp(-r)


def _distance(x: Tensor, y: Tensor, p: int) -> Tensor:
    if values_can_be_read(x):
        # matrix products would lose all precision for nearly coincident points
        return torch.cdist(x, y, p=float(p), compute_mode="donot_use_mm_for_euclid_dist")
    total = x.new_zeros(x.shape[0], y.shape[0])  # in operations that can be exported
    for own, other in zip(x.split(_COORDINATES, 1), y.split(_COORDINATES, 1), strict=True):
        total = total + (own[:, None] - other).abs().pow(p).sum(-1)
    return total if p == 1 else total.sqrt()


def _distances(x: Tensor, p: int) -> tuple[Tensor, float]:
    """Pairwise distances `(n, n)`, each computed once, and their median; 1 if all are 0 or there are none."""
    found, pairs = x.new_zeros(len(x), len(x)), torch.pdist(x, float(p))
    found.masked_scatter_(torch.ones_like(found, dtype=torch.bool).triu(1), pairs)
    median = float(pairs.median()) or float(pairs.mean()) or 1.0 if len(pairs) else 1.0
    return found + found.T, median


def members_of(groups: Tensor | None, some: Tensor | None = None) -> list[Tensor] | None:
    """Indices of the members of each group among some examples; None: each is left out by itself."""
    if groups is None:
        return None
    own = groups if some is None else groups[some]
    numbers = own.unique()
    # a random sample may be of one group alone, which would leave out all examples
    return [(own == number).nonzero()[:, 0] for number in numbers] if len(numbers) > 1 else None
