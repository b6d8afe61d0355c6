"""Kernel ridge regression with a learned relevance of each coordinate, in closed form.

Legend
    x (d,)     the coordinates of an example                 Y (n, c)  regression targets, from a `Regressand`
    c_1..c_m   centres: the n training examples, or m drawn of them         Ȳ (c,)   its column means
    w_p (d,)   relevance of coordinates in κ_p, 0 to 1       ℓ_p > 0   length of κ_p
    R (d, d)   diag(w_2), or a turned metric                 s         shares of κ_0 to κ_3, whose sum is 1
    v          mean of ‖x‖² over the examples of CHOSEN      λ > 0     the penalty

    κ_0(x, y) = ⟨x, y⟩ / v          κ_1(x, y) = exp(-‖w_1 ∘ (x - y)‖_1 / ℓ_1)
                                    κ_2(x, y) = exp(-‖Rᵀ(x - y)‖ / ℓ_2)
    κ_3(x, y) = (1 + r + r²/3) exp(-r),   r = √5 ‖Rᵀ(x - y)‖ / ℓ_3
    κ = s_0 κ_0 + s_1 κ_1 + s_2 κ_2 + s_3 κ_3,   K_ij = κ(x_i, c_j)
    f(x) = Ȳ + Σ_j κ(x, c_j) A_j = Ȳ + ∫ κ(x, y) α(y) dμ(y),   μ the uniform measure on the centres, α = m A
    centres that are all examples:   see `kernel_fit.py`
    some of them:   A = B⁻¹ Kᵀ (Y - Ȳ),  B = KᵀK + λ κ(c, c);   without i  Y_i - (Y_i - f_i) / (1 - [K B⁻¹ Kᵀ]_ii)
    with weights w of the examples:   B = Kᵀ diag(w) K + λ κ(c, c), and diag(w) before Y - Ȳ and behind [K B⁻¹ Kᵀ]

On at most CHOSEN examples, w, R, ℓ, s and λ are chosen by left-out errors (`kernel_choice.py`). λ is chosen again among
three candidates with all examples, if these are more or the centres fewer. Left-out predictions are then exact for
given choices and, with fewer centres than examples, a given Ȳ, which includes the example.

Source: see `kernel_choice.py`. Fewer centres are the subset of regressors (Williams and Seeger, 2001).
"""

from collections.abc import Iterator, Sequence
from typing import final

import torch
from torch import Tensor, nn

from fredholm._precision import without_autocast
from fredholm._settings import check_count
from fredholm.domains.checks import values_can_be_read
from fredholm.models.fitted.example_weights import mean_of, mean_of_all, some_of, weighed
from fredholm.models.fitted.fitted_model import CoordinateModel, Solution
from fredholm.models.fitted.kernel_choice import MOST_TURNED, Part, best_choice, distances, laplace, matern, scaled
from fredholm.models.fitted.kernel_fit import KernelFit, better, members_of
from fredholm.models.fitted.ridge_head import Losses, left_out_mean_shift

ROUNDS = 3
"""Most rounds in which w is learned, and then R."""
CHOSEN = 1500
"""Default of the most examples on which choices are made."""
REFINED = (1 / 3, 1.0, 3.0)
"""Multiples of λ that are candidates with all examples."""
_SINGULAR = 1e-13
"""Eigenvalues of κ(c, c), relative to the largest, that count as 0."""
_ROWS = 2048
"""Rows of the kernel computed at a time."""


