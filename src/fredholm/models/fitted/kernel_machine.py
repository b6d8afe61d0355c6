"""A sum over training examples by a kernel that learns which coordinates matter, and how much, in closed form.

Legend
    x (d,)     the coordinates of an example                 Y (n, c)  what is fitted, as a `Regressand` says
    c_1..c_m   centres: the n training examples, or m drawn of them         Ȳ (c,)   its column means
    w_p (d,)   how much a coordinate counts to κ_p, 0 to 1   ℓ_p > 0   length of κ_p
    s          shares of κ_0, κ_1 and κ_2, whose sum is 1    λ > 0     the penalty
    v          mean of ‖x‖² over the examples of CHOSEN      K_ij = κ(x_i, c_j)

    κ_0(x, y) = ⟨x, y⟩ / v          κ_p(x, y) = exp(-‖w_p ∘ (x - y)‖_p / ℓ_p)   for p = 1, 2
    κ = s_0 κ_0 + s_1 κ_1 + s_2 κ_2
    f(x) = Ȳ + Σ_j κ(x, c_j) A_j = Ȳ + ∫ κ(x, y) α(y) dμ(y),   μ the even measure on the centres, α = m A
    centres that are all examples:   A = G (Y - Ȳ),  G = (K + λI)⁻¹;   without example i f is  Y_i - E_i / G_ii,
                                     E_i = A_i + (Y_i - Ȳ) Σ_j G_ij / (n - 1),  by which Ȳ knows nothing of i either
    some of them:   A = B⁻¹ Kᵀ (Y - Ȳ),  B = KᵀK + λ κ(c, c);   without i  Y_i - (Y_i - f_i) / (1 - [K B⁻¹ Kᵀ]_ii)

κ_1 falls along each axis by itself, as a tree of decisions does; κ_2 along all directions alike. How much coordinates
count is learnt in rounds: w is 1 at first, and then (g / max g)^q, at least _LEAST, with g_k the mean of |∂f/∂x_k|²
over the examples, summed over outputs, f the fit of the round before, and q one of EXPONENTS. By the smallest mean
square of left-out errors, on at most CHOSEN examples, are chosen: the length of each kernel where w is 1, the round and
q of each, how κ_1 and κ_2 share, the share of κ_0, and each time λ. With all examples λ is chosen anew among three.
Left-out answers are exact for what was chosen so and, of some centres, for Ȳ, which the example has a part in. Of few
examples w learns noise too, which such errors, of a w that has seen the example, do not tell: of at most FEW all is
chosen without each of FOLDS parts in turn, with w = 1 and with the learnt w; by what is then told of the part one of
these is taken, and if w was learnt and all are centres, that is what is said of an example left out.

Source: recursive feature machines, Radhakrishnan et al. (arXiv 2212.13881), which are kernel ridge regressions by the
Laplace kernel κ_2 whose metric is the average outer product of the gradients. Deviations: its diagonal alone, so that
coordinates keep their meaning, over its largest entry; q = 1/2 is their metric, and q = 1/4, the root of that, is tried
too, since it keeps what helps a little; κ_1 and κ_0 beside κ_2; choices by leaving examples out, and no further rounds
once one is no better. Fewer centres are the subset of regressors (Williams and Seeger, 2001); their system has 1e-10 of
its mean diagonal added.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm._precision import at_least_float32, without_autocast
from fredholm._settings import check_count
from fredholm.domains.checks import values_can_be_read
from fredholm.models.fitted.fitted_model import CoordinateModel, Solution
from fredholm.models.fitted.ridge_head import dealt, fall_of_mean

PENALTIES = torch.logspace(-5, 2, 15, dtype=torch.float64)
"""Values of λ that are tried, in units of κ(x, x)."""
LENGTHS = (0.6, 2.0, 6.0)
"""Values of ℓ that are tried, in units of the median distance."""
EXPONENTS = (0.5, 0.25)
ROUNDS = 3
"""Times that w is learnt, at most."""
CHOSEN = 1500
"""Examples by which all is chosen, at most."""
FEW, FOLDS = 500, 5
"""Examples up to which is asked whether w is worth learning, and the parts in which they are then left out."""
LINEAR = (0.1, 0.5, 0.9, 1.0)
"""Shares of κ_0 that are tried beside 0."""
REFINED = (1 / 3, 1.0, 3.0)
"""Multiples of λ that are tried with all examples."""
_LEAST = 1e-3
"""Of w, so that no coordinate is lost to later rounds."""
_COORDINATES = 16
"""That are compared at a time in an exported graph."""
_ROWS = 2048
"""Examples whose kernel is computed at a time."""


@final
class KernelMachine(CoordinateModel):
    """Outputs that are an integral over training examples, fitted by kernel ridge regression.

    Args:
        num_coordinates: d.
        num_outputs: such as classes.
        num_centres: m, at most; examples beyond it are learnt from, but are no centres.

    Attributes:
        dual: `(num_centres, num_outputs)`, A with what the regressand's readout does to it; 0 before a fit. A
            parameter, so that gradient steps may go on from the fit.
        bias: `(num_outputs,)`.
        centres: `(num_centres, d)`, 0 where there are fewer.
        relevance: `(2, d)`, w_1 and w_2.
        shares: `(3,)`; κ_2 alone before a fit.
        penalty: λ of the last fit, a float64 scalar; NaN before one.

    Raises:
        ValueError: on sizes below 1.
    """

    centres: Tensor
    relevance: Tensor
    lengths: Tensor
    shares: Tensor
    square: Tensor
    penalty: Tensor

    def __init__(self, num_coordinates: int, num_outputs: int, num_centres: int) -> None:
        super().__init__(num_coordinates, num_outputs)
        check_count("models.KernelMachine", "num_centres", num_centres)
        self.dual = nn.Parameter(torch.zeros(num_centres, num_outputs))
        self.register_buffer("centres", torch.zeros(num_centres, num_coordinates))
        self.register_buffer("relevance", torch.ones(2, num_coordinates))
        self.register_buffer("lengths", torch.ones(2))
        self.register_buffer("shares", torch.tensor([0.0, 0.0, 1.0]))
        self.register_buffer("square", torch.ones(()))
        self.register_buffer("penalty", torch.tensor(torch.nan, dtype=torch.float64))

    def forward(self, coordinates: Tensor) -> Tensor:
        """`(B, d)` to outputs `(B, num_outputs)`, all equal before a fit."""
        with without_autocast(coordinates):
            # in float64, since the sum over centres has terms of both signs, which cancel
            coordinates = coordinates.to(at_least_float32(self.centres).dtype).double()
            kernel = self._kernel(coordinates, self.centres.double())
            told = kernel @ self.dual.double() + self.bias.double()
            return told.to(at_least_float32(self.dual).dtype)

    def _laplace(self, p: int, x: Tensor, y: Tensor) -> Tensor:
        """κ_p of `(B, d)` and `(m, d)`."""
        weight = self.relevance[p - 1].to(x.dtype)
        return torch.exp(-_distance(x * weight, y * weight, p) / self.lengths[p - 1].to(x.dtype))

    def _solved(self, x: Tensor, wanted: Tensor, groups: Tensor | None) -> Solution:
        offset = wanted.mean(0)
        some = torch.randperm(len(x))[:CHOSEN].sort().values.to(x.device)
        part = _Part(x[some], (wanted - offset)[some], _members(groups, some))
        own = None if groups is None else groups[some]
        chosen = _chosen(part) if len(some) > FEW else _chosen_of_few(part, own)
        for p, each in enumerate(chosen.metrics):
            self.relevance[p].copy_(each.weight)
            self.lengths[p] = each.length
        self.square.fill_(part.square)
        self.shares.copy_(torch.tensor(chosen.shares))
        order = torch.randperm(len(x))[: len(self.centres)].sort().values.to(x.device)
        centres = x[order]
        if len(some) == len(order) == len(x):
            found = chosen.fit
        else:
            tried = [multiple * chosen.fit.penalty for multiple in REFINED]
            members = _members(groups, None)
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

    def _kernel(self, x: Tensor, y: Tensor) -> Tensor:
        """κ of `(B, d)` and `(m, d)`, float64."""
        shares = self.shares.double()
        kernel = shares[0] * (x @ y.T) / self.square.double()
        for p in (1, 2):
            if not values_can_be_read(x) or shares[p] > 0:
                kernel = kernel + shares[p] * self._laplace(p, x, y)
        return kernel

    def _whole(self, x: Tensor, wanted: Tensor, penalties: Sequence[float], members: list[Tensor] | None) -> "_Fit":
        """The best fit whose centres are all examples."""
        kernel, best = self._kernel(x, x), None
        moved = fall_of_mean(wanted, members)
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
            best = _better(best, _Fit(float(errors.square().mean()), penalty, dual, wanted - errors))
        assert best is not None
        return best

    def _by_centres(
        self, x: Tensor, centres: Tensor, wanted: Tensor, penalties: Sequence[float], members: list[Tensor] | None
    ) -> "_Fit":
        """The best fit whose centres are some of the examples."""
        between, best = self._kernel(centres, centres), None
        gram, right = torch.zeros_like(between), torch.zeros_like(wanted[: len(centres)])
        for rows, kernel in self._by_rows(x, centres):
            gram.addmm_(kernel.T, kernel)
            right.addmm_(kernel.T, wanted[rows])
        for penalty in penalties:
            system = gram + penalty * between
            system.diagonal().add_(1e-10 * float(system.diagonal().mean()))
            factor = torch.linalg.cholesky(system)
            dual = torch.cholesky_solve(right, factor)
            fitted, leverage = torch.empty_like(wanted), wanted.new_empty(len(wanted))
            for rows, kernel in self._by_rows(x, centres):
                fitted[rows] = kernel @ dual
                if members is None:
                    half = torch.linalg.solve_triangular(factor, kernel.T, upper=False)
                    leverage[rows] = half.square().sum(0)
            if members is None:
                left = (wanted - fitted) / (1 - leverage).clamp_min(1e-6)[:, None]
            else:
                left = torch.empty_like(wanted)
                for own in members:
                    half = torch.linalg.solve_triangular(factor, self._kernel(x[own], centres).T, upper=False)
                    eye = torch.eye(len(own), dtype=half.dtype, device=half.device)
                    left[own] = torch.linalg.solve((1 + 1e-6) * eye - half.T @ half, (wanted - fitted)[own])
            best = _better(best, _Fit(float(left.square().mean()), penalty, dual, wanted - left))
        assert best is not None
        return best

    def _by_rows(self, x: Tensor, centres: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """K, some rows at a time."""
        for start in range(0, len(x), _ROWS):
            rows = slice(start, min(start + _ROWS, len(x)))
            yield rows, self._kernel(x[rows], centres)


@final
class _Fit(NamedTuple):
    """The mean square of the left-out errors, λ, A, and what is said of each example left out, Ȳ taken off."""

    error: float
    penalty: float
    dual: Tensor
    left_out: Tensor


@final
class _Metric(NamedTuple):
    """What a κ_p has learnt: w, ℓ, the kernel between the examples, and the error of the fit by it alone."""

    weight: Tensor
    length: float
    multiple: float
    """ℓ in units of the median distance."""
    kernel: Tensor
    error: float


@final
class _Choice(NamedTuple):
    """The shares, what κ_1 and κ_2 have learnt, and the fit by all three."""

    shares: tuple[float, float, float]
    metrics: tuple[_Metric, _Metric]
    fit: _Fit


@final
class _Part:
    """The examples by which is chosen: coordinates, what is fitted less its mean, and who is left out with whom."""

    def __init__(self, x: Tensor, wanted: Tensor, members: list[Tensor] | None) -> None:
        self.x, self.wanted, self.members = x, wanted, members
        self.square = float(x.square().sum(1).mean()) or 1.0

    def fit(self, kernel: Tensor) -> _Fit:
        """The best of all penalties."""
        values, vectors = torch.linalg.eigh(kernel)
        projected, of_one, best = vectors.T @ self.wanted, vectors.sum(0), None
        moved = fall_of_mean(self.wanted, self.members)
        for penalty in PENALTIES.tolist():
            shrunk = 1 / (values.clamp_min(0) + penalty)
            dual = vectors @ (shrunk[:, None] * projected)
            without = dual + (vectors @ (shrunk * of_one))[:, None] * moved
            if self.members is None:
                errors = without / (vectors.square() @ shrunk)[:, None]
            else:
                errors = torch.empty_like(dual)
                for own in self.members:
                    inverse = (vectors[own] * shrunk) @ vectors[own].T
                    errors[own] = torch.linalg.solve(inverse, without[own])
            best = _better(best, _Fit(float(errors.square().mean()), penalty, dual, self.wanted - errors))
        assert best is not None
        return best

    def learnt(self, p: int, rounds: int = ROUNDS) -> _Metric:
        """w and ℓ of κ_p."""
        weight, best = torch.ones_like(self.x[0]), None
        lengths: Sequence[float] = LENGTHS
        for _ in range(rounds + 1):
            found = [self._tried(p, each, lengths) for each in ([weight] if best is None else self._sharper(p, best))]
            before, (metric, fit) = best, min(found, key=lambda each: each[0].error)
            if before is not None and metric.error >= before[0].error:
                break
            best = (metric, fit)
            lengths = (metric.multiple,)
        assert best is not None
        return best[0]

    def told(self, choice: _Choice, x: Tensor) -> Tensor:
        """What a fit to these examples tells of others, the mean taken off."""
        kernel = choice.shares[0] * (x @ self.x.T) / self.square
        for p, metric in enumerate(choice.metrics, start=1):
            distance = _distance(x * metric.weight, self.x * metric.weight, p)
            kernel = kernel + choice.shares[p] * torch.exp(-distance / metric.length)
        return kernel @ choice.fit.dual

    def _tried(self, p: int, weight: Tensor, lengths: Sequence[float]) -> tuple[_Metric, _Fit]:
        """The best of some lengths, in units of the median distance."""
        distance, best = _distance(self.x * weight, self.x * weight, p), None
        unit = _median(distance)
        for multiple in lengths:
            kernel = torch.exp(-distance / (multiple * unit))
            fit = self.fit(kernel)
            if best is None or fit.error < best[1].error:
                best = _Metric(weight, multiple * unit, multiple, kernel, fit.error), fit
        assert best is not None
        return best

    def _sharper(self, p: int, of: tuple[_Metric, _Fit]) -> list[Tensor]:
        """The next w, by how steep f is along each coordinate."""
        steep = self._steepness(p, *of)
        if float(steep.max()) == 0:
            return [of[0].weight]
        return [((steep / steep.max()) ** exponent).clamp_min(_LEAST) for exponent in EXPONENTS]

    def _steepness(self, p: int, metric: _Metric, fit: _Fit) -> Tensor:
        """g, of f at the examples; where κ_p has a kink, at the example itself, it has no slope."""
        x, weight = self.x, metric.weight
        slope = -metric.kernel / metric.length
        if p == 1:
            return torch.stack(
                [
                    ((slope * weight[k] * (x[:, k, None] - x[:, k]).sign()) @ fit.dual).square().mean(0).sum()
                    for k in range(x.shape[1])
                ]
            )
        distance = _distance(x * weight, x * weight, 2)
        slope = torch.where(distance > 0, slope / distance, 0.0)
        found = torch.zeros_like(weight)
        for dual in fit.dual.T:
            pull = slope * dual
            gradient = (pull.sum(1)[:, None] * x - pull @ x) * weight.square()
            found += gradient.square().mean(0)
        return found


def _chosen_of_few(part: _Part, groups: Tensor | None) -> _Choice:
    """The choice with w = 1 or the learnt w, by what is told of parts of the examples of which w has learnt nothing.

    Its left-out errors are these, where w is learnt.
    """
    own, told = dealt(len(part.x), groups, FOLDS, part.x.device), torch.zeros_like(part.wanted).repeat(2, 1, 1)
    for k in own.unique():
        offset = part.wanted[own != k].mean(0)
        rest = _Part(part.x[own != k], part.wanted[own != k] - offset, _members(groups, own != k))
        for each, rounds in zip(told, (0, ROUNDS), strict=True):
            each[own == k] = offset + rest.told(_chosen(rest, rounds), part.x[own == k])
    errors = (part.wanted - told).square().mean((1, 2)).tolist()
    if errors[1] >= errors[0]:
        return _chosen(part, rounds=0)
    found = _chosen(part)
    return found._replace(fit=found.fit._replace(error=errors[1], left_out=told[1]))


def _chosen(part: _Part, rounds: int = ROUNDS) -> _Choice:
    """The metrics of κ_1 and κ_2, learnt in so many rounds at most, and the shares of all three kernels."""
    metrics = (part.learnt(1, rounds), part.learnt(2, rounds))
    linear = (part.x @ part.x.T) / part.square
    best: _Choice | None = None

    def tried(shares: tuple[float, float, float]) -> None:
        nonlocal best
        kernel = shares[0] * linear + shares[1] * metrics[0].kernel + shares[2] * metrics[1].kernel
        choice = _Choice(shares, metrics, part.fit(kernel))
        if best is None or choice.fit.error < best.fit.error:
            best = choice

    for first in (0.0, 0.5, 1.0):
        tried((0.0, first, 1 - first))
    assert best is not None
    _, first, second = best.shares
    for share in LINEAR:
        tried((share, (1 - share) * first, (1 - share) * second))
    return best


def _better(best: _Fit | None, other: _Fit) -> _Fit:
    return other if best is None or other.error < best.error else best


def _distance(x: Tensor, y: Tensor, p: int) -> Tensor:
    if values_can_be_read(x):
        # by products of matrices, points that nearly coincide would lose all digits
        return torch.cdist(x, y, p=float(p), compute_mode="donot_use_mm_for_euclid_dist")
    total = x.new_zeros(x.shape[0], y.shape[0])  # in the operations that any graph holds
    for own, other in zip(x.split(_COORDINATES, 1), y.split(_COORDINATES, 1), strict=True):
        total = total + (own[:, None] - other).abs().pow(p).sum(-1)
    return total if p == 1 else total.sqrt()


def _median(distance: Tensor) -> float:
    """Of the distances of different examples; 1 where all coincide, or there is one alone."""
    found = distance[~torch.eye(len(distance), dtype=torch.bool, device=distance.device)]
    if not len(found):
        return 1.0
    return float(found.median()) or float(found.mean()) or 1.0


def _members(groups: Tensor | None, some: Tensor | None) -> list[Tensor] | None:
    """The places of each group among some examples; None: each is left out by itself."""
    if groups is None:
        return None
    own = groups if some is None else groups[some]
    numbers = own.unique()
    # of a draw they may be one group alone, of which all would be left out
    return [(own == number).nonzero()[:, 0] for number in numbers] if len(numbers) > 1 else None
