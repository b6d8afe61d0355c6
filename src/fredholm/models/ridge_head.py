"""A linear head in closed form: ridge regression on classes, its penalty chosen by leaving each example out.

Legend
    F (n, p)   features          μ, σ (p,)  their means and deviations       X = (F - μ) / σ, 0 where σ is
    Y (n, c)   1 at an example's class, -1 elsewhere       ȳ  its column means       λ > 0  the penalty
    h (n,)     leverage, h_i = 1/n + [X (XᵀX + λI)⁻¹ Xᵀ]_ii

    W(λ) = argmin_W ‖X W - (Y - ȳ)‖² + λ‖W‖² = (XᵀX + λI)⁻¹ Xᵀ (Y - ȳ) = Xᵀ (XXᵀ + λI)⁻¹ (Y - ȳ)
    what is said of example i by a fit without it:  Y_i - (Y_i - ŷ_i) / (1 - h_i)
    λ is the one with the smallest mean square of these errors; logits = a (ȳ + X W(λ))

Source: Hoerl and Kennard, Ridge regression (1970); Allen's PRESS statistic (1974) for the errors. The intercept is not
penalised. Exact for fixed μ and σ, which are not computed anew without each example. All is computed in float64, by
one eigendecomposition of whichever of XᵀX and XXᵀ is smaller, for all λ.

The factor a > 0 makes probabilities of scores: it is the one under which the left-out scores have the smallest
cross-entropy. As in Platt's scaling (1999) an example's own class counts (m + 1) / (m + 2), with m examples of it, and
the others share the rest, so that a is finite where no left-out score is wrong.
"""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._settings import check_count

PENALTIES = torch.logspace(-6, 3, 28, dtype=torch.float64)
"""Values of λ that are tried, in multiples of the mean of the n eigenvalues of XXᵀ."""

_BLOCK = 4096
"""Features that are standardised at a time."""