@final
class KernelMachine(CoordinateModel):
    """An integral over training examples, fitted by kernel ridge regression.

    Args:
        num_coordinates: d.
        num_outputs: number of outputs, such as classes.
        num_centres: most centres m; further examples are used in the fit, but are no centres.
        num_rounds: most rounds in which w is learned, and then R; 0: w is 1, coordinates count by their variance.
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

    def _solved(
        self, x: Tensor, wanted: Tensor, groups: Tensor | None, weights: Tensor | None, losses: Losses | None
    ) -> Solution:
        offset = mean_of(wanted, weights)
        some = torch.randperm(len(x))[: self.num_chosen].sort().values.to(x.device)
        part = Part(
            x[some],
            (wanted - offset)[some],
            None if groups is None else groups[some],
            weights=some_of(weights, some),
            losses=None if losses is None else lambda answers: losses(answers + offset, some),
        )
        chosen = best_choice(part, self.num_rounds)
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
                found = self._whole(x, wanted - offset, tried, members, weights)
            else:
                found = self._by_centres(x, centres, wanted - offset, tried, members, weights)
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
        for p, of in ((1, (laplace,)), (2, (laplace, matern))):
            taken = [k for k in range(len(of)) if not values_can_be_read(x) or shares[p + k] > 0]
            if taken:
                weight = (self.metric if p == 2 and len(self.metric) else self.relevance[p - 1]).to(x.dtype)
                distance = distances(scaled(x, weight), scaled(y, weight), p)
                for k in taken:
                    kernel = kernel + shares[p + k] * of[k](distance, self.lengths[p + k - 1].to(x.dtype))
        return kernel

    def _whole(
        self,
        x: Tensor,
        wanted: Tensor,
        penalties: Sequence[float],
        members: list[Tensor] | None,
        weights: Tensor | None,
    ) -> KernelFit:
        """The best fit whose centres are all examples."""
        kernel, best = self.kernel(x, x), None
        moved = left_out_mean_shift(wanted, members, weights)
        for penalty in penalties:
            system = kernel.clone()
            system.diagonal().add_(penalty if weights is None else penalty / weights)
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
            error = float(mean_of_all(errors.square(), weights))
            best = better(best, KernelFit(error, penalty, dual, wanted - errors))
        assert best is not None
        return best

    def _by_centres(
        self,
        x: Tensor,
        centres: Tensor,
        wanted: Tensor,
        penalties: Sequence[float],
        members: list[Tensor] | None,
        weights: Tensor | None,
    ) -> KernelFit:
        """The best fit whose centres are some of the examples."""
        values, vectors = torch.linalg.eigh(self.kernel(centres, centres))
        kept = values > _SINGULAR * values[-1]
        # with Φ = K T the penalty λ AᵀκA is that of a ridge regression, which loses no precision in small eigenvalues
        to_features = vectors[:, kept] / values[kept].sqrt()
        gram = to_features.new_zeros(2 * (to_features.shape[1],))
        right = to_features.new_zeros(len(gram), wanted.shape[1])
        for rows, kernel in self._by_rows(x, centres):
            features = kernel @ to_features
            own = weighed(features, None if weights is None else weights[rows])
            gram.addmm_(own.T, features)
            right.addmm_(own.T, wanted[rows])
        values, vectors = torch.linalg.eigh(gram)
        values, to_features, right = values.clamp_min(0), to_features @ vectors, vectors.T @ right
        left = [torch.empty_like(wanted) for _ in penalties]
        parts = _row_blocks(len(x)) if members is None else members
        for own in parts:
            features = self.kernel(x[own], centres) @ to_features
            for penalty, found in zip(penalties, left, strict=True):
                shrunk = features / (values + penalty)
                errors = wanted[own] - shrunk @ right
                behind = weighed(features, None if weights is None else weights[own])
                if members is None:
                    found[own] = errors / (1 - (shrunk * behind).sum(1)).clamp_min(1e-6)[:, None]
                else:
                    eye = torch.eye(len(features), dtype=features.dtype, device=features.device)
                    found[own] = torch.linalg.solve((1 + 1e-6) * eye - shrunk @ behind.T, errors)
        best = None
        for penalty, found in zip(penalties, left, strict=True):
            dual = to_features @ (right / (values + penalty)[:, None])
            error = float(mean_of_all(found.square(), weights))
            best = better(best, KernelFit(error, penalty, dual, wanted - found))
        assert best is not None
        return best

    def _by_rows(self, x: Tensor, centres: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yields K in chunks of rows."""
        for rows in _row_blocks(len(x)):
            yield rows, self.kernel(x[rows], centres)


def _relevance(weight: Tensor) -> Tensor:
    """w, or the norms of the rows of R over the largest."""
    if weight.ndim == 1:
        return weight
    found = weight.norm(dim=1)
    return found / found.max()


def _row_blocks(count: int) -> list[slice]:
    return [slice(start, min(start + _ROWS, count)) for start in range(0, count, _ROWS)]
