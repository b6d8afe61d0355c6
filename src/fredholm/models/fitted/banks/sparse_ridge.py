"""Ridge regression on sparse features, its penalty chosen by cross-validation.

Legend
    X (n, p)   sparse features       Y (n, c)   regression targets       λ > 0   the penalty;   C = I - 1/n
    D (p,)     factor of each feature for a column of Y, 1 or adapted to it
    e_g        mean of Y - Ȳ over the m_g examples that have feature g

    W(λ) = argmin_W ‖(X - X̄) D W - (Y - Ȳ)‖² + λ‖W‖² = D Xᵀ C A,   (C X D² Xᵀ C + λI) A = Y - Ȳ
    scores = Ȳ + γ (X - X̄) D W(λ)
    adapted    D_g ∝ |e_g| m_g / (m_g + EVIDENCE), of the mean square that 1 has, weighted by Σ_i X_ig²

λ minimises the mean square of left-out errors: each part of the examples is predicted by a fit to the others, with its
own D. γ ≥ 0 is the gain that minimises them too: examples with sparse features have little in common, so that
predictions are too close to Ȳ, the more so the fewer there are. The systems are solved by conjugate gradients in
float64, from the largest penalty on, each from the solution of the one before; the search stops after PATIENCE
penalties in a row that are no better.

With weights w of the examples (`example_weights.py`) all means, m_g and sums of squares are weighted, and λI is
λ diag(1/w). The systems are then solved for A / √w.

Source: factors of features that tell how much each says about the target by itself are those of NB-SVM (Wang and
Manning, Baselines and bigrams, 2012). Deviation: shrunk means in place of ratios of logarithms, which numbers have too.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor

from fredholm.models.fitted.example_weights import mean_of_all, weighed

PENALTIES = torch.logspace(1, -3, 9, dtype=torch.float64)
"""Candidates of λ, in multiples of the mean square of the rows of C X."""
PATIENCE = 2
TOLERANCE = 1e-5
"""Relative residual at which conjugate gradients stop."""
MOST_ITERATIONS = 1000
COLUMNS = 64
"""Columns of the systems solved at once."""
MOST_OF_KERNEL = 1024
"""Most examples whose X Xᵀ is computed once: with more, products of the sparse matrices are quicker."""
EVIDENCE = 5.0
"""Number of examples that a feature needs for half of its factor."""
ROUNDING = 1e-12
"""Magnitude up to which values count as rounding errors, where others are of order 1."""


@final
class SparseRidge(NamedTuple):
    """W, the constant of the scores, λ, and the left-out scores of each example."""

    weight: Tensor
    bias: Tensor
    penalty: float
    left_out: Tensor

    def squares(self, wanted: Tensor) -> Tensor:
        """Mean square of the left-out errors of each example."""
        return (wanted - self.left_out).square().mean(1)


def sparse_ridge(
    features: Tensor, wanted: Tensor, part: Tensor, *, num_adapted: int = 0, weights: Tensor | None = None
) -> SparseRidge:
    """Fits sparse features to targets.

    Args:
        features: sparse COO `(n, p)`.
        wanted: `(n, c)`.
        part: int64 `(n,)`, the fold of each example, from 0.
        num_adapted: number of features, the first ones, whose factors are adapted.
        weights: w, float64 `(n,)`; None: all are 1.
    """
    unit = _mean_square(features, weights)
    unit = unit if unit > ROUNDING else 1.0  # 0 if all rows are equal
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
        features, turned = features.to_sparse_csr(), features.t().coalesce().to_sparse_csr()
    kernel = _kernel(features, turned) if len(features) <= MOST_OF_KERNEL and not num_adapted else None
    parts = torch.arange(int(part.max()) + 1, device=part.device)
    together = max(1, COLUMNS // wanted.shape[1])
    counts = [part[:, None] != some for some in parts.split(together)]
    counts.append(torch.ones_like(part, dtype=torch.bool)[:, None])
    mass = torch.ones_like(wanted[:, 0]) if weights is None else weights
    *without, whole = (_Fits(features, turned, wanted, each, mass, num_adapted, kernel) for each in counts)
    # the mean without the own fold: through the mean of all an example would contribute to its own prediction
    without_own = torch.cat([fits.mean for fits in without])[part]
    aim, best, least, worse = wanted - without_own, None, float("inf"), 0
    for penalty in (PENALTIES * unit).tolist():
        scores = torch.cat([fits.scores(penalty) for fits in without], 1)
        centred = scores.take_along_dim(part[:, None, None], 1)[:, 0] - without_own
        square, product = (float(weighed(each, weights).sum()) for each in (centred.square(), centred * aim))
        # a gain computed from rounding errors would amplify them
        gain = max(0.0, product / square) if square > ROUNDING**2 * float(weighed(aim.square(), weights).sum()) else 1.0
        left_out = without_own + gain * centred
        error = float(mean_of_all((wanted - left_out).square(), weights))
        if error < least:
            least, worse, best = error, 0, (penalty, gain, left_out)
        else:
            worse += 1
            if worse == PATIENCE:
                break
    assert best is not None
    penalty, gain, left_out = best
    weight, bias = whole.solved(penalty)
    mean = whole.mean[0]
    return SparseRidge(gain * weight[:, 0], mean + gain * (bias[0] - mean), penalty, left_out)


def _kernel(features: Tensor, turned: Tensor) -> Tensor:
    """X Xᵀ of sparse X and its transpose, `(n, n)`."""
    unit = torch.eye(len(features), dtype=features.dtype, device=features.device)
    return torch.cat([features @ (turned @ some) for some in unit.split(COLUMNS, 1)], 1)


def _mean_square(features: Tensor, weights: Tensor | None) -> float:
    """Mean square of the rows of C X."""
    place, values = features.indices(), features.values()
    mass = torch.ones_like(values) if weights is None else weights[place[0]]
    total = len(features) if weights is None else weights.sum()
    mean = values.new_zeros(features.shape[1]).index_add(0, place[1], mass * values) / total
    return float((mass * values.square()).sum() / total - mean.square().sum())


@final
class _Fits:
    """Several fits, each to a subset of the examples with centred features and targets.

    Args:
        features: features of all examples, sparse CSR `(n, p)`.
        turned: their transpose, in CSR too.
        wanted: `(n, c)`.
        counts: bool `(n, f)`, the examples of each fit.
        weights: w, `(n,)`.
        num_adapted: number of features with adapted factors.
        kernel: X Xᵀ, if none are adapted; None: products are those of the sparse matrices.

    Attributes:
        mean: Ȳ of each fit, `(f, c)`.
    """

    def __init__(
        self,
        features: Tensor,
        turned: Tensor,
        wanted: Tensor,
        counts: Tensor,
        weights: Tensor,
        num_adapted: int,
        kernel: Tensor | None,
    ) -> None:
        self._features, self._turned, self._weights = features, turned, weights
        self._mass = (weights[:, None] * counts)[..., None]
        self._root = self._mass.sqrt()
        self.mean = self._mean_of(wanted[:, None])
        self._errors = self._root * (wanted[:, None] - self.mean)
        self._dual = torch.zeros_like(self._errors)
        self._square = self._squared_factors(num_adapted) if num_adapted else None
        self._kernel = kernel

    def _mean_of(self, values: Tensor) -> Tensor:
        """Mean over the examples of each fit, `(n, f, c)` to `(f, c)`."""
        return (self._mass * values).sum(0) / self._mass.sum(0)

    def _squared_factors(self, num_adapted: int) -> Tensor:
        """D² of each fit, `(p, f, c)`."""
        turned, values = self._turned, self._turned.values()
        places = turned.crow_indices(), turned.col_indices()
        has = torch.sparse_csr_tensor(*places, (values != 0).to(values), turned.shape, check_invariants=False)
        total, often = self._times(has, self._root * self._errors), self._times(has, self._mass)
        square = (total / (often + EVIDENCE)).square()
        feature = torch.arange(len(total), device=values.device).repeat_interleave(places[0].diff())
        squares = self._weights[places[1]] * values.square()
        weight = values.new_zeros(len(total)).index_add(0, feature, squares)[:num_adapted, None, None]
        mean = (weight * square[:num_adapted]).sum(0) / weight.sum()
        square /= torch.where(mean > 0, mean, 1.0)
        square[num_adapted:] = 1
        return square

    def _weighted(self, dual: Tensor) -> Tensor:
        """D² Xᵀ applied to centred values."""
        found = self._times(self._turned, dual)
        return found if self._square is None else found * self._square

    def _times(self, matrix: Tensor, values: Tensor) -> Tensor:
        """Product of a matrix `(m, n)` with `(n, f, c)`, to `(m, f, c)`."""
        return (matrix @ values.flatten(1)).unflatten(1, values.shape[1:])

    def _product(self, dual: Tensor) -> Tensor:
        """X D² Xᵀ applied to centred values."""
        if self._kernel is None:
            return self._times(self._features, self._weighted(dual))
        return self._times(self._kernel, dual)

    def _gram(self, dual: Tensor) -> Tensor:
        """√w C X D² Xᵀ C √w applied to A / √w."""
        found = self._product(self._root * dual)
        return self._root * (found - self._mean_of(found))

    def scores(self, penalty: float) -> Tensor:
        """Solves for the scores of all examples, `(n, f, c)`."""
        self._dual = _conjugate_gradients(lambda a: self._gram(a) + penalty * a, self._errors, self._dual)
        found = self._product(self._root * self._dual)
        return found + self.mean - self._mean_of(found)

    def solved(self, penalty: float) -> tuple[Tensor, Tensor]:
        """Solves for the weights `(p, f, c)` and the constants of the scores `(f, c)`."""
        scores, weight = self.scores(penalty)[0], self._weighted(self._root * self._dual)
        return weight, scores - self._times(self._features, weight)[0]


def _conjugate_gradients(apply: Callable[[Tensor], Tensor], wanted: Tensor, start: Tensor) -> Tensor:
    """Solves a positive definite system for each column of `wanted` `(n, ...)`, from an initial guess."""
    x, left = start.clone(), wanted - apply(start)
    direction, square = left.clone(), left.square().sum(0)
    goal = TOLERANCE**2 * wanted.square().sum(0)
    for _ in range(MOST_ITERATIONS):
        if bool((square <= goal).all()):
            break
        image = apply(direction)
        bend = (direction * image).sum(0)
        step = torch.where(bend > 0, square / bend, 0.0)
        x += step * direction
        left -= step * image
        before, square = square, left.square().sum(0)
        direction = left + torch.where(before > 0, square / before, 0.0) * direction
    return x