@final
class RidgeHead(nn.Module):
    """Logits that are a linear function of features, fitted by ridge regression.

    Args:
        num_features: p.
        num_outputs: c, classes.

    Attributes:
        weight: `(num_outputs, num_features)`, of the features themselves: standardisation and a are part of it; 0
            before a fit. A parameter, so that gradient steps may go on from the fit.
        bias: `(num_outputs,)`.
        penalty: λ of the last fit, a float64 scalar; NaN before one.

    Raises:
        ValueError: on sizes below 1.
    """

    penalty: Tensor

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        check_count("models.RidgeHead", "num_features", num_features)
        check_count("models.RidgeHead", "num_outputs", num_outputs)
        self.weight = nn.Parameter(torch.zeros(num_outputs, num_features))
        self.bias = nn.Parameter(torch.zeros(num_outputs))
        self.register_buffer("penalty", torch.tensor(torch.nan, dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        """`(..., num_features)` to logits `(..., num_outputs)`."""
        return F.linear(features, self.weight, self.bias)

    @torch.no_grad()
    def fit(self, features: Tensor, labels: Tensor) -> Tensor:
        """Sets weight and bias.

        Args:
            features: `(n, num_features)`, any float dtype; n at least 1.
            labels: int64 `(n,)`, each in `0 .. num_outputs - 1`.

        Returns:
            The logits of each example by the fit without it, float64 `(n, num_outputs)`.

        Raises:
            ValueError: shapes that do not agree, no example, a label out of range, features that are NaN or infinite.
        """
        self._check(features, labels)
        n, p = features.shape
        classes = self.weight.shape[0]
        mean, scale = _moments(features)
        targets = 2 * F.one_hot(labels, classes).double() - 1
        offset = targets.mean(0)
        if n <= p:
            spectrum = _dual(features, mean, scale, targets - offset)
        else:
            spectrum = _primal(features, mean, scale, targets - offset)
        penalty, left_out = _best(spectrum, targets)
        weight = spectrum.solve(penalty)  # of the standardised features; (n, c) in the dual form
        if n <= p:
            weight = torch.cat([_standard(features, mean, scale, s).T @ weight for s in _blocks(p)])
        weight = weight * torch.where(scale > 0, 1 / scale, 0.0)[:, None]
        gain = _gain(left_out, labels)
        self.weight.copy_(gain * weight.T)
        self.bias.copy_(gain * (offset - mean @ weight))
        self.penalty.fill_(penalty)
        return gain * left_out

    def _check(self, features: Tensor, labels: Tensor) -> None:
        classes, p = self.weight.shape
        if features.ndim != 2 or features.shape[1] != p or not len(features) or labels.shape != (len(features),):
            raise ValueError(
                f"models.RidgeHead: expected features (n, {p}) and labels (n,) with n at least 1; got "
                f"{tuple(features.shape)} and {tuple(labels.shape)}"
            )
        if not bool(((labels >= 0) & (labels < classes)).all()):
            raise ValueError(
                f"models.RidgeHead: labels run from {int(labels.min())} to {int(labels.max())}; expected 0 to "
                f"{classes - 1}"
            )
        if not bool(features.isfinite().all()):
            raise ValueError("models.RidgeHead: features hold NaN or infinite numbers")


@final
class _Spectrum:
    """What a decomposition tells of the fits for all penalties.

    Args:
        values: eigenvalues `(m,)` of XXᵀ (dual, m = n) or XᵀX (primal, m = p), at least 0.
        vectors: the orthonormal eigenvectors `(m, m)`.
        projected: the eigenvectors' parts of the right-hand side `(m, c)`.
        rows: `(n, m)`, X on the eigenvectors; in the dual form the eigenvectors times their eigenvalues.
        leverages: `(n, m)`, each eigenvector's part of h, before its division by the eigenvalue plus λ.
    """

    def __init__(self, values: Tensor, vectors: Tensor, projected: Tensor, rows: Tensor, leverages: Tensor) -> None:
        self.values, self.vectors, self.projected, self.rows = values, vectors, projected, rows
        self._leverages = leverages
        self.unit = float(values.sum()) / len(rows) or 1.0

    def solve(self, penalty: float) -> Tensor:
        """(A + λI)⁻¹ applied to the right-hand side, `(m, c)`."""
        return self.vectors @ (self.projected / (self.values + penalty)[:, None])

    def fitted(self, penalty: float) -> Tensor:
        """X W(λ), `(n, c)`."""
        return self.rows @ (self.projected / (self.values + penalty)[:, None])

    def leverages(self, penalty: float) -> Tensor:
        """h without its 1/n, `(n,)`."""
        return self._leverages @ (1 / (self.values + penalty))


def _dual(features: Tensor, mean: Tensor, scale: Tensor, targets: Tensor) -> _Spectrum:
    gram = targets.new_zeros(len(features), len(features))
    for part in _blocks(features.shape[1]):
        block = _standard(features, mean, scale, part)
        gram.addmm_(block, block.T)
    values, vectors = torch.linalg.eigh(gram)
    values = values.clamp_min(0)
    rows = vectors * values
    return _Spectrum(values, vectors, vectors.T @ targets, rows, vectors * rows)


def _primal(features: Tensor, mean: Tensor, scale: Tensor, targets: Tensor) -> _Spectrum:
    block = _standard(features, mean, scale, slice(None))
    values, vectors = torch.linalg.eigh(block.T @ block)
    rows = block @ vectors
    return _Spectrum(values.clamp_min(0), vectors, rows.T @ targets, rows, rows.square())


def _best(spectrum: _Spectrum, targets: Tensor) -> tuple[float, Tensor]:
    """The penalty with the smallest mean square of the left-out errors, and what is then said of each example."""
    offset, n = targets.mean(0), len(targets)
    best: tuple[float, float, Tensor] | None = None
    for multiple in PENALTIES.tolist():
        penalty = multiple * spectrum.unit
        # 1 - h is at least λ / (λ + the largest eigenvalue), but for the rounding that it is held above
        kept = (1 - 1 / n - spectrum.leverages(penalty)).clamp_min(1e-12)
        errors = (targets - offset - spectrum.fitted(penalty)) / kept[:, None]
        found = float(errors.square().mean())
        if best is None or found < best[0]:
            best = found, penalty, targets - errors
    assert best is not None
    return best[1:]


def _gain(scores: Tensor, labels: Tensor, halvings: int = 60) -> float:
    """a: the factor of the scores `(n, c)` with the smallest cross-entropy against smoothed labels.

    The cross-entropy is convex in a, so that its slope changes sign once: bisection of log a.
    """
    classes = scores.shape[1]
    counts = labels.bincount(minlength=classes)[labels].double()[:, None]
    wanted = torch.where(F.one_hot(labels, classes).bool(), counts + 1, 1 / max(classes - 1, 1)) / (counts + 2)
    low, high = -3.0, 6.0
    for _ in range(halvings):
        middle = (low + high) / 2
        slope = ((scores * 10**middle).softmax(-1) - wanted).mul(scores).sum()
        low, high = (middle, high) if slope < 0 else (low, middle)
    return 10 ** ((low + high) / 2)


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each feature in float64; 0 for one that varies by rounding alone."""
    mean = features.mean(0, dtype=torch.float64)
    scale = torch.cat(
        [(features[:, part].double() - mean[part]).square().mean(0).sqrt() for part in _blocks(features.shape[1])]
    )
    rounding = 10 * torch.finfo(features.dtype).eps * features.abs().amax(0).double()
    return mean, torch.where(scale > rounding, scale, 0.0)


def _standard(features: Tensor, mean: Tensor, scale: Tensor, part: slice) -> Tensor:
    centred = features[:, part].double() - mean[part]
    return centred * torch.where(scale[part] > 0, 1 / scale[part], 0.0)


def _blocks(p: int) -> list[slice]:
    return [slice(start, start + _BLOCK) for start in range(0, p, _BLOCK)]
