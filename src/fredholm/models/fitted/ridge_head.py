"""A linear head in closed form: ridge regression, its penalty chosen by leaving each example out.

Legend
    F (n, p)   features          μ, σ (p,)  their means and deviations       X = (F - μ) / σ, 0 where σ is
    Y (n, c)   what is fitted, as a `Regressand` says        ȳ  its column means       λ > 0  the penalty
    H (n, n)   the hat matrix, 1/n + X (XᵀX + λI)⁻¹ Xᵀ;  h_i = H_ii the leverage of example i

    W(λ) = argmin_W ‖X W - (Y - ȳ)‖² + λ‖W‖² = (XᵀX + λI)⁻¹ Xᵀ (Y - ȳ) = Xᵀ (XXᵀ + λI)⁻¹ (Y - ȳ)
    what is said of example i by a fit without it:         Y_i - (Y_i - ŷ_i) / (1 - h_i)
    of the examples of a group g by a fit without them:    Y_g - (I - H_gg)⁻¹ (Y_g - ŷ_g)
    λ is the one with the smallest mean square of these errors; scores = ȳ + X W(λ)
    output k = a_k score_{m(k)} + b_k, where m, a and b follow from the left-out scores, as the regressand says

With two blocks of features, X = [√(1 - s) X_1 / √t_1, √s X_2 / √t_2], where t is the mean of the eigenvalues of a
block's XᵢXᵢᵀ, and s is chosen in SHARES with λ: 0 and 1 leave one block out.

Source: Hoerl and Kennard, Ridge regression (1970); Allen's PRESS statistic (1974) for the errors. The intercept is not
penalised. A penalty a block, chosen by left-out errors, is banded ridge regression (Nunez-Elizalde et al., 2019).
Exact for fixed μ, σ and t, which are not computed anew without each example. All is computed in float64, by one
eigendecomposition of whichever of XᵀX and XXᵀ is smaller, for all λ.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._settings import check_count
from fredholm.models.saved_model import SavedModel

PENALTIES = torch.logspace(-6, 3, 28, dtype=torch.float64)
"""Values of λ that are tried, in multiples of the mean of the n eigenvalues of XXᵀ."""
SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)
"""Values of s that are tried."""

_BLOCK = 4096
"""Features, or examples, that are standardised at a time."""


@final
class Readout(NamedTuple):
    """How outputs are read from scores: output k is `gain[k] * scores[column[k]] + shift[k]`.

    Args:
        column: int64 `(num_outputs,)`.
        gain, shift: float64 `(num_outputs,)`.
    """

    column: Tensor
    gain: Tensor
    shift: Tensor

    def __call__(self, scores: Tensor) -> Tensor:
        """Scores `(..., c)` to outputs `(..., num_outputs)`."""
        return self.gain * scores[..., self.column] + self.shift


class Regressand(ABC):
    """What a regression fits, and how outputs are read from what it says."""

    @abstractmethod
    def columns(self, targets: Tensor) -> Tensor:
        """Y, float64 `(n, c)`, of n targets as losses take them.

        Raises:
            ValueError: they are none of this kind.
        """

    @abstractmethod
    def readout(self, scores: Tensor, targets: Tensor) -> Readout:
        """What turns scores into outputs, by those of examples that were left out.

        Args:
            scores: float64 `(n, c)`.
            targets: of the same examples.
        """


@final
class RidgeHead(SavedModel):
    """Outputs that are a linear function of features, fitted by ridge regression.

    Args:
        num_features: p.
        num_outputs: such as classes.
        num_last: of the features, how many at their end are a block of their own, weighed against the others; 0: none.

    Attributes:
        weight: `(num_outputs, num_features)`, of the features themselves: standardisation and a are part of it; 0
            before a fit. A parameter, so that gradient steps may go on from the fit.
        bias: `(num_outputs,)`.
        penalty: λ of the last fit, a float64 scalar; NaN before one.
        share: s of the last fit, a float64 scalar, of the last block; NaN before one; 0 without one.
        error: the mean square of the left-out errors of the last fit, a float64 scalar; NaN before one, and not saved.

    Raises:
        ValueError: on sizes below 1, or more last features than there are.
    """

    penalty: Tensor
    share: Tensor
    error: Tensor

    def __init__(self, num_features: int, num_outputs: int, *, num_last: int = 0) -> None:
        super().__init__()
        check_count("models.RidgeHead", "num_features", num_features)
        check_count("models.RidgeHead", "num_outputs", num_outputs)
        check_count("models.RidgeHead", "num_last", num_last, 0)
        if num_last > num_features:
            raise ValueError(f"models.RidgeHead: num_last is {num_last}, of {num_features} features")
        self.weight = nn.Parameter(torch.zeros(num_outputs, num_features))
        self.bias = nn.Parameter(torch.zeros(num_outputs))
        self.num_last = num_last
        for name in ("penalty", "share", "error"):  # the error is of the fit alone, and not saved
            self.register_buffer(name, torch.tensor(torch.nan, dtype=torch.float64), persistent=name != "error")

    def forward(self, features: Tensor) -> Tensor:
        """`(..., num_features)` to outputs `(..., num_outputs)`."""
        return F.linear(features, self.weight, self.bias)

    @torch.no_grad()
    def fit(
        self,
        features: Tensor,
        targets: Tensor,
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        shares: Sequence[float] = SHARES,
    ) -> Tensor:
        """Sets weight and bias.

        Args:
            features: `(n, num_features)`, any float dtype; n at least 1.
            targets: `(n, ...)`, as the regressand takes them.
            regressand: what they are.
            groups: int64 `(n,)`, whose examples are left out together, since they are alike in what others are not,
                such as the windows of one time; at least two groups. None: each example by itself.
            shares: values of s that are tried, from 0 to 1; there is nothing to try where one block alone varies.

        Returns:
            The outputs of each example by the fit without it and its group, float64 `(n, num_outputs)`.

        Raises:
            ValueError: shapes that do not agree, no example, one group alone, features that are NaN or infinite, and
                what the regressand refuses.
        """
        self._check(features, targets, groups)
        n, p = features.shape
        mean, scale = _moments(features)
        wanted = regressand.columns(targets)
        offset = wanted.mean(0)
        blocks = self._blocks_that_vary(scale)
        grams = [_gram(features, mean, scale, block) for block in blocks] if n <= p else None
        best: _Fit | None = None
        for share, weights in _shares([int(scale[block].count_nonzero()) for block in blocks], shares):
            # a heavier feature is one of larger values, one of weight 0 is constant
            factors = [1 / math.sqrt(w) if w else 0.0 for w in weights]
            root = torch.cat([factor * scale[block] for factor, block in zip(factors, blocks, strict=True)])
            if grams is None:
                spectrum = _primal(features, mean, root, wanted - offset)
            else:
                spectrum = _dual(_weighed(grams, weights), wanted - offset)
            found = _best(spectrum, wanted, groups)
            if best is None or found.error < best.error:
                weight = spectrum.solve(found.penalty)  # of the standardised features; (n, c) in the dual form
                if n <= p:
                    weight = torch.cat([_standard(features, mean, root, s).T @ weight for s in _slices(p)])
                best = found._replace(share=share, weight=weight * torch.where(root > 0, 1 / root, 0.0)[:, None])
        assert best is not None
        assert best.weight is not None
        readout = regressand.readout(best.left_out, targets)
        self._check_outputs(readout)
        self.weight.copy_(readout.gain[:, None] * best.weight.T[readout.column])
        self.bias.copy_(readout(offset - mean @ best.weight))
        self.penalty.fill_(best.penalty)
        self.share.fill_(best.share)
        self.error.fill_(best.error)
        return readout(best.left_out)

    def _blocks_that_vary(self, scale: Tensor) -> list[slice]:
        """The blocks of features, without one in which none varies."""
        first = len(scale) - self.num_last
        blocks = [slice(0, first), slice(first, len(scale))]
        return blocks if all(bool(scale[block].any()) for block in blocks) else [slice(0, len(scale))]

    def _check_outputs(self, readout: Readout) -> None:
        if len(readout.gain) != len(self.bias):
            raise ValueError(
                f"models.RidgeHead: the regressand has {len(readout.gain)} outputs; expected {len(self.bias)}"
            )

    def _check(self, features: Tensor, targets: Tensor, groups: Tensor | None) -> None:
        p = self.weight.shape[1]
        if features.ndim != 2 or features.shape[1] != p or not len(features) or len(targets) != len(features):
            raise ValueError(
                f"models.RidgeHead: expected features (n, {p}) and n targets with n at least 1; got "
                f"{tuple(features.shape)} and {tuple(targets.shape)}"
            )
        if not bool(features.isfinite().all()):
            raise ValueError("models.RidgeHead: features hold NaN or infinite numbers")
        if groups is not None and (groups.shape != (len(features),) or len(groups.unique()) < 2):
            raise ValueError(
                f"models.RidgeHead: groups are {tuple(groups.shape)}, {len(groups.unique())} of them; expected "
                f"({len(features)},), at least 2"
            )


@final
class _Fit(NamedTuple):
    """The best fit so far: its mean square of left-out errors, and what is said of each example left out."""

    error: float
    penalty: float
    left_out: Tensor
    share: float = 0.0
    weight: Tensor | None = None


@final
class _Spectrum:
    """What a decomposition tells of the fits for all penalties.

    Args:
        values: eigenvalues `(m,)` of XXᵀ (dual, m = n) or XᵀX (primal, m = p), at least 0.
        vectors: the orthonormal eigenvectors `(m, m)`.
        projected: the eigenvectors' parts of the right-hand side `(m, c)`.
        rows: `(n, m)`, X on the eigenvectors; in the dual form the eigenvectors times their eigenvalues.
        others: `(n, m)`, such that H - 1/n = rows (values + λ)⁻¹ othersᵀ.
    """

    def __init__(self, values: Tensor, vectors: Tensor, projected: Tensor, rows: Tensor, others: Tensor) -> None:
        self.values, self.vectors, self.projected, self.rows, self.others = values, vectors, projected, rows, others
        self._leverages = rows * others
        self.unit = float(values.sum()) / len(rows) or 1.0

    def solve(self, penalty: float) -> Tensor:
        """(A + λI)⁻¹ applied to the right-hand side, `(m, c)`."""
        return self.vectors @ (self.projected / (self.values + penalty)[:, None])

    def fitted(self, penalty: float) -> Tensor:
        """X W(λ), `(n, c)`."""
        return self.rows @ (self.projected / (self.values + penalty)[:, None])

    def left_out_errors(self, errors: Tensor, penalty: float, members: list[Tensor] | None) -> Tensor:
        """What the errors of the fit `(n, c)` become where each example, or each group of members, is left out."""
        n = len(errors)
        if members is None:
            # 1 - h is at least λ / (λ + the largest eigenvalue), but for the rounding that it is held above
            leverages = self._leverages @ (1 / (self.values + penalty))
            return errors / (1 - 1 / n - leverages).clamp_min(1e-12)[:, None]
        found, shrunk = torch.empty_like(errors), self.others / (self.values + penalty)
        for own in members:
            hat = self.rows[own] @ shrunk[own].T + 1 / n
            eye = torch.eye(len(own), dtype=errors.dtype, device=errors.device)
            found[own] = torch.linalg.solve((1 + 1e-12) * eye - hat, errors[own])
        return found


def _shares(sizes: list[int], shares: Sequence[float]) -> list[tuple[float, tuple[float, ...]]]:
    """Every s that is tried, and the factor of each block's square.

    The mean eigenvalue of a block of standardised features is their number, of those that vary.
    """
    if len(sizes) == 1:
        return [(0.0, (1.0,))]
    return [(s, ((1 - s) / sizes[0], s / sizes[1])) for s in shares]


def _gram(features: Tensor, mean: Tensor, scale: Tensor, block: slice) -> Tensor:
    """XXᵀ of a block."""
    gram = mean.new_zeros(len(features), len(features))
    for part in _slices(features.shape[1]):
        own = slice(max(part.start, block.start), min(part.stop, block.stop))
        if own.start < own.stop:
            rows = _standard(features, mean, scale, own)
            gram.addmm_(rows, rows.T)
    return gram


def _weighed(grams: list[Tensor], weights: tuple[float, ...]) -> Tensor:
    return functools.reduce(torch.add, (w * gram for w, gram in zip(weights, grams, strict=True)))


def _dual(gram: Tensor, targets: Tensor) -> _Spectrum:
    values, vectors = torch.linalg.eigh(gram)
    values = values.clamp_min(0)
    return _Spectrum(values, vectors, vectors.T @ targets, vectors * values, vectors)


def _primal(features: Tensor, mean: Tensor, scale: Tensor, targets: Tensor) -> _Spectrum:
    def standardised() -> Iterator[Tensor]:
        """X, some rows at a time, since all in float64 take twice the room of the features."""
        for part in features.split(_BLOCK):
            yield _standard(part, mean, scale, slice(None))

    gram = mean.new_zeros(len(mean), len(mean))
    for block in standardised():
        gram.addmm_(block.T, block)
    values, vectors = torch.linalg.eigh(gram)
    rows = torch.cat([block @ vectors for block in standardised()])
    return _Spectrum(values.clamp_min(0), vectors, rows.T @ targets, rows, rows)


def _best(spectrum: _Spectrum, targets: Tensor, groups: Tensor | None) -> _Fit:
    """The penalty with the smallest mean square of the left-out errors."""
    offset, best = targets.mean(0), None
    members = None if groups is None else [(groups == group).nonzero()[:, 0] for group in groups.unique()]
    for multiple in PENALTIES.tolist():
        penalty = multiple * spectrum.unit
        fitted = targets - offset - spectrum.fitted(penalty)
        errors = spectrum.left_out_errors(fitted, penalty, members)
        found = float(errors.square().mean())
        if best is None or found < best.error:
            best = _Fit(found, penalty, targets - errors)
    assert best is not None
    return best


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each feature in float64; 0 for one that varies by rounding alone."""
    mean = features.mean(0, dtype=torch.float64)
    scale = torch.cat(
        [(features[:, part].double() - mean[part]).square().mean(0).sqrt() for part in _slices(features.shape[1])]
    )
    rounding = 10 * torch.finfo(features.dtype).eps * features.abs().amax(0).double()
    return mean, torch.where(scale > rounding, scale, 0.0)


def _standard(features: Tensor, mean: Tensor, scale: Tensor, part: slice) -> Tensor:
    centred = features[:, part].double() - mean[part]
    return centred * torch.where(scale[part] > 0, 1 / scale[part], 0.0)


def _slices(p: int) -> list[slice]:
    return [slice(start, min(start + _BLOCK, p)) for start in range(0, p, _BLOCK)]
