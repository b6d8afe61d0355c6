"""A linear head in closed form: ridge regression, its penalty chosen by leave-one-out errors.

Legend
    F (n, p)   features          μ, σ (p,)  their means and deviations       X = (F - μ) / σ, 0 where σ is
    Y (n, c)   regression targets, from a `Regressand`       ȳ  its column means       λ > 0  the penalty
    H (n, n)   the hat matrix, 1/n + X (XᵀX + λI)⁻¹ Xᵀ;  h_i = H_ii the leverage of example i

    W(λ) = argmin_W ‖X W - (Y - ȳ)‖² + λ‖W‖² = (XᵀX + λI)⁻¹ Xᵀ (Y - ȳ) = Xᵀ (XXᵀ + λI)⁻¹ (Y - ȳ)
    left-out prediction for example i:                     Y_i - (Y_i - ŷ_i) / (1 - h_i)
    left-out predictions for a group g:                    Y_g - (I - H_gg)⁻¹ (Y_g - ŷ_g)
    λ minimises the mean square of these errors; scores = ȳ + γ X W(λ) with γ = 1. If the errors are larger than those
    of ȳ for every λ, λ and 0 ≤ γ ≤ 1 minimise them together
    output k = a_k score_{m(k)} + b_k, where the regressand determines m, a and b from the left-out scores

With weights w of the examples (`example_weights.py`) all means and sums of squares are weighted: X and Y - ȳ are
multiplied by √w from the left, and 1/n is replaced by √w √wᵀ / Σw.

With several blocks of features, X = [√s_1 X_1 / √t_1, ..., √s_m X_m / √t_m], where t is the mean of the eigenvalues of
a block's XᵢXᵢᵀ, and the shares s, whose sum is 1, are chosen with λ among candidates: 0 leaves a block out. In a block
whose features are not standardised X_i = F_i - μ_i: features of small variance get little weight.

Source: Hoerl and Kennard, Ridge regression (1970); Allen's PRESS statistic (1974) for the errors. The intercept is not
penalised. γ is an addition: the scores of a few dozen examples can be too large with every λ, and the largest λ, which
predicts ȳ, would be chosen even if another one separates the examples. If none does, γ would be 0 and is set to 1,
usually with the largest λ. One penalty per block, chosen by left-out errors, is banded ridge regression (Nunez-Elizalde
et al., 2019). Left-out errors are exact for fixed μ, σ and t, which are not recomputed without each example. All is
computed in float64, by one eigendecomposition of whichever of XᵀX and XXᵀ is smaller, for all λ.
"""

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm._precision import without_autocast
from fredholm._settings import check_count
from fredholm.models.closed_form_model import ClosedFormModel
from fredholm.models.fitted.example_weights import (
    check_weights,
    mean_of,
    mean_of_all,
    some_of,
    weighed,
)

PENALTIES = torch.logspace(-6, 3, 28, dtype=torch.float64)
"""Candidates of λ, in multiples of the mean of the n eigenvalues of XXᵀ."""
SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)
"""Candidates of a block's share in the total of this and all earlier blocks."""
SURE = 2.0
"""Number of standard errors of the difference from which errors count as significantly smaller."""
FEWEST = 5
"""Fewest examples, or groups, for a significant difference."""
OVERSAMPLED = 8
"""Extra directions of the randomised decomposition, which make the requested ones more accurate."""

_BLOCK = 4096
"""Features, or examples, standardised at a time."""
_ROWS = 512
"""Examples of groups that are left out side by side."""


@final
class Readout(NamedTuple):
    """Affine map from scores to outputs: output k is `gain[k] * scores[column[k]] + shift[k]`.

    Args:
        column: int64 `(num_outputs,)`.
        gain, shift: float64 `(num_outputs,)`.
    """

    column: Tensor
    gain: Tensor
    shift: Tensor

    def __call__(self, scores: Tensor) -> Tensor:
        """Maps scores `(..., c)` to outputs `(..., num_outputs)`."""
        return self.gain * scores[..., self.column] + self.shift


Losses = Callable[[Tensor, Tensor], Tensor]
"""Maps scores `(m, c)` of some examples, and the indices of these, to the losses of their outputs, `(m,)`."""


class Regressand(ABC):
    """Regression targets Y of a kind of target, and the readout from regression scores to outputs."""

    has_numbers: ClassVar[bool] = False
    """Whether Y are numbers to predict, which another scale may suit, rather than codes of classes."""

    @abstractmethod
    def columns(self, targets: Tensor) -> Tensor:
        """Returns Y, float64 `(n, c)`, of n targets as losses take them.

        Raises:
            ValueError: the targets are not of this kind.
        """

    @abstractmethod
    def readout(self, scores: Tensor, targets: Tensor, weights: Tensor | None = None) -> Readout:
        """Determines the readout from left-out scores.

        Args:
            scores: float64 `(n, c)`.
            targets: targets of the same examples.
            weights: their weights, float64 `(n,)`; None: all are 1.
        """

    def losses_of_scores(self, targets: Tensor, weights: Tensor | None = None) -> Losses | None:
        """Losses of the outputs that are read from scores of n targets; None: only squares of errors count.

        The weights of the targets decide the readout alone; losses are those of single examples.
        """
        return None


class LogitRegressand(Regressand):
    """A regressand whose outputs are logits, with a cross-entropy as their loss."""

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss of each example, `(B,)`, convex in the logits `(B, num_outputs)`."""

    def losses_of_scores(self, targets: Tensor, weights: Tensor | None = None) -> Losses | None:
        """See `Regressand.losses_of_scores`."""

        def losses(scores: Tensor, examples: Tensor) -> Tensor:
            own = targets[examples]
            return self.losses(self.readout(scores, own, some_of(weights, examples))(scores), own)

        return losses


@final
class ScoreRecorder(Regressand):
    """Wraps a regressand so that outputs are scores, one per output of the regressand, and records left-out scores."""

    scores: Tensor

    def __init__(self, regressand: Regressand) -> None:
        self._regressand = regressand

    def columns(self, targets: Tensor) -> Tensor:
        """See `Regressand.columns`."""
        return self._regressand.columns(targets)

    def readout(self, scores: Tensor, targets: Tensor, weights: Tensor | None = None) -> Readout:
        """See `Regressand.readout`: gain 1 and shift 0."""
        self.scores, own = scores, self._regressand.readout(scores, targets, weights)
        return Readout(own.column, torch.ones_like(own.gain), torch.zeros_like(own.shift))

    def losses_of_scores(self, targets: Tensor, weights: Tensor | None = None) -> Losses | None:
        """See `Regressand.losses_of_scores`: those of the outputs of the wrapped regressand."""
        return self._regressand.losses_of_scores(targets, weights)


@final
class FeatureBlock(NamedTuple):
    """Features with a share of their own.

    Args:
        size: number of features.
        standardised: whether each feature is divided by its deviation; otherwise only the block as a whole is scaled.
    """

    size: int
    standardised: bool = True


def shares_of(count: int) -> list[tuple[float, ...]]:
    """Candidates of the shares of `count` blocks: SHARES for the last, and recursively for the rest."""
    if count == 1:
        return [(1.0,)]
    found = [(*((1 - last) * share for share in before), last) for before in shares_of(count - 1) for last in SHARES]
    return list(dict.fromkeys(found))


@final
class RidgeHead(ClosedFormModel):
    """A linear map from features to outputs, fitted by ridge regression.

    Args:
        num_features: p.
        num_outputs: number of outputs, such as classes.
        further: blocks at the end of the features, in order, which are weighed against each other and against the first
            block, all features before them.

    Attributes:
        weight: `(num_outputs, num_features)`, of the raw features: it includes standardisation and a; 0 before a fit. A
            parameter, so that gradient steps may continue from the fit.
        bias: `(num_outputs,)`.
        penalty: λ of the last fit, a float64 scalar; NaN before one.
        shares: s of the last fit, float64, one per block; NaN before one.
        error: the mean square of the left-out errors of the last fit, or of the mean if γ would be 0, a float64
            scalar; NaN before one, and not saved.

    Raises:
        ValueError: on sizes below 1, or blocks that leave no feature to the first.
    """

    penalty: Tensor
    shares: Tensor
    error: Tensor

    def __init__(self, num_features: int, num_outputs: int, *, further: Sequence[FeatureBlock] = ()) -> None:
        super().__init__()
        check_count("models.RidgeHead", "num_features", num_features)
        check_count("models.RidgeHead", "num_outputs", num_outputs)
        for block in further:
            check_count("models.RidgeHead", "the size of a block", block.size)
        first = num_features - sum(block.size for block in further)
        if first < 1:
            sizes = " and ".join(str(block.size) for block in further)
            raise ValueError(
                f"models.RidgeHead: further blocks have {sizes} of {num_features} features; leave the first block one"
            )
        self.weight = nn.Parameter(torch.zeros(num_outputs, num_features))
        self.bias = nn.Parameter(torch.zeros(num_outputs))
        self.blocks = (FeatureBlock(first), *further)
        unknown = torch.tensor(torch.nan, dtype=torch.float64)
        self.register_buffer("penalty", unknown.clone())
        self.register_buffer("shares", unknown.repeat(len(self.blocks)))
        self.register_buffer("error", unknown, persistent=False)  # only the fit sets it

    def forward(self, features: Tensor) -> Tensor:
        """Maps `(..., num_features)` to outputs `(..., num_outputs)`, in the dtype of the weights at all times."""
        with without_autocast(features):
            return F.linear(features.to(self.weight.dtype), self.weight, self.bias)

    @torch.no_grad()
    def fit(
        self,
        features: Tensor,
        targets: Tensor,
        regressand: Regressand,
        *,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
        shares: Sequence[tuple[float, ...]] | None = None,
        equal_in_doubt: bool = False,
    ) -> Tensor:
        """Fits weight and bias.

        Args:
            features: `(n, num_features)`, any float dtype; n at least 1.
            targets: `(n, ...)`, as the regressand takes them.
            regressand: kind of the targets.
            groups: int64 `(n,)`, groups of dependent examples that are left out together, such as the windows of one
                time; at least two groups. None: each example by itself.
            weights: float64 `(n,)`, above 0, weights of the examples; None: all are 1.
            shares: candidates of the shares, at least 0, one per block, up to a factor; None: `shares_of`. Constant
                blocks get no share.
            equal_in_doubt: whether shares are equal unless left-out errors are significantly smaller with a candidate;
                otherwise those with the smallest errors are taken.

        Returns:
            Left-out outputs: those of each example by the fit without it and its group, float64 `(n, num_outputs)`.

        Raises:
            ValueError: shapes that do not agree, no example, one group alone, features that are NaN or infinite, shares
                for another number of blocks, or targets that the regressand refuses.
        """
        self._check(features, targets, groups)
        check_weights("models.RidgeHead", weights, len(features))
        tried = self._tried(shares)
        table, wanted = _Table(features, self.blocks, weights), regressand.columns(targets)
        offset, best, usual = mean_of(wanted, weights), None, None
        if equal_in_doubt:
            tried = [(1.0,) * len(self.blocks), *tried]
        for shared in table.possible(tried):
            spectrum, root = table.spectrum(shared, wanted - offset)
            found = _best(spectrum, wanted, groups, weights)
            if equal_in_doubt:
                errors = (wanted - found.left_out).square().mean(1)
                if usual is None:
                    usual = errors
                elif not is_surely_less(errors, usual, groups, weights):
                    continue
            if best is None or found[:3] < best[:3]:
                solution = found.gain * spectrum.solve(found.penalty)
                best = found._replace(shares=shared, weight=table.weight(solution, root))
        assert best is not None
        assert best.weight is not None
        readout = regressand.readout(best.left_out, targets, weights)
        self._check_outputs(readout)
        self.weight.copy_(readout.gain[:, None] * best.weight.T[readout.column])
        self.bias.copy_(readout(offset - table.mean @ best.weight))
        self.penalty.fill_(best.penalty)
        self.shares.copy_(torch.tensor(best.shares, dtype=torch.float64))
        self.error.fill_(best.error)
        return readout(best.left_out)

    @torch.no_grad()
    def directions(self, features: Tensor, count: int, weights: Tensor | None = None) -> Tensor:
        """Computes the directions of largest variance of X, with the shares of the last fit.

        Args:
            features: `(n, num_features)`, n at least `count`.
            count: q.
            weights: see `fit`.

        Returns:
            Float64 `(num_features, q)`: features times this matrix are X times its first q right singular vectors, up
            to the constant from μ.
        """
        table = _Table(features, self.blocks, weights)
        [shares] = table.possible([tuple(self.shares.tolist())])
        root = table.root(shares)
        turned = torch.cat([table.standard(root, part) for part in _slices(len(root))], 1)
        _, _, vectors = torch.svd_lowrank(turned, q=min(count + OVERSAMPLED, *turned.shape), niter=4)
        return vectors[:, :count] * torch.where(root > 0, 1 / root, 0.0)[:, None]

    def _tried(self, shares: Sequence[tuple[float, ...]] | None) -> Sequence[tuple[float, ...]]:
        """Checked candidates of the shares."""
        if shares is None:
            return shares_of(len(self.blocks))
        for each in shares:
            if len(each) != len(self.blocks) or min(each) < 0:
                raise ValueError(f"models.RidgeHead: shares are {each}; expected {len(self.blocks)}, none below 0")
        return shares

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
        check_groups("models.RidgeHead", groups, len(features))


def check_groups(name: str, groups: Tensor | None, count: int) -> None:
    """Raises a ValueError, which begins with `name`, unless each example has a group and there are at least two."""
    if groups is not None and (groups.shape != (count,) or len(groups.unique()) < 2):
        raise ValueError(
            f"{name}: groups are {tuple(groups.shape)}, {len(groups.unique())} of them; expected ({count},), at least 2"
        )


def dealt(count: int, groups: Tensor | None, num_parts: int, device: torch.device) -> Tensor:
    """Assigns examples to random folds, int64 `(count,)` from 0, which keep groups whole.

    There are at most as many folds as examples, or groups of them.
    """
    units = torch.arange(count) if groups is None else groups.cpu().unique(return_inverse=True)[1]
    return (torch.randperm(int(units.max()) + 1)[units] % num_parts).to(device)


def some_drawn(count: int, groups: Tensor | None, most: int) -> Tensor:
    """Mask of the examples on which choices are made, bool `(count,)`: a sample of whole groups if more than `most`.

    The sample is reproducible, and random with respect to the order of examples and labels.
    """
    if count <= most:
        return torch.ones(count, dtype=torch.bool)
    group = torch.arange(count) if groups is None else groups.cpu().unique(return_inverse=True)[1]
    sizes = group.bincount()
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(0))
    kept = max(2, int((sizes[order].cumsum(0) <= most).sum()))
    return torch.isin(group, order[:kept])


def is_surely_less(errors: Tensor, others: Tensor, groups: Tensor | None = None, weights: Tensor | None = None) -> bool:
    """Whether the mean of `errors` is significantly smaller than that of `others`, paired by example.

    With groups, whose examples are dependent, the pairs are group sums. With weights all errors are multiplied by them.
    """
    difference = weighed(others - errors, weights)
    if groups is not None:
        names, unit = groups.unique(return_inverse=True)
        difference = difference.new_zeros(len(names)).index_add(0, unit, difference)
    if len(difference) < FEWEST:
        return False
    return float(difference.mean()) > SURE * float(difference.std()) / math.sqrt(len(difference))


def left_out_mean_shift(wanted: Tensor, members: list[Tensor] | None, weights: Tensor | None = None) -> Tensor:
    """Decrease of the mean of centred values when an example, or its group, is left out, `(n, c)`.

    Args:
        wanted: the values.
        members: int64 `(s,)`, the examples of a group, or `(G, s)`, those of G groups; None: each is its own.
        weights: weights of the examples, `(n,)`; None: all are 1.
    """
    mass = wanted.new_ones(len(wanted)) if weights is None else weights
    moved, total = mass[:, None] * wanted, mass.sum()

    def of_others(own: Tensor) -> Tensor:
        """The sum of the weights of the others; where there are none the mean does not move."""
        rest = total - own
        return torch.where(rest > torch.finfo(rest.dtype).eps * total, rest, torch.inf)

    if members is None:
        return moved / of_others(mass)[:, None]
    found = torch.empty_like(wanted)
    for own in members:
        found[own] = moved[own].sum(-2, keepdim=True) / of_others(mass[own].sum(-1))[..., None, None]
    return found


def _by_size(groups: Tensor) -> list[Tensor]:
    """The examples of each group, several groups of one size at a time, int64 `(G, s)`."""
    members, found = [(groups == group).nonzero()[:, 0] for group in groups.unique()], list[Tensor]()
    for size in sorted({len(own) for own in members}):
        alike = torch.stack([own for own in members if len(own) == size])
        found += alike.split(max(1, _ROWS // size))
    return found


@final
class _Fit(NamedTuple):
    """The best fit so far.

    Args:
        is_worse: whether left-out errors are larger than those of ȳ, without γ.
        error: mean square of left-out errors, with γ.
        plain_error: mean square without γ.
        penalty: λ.
        gain: γ.
        left_out: left-out predictions.
    """

    is_worse: bool
    error: float
    plain_error: float
    penalty: float
    gain: float
    left_out: Tensor
    shares: tuple[float, ...] = ()
    weight: Tensor | None = None


@final
class _Spectrum:
    """An eigendecomposition that gives the fits for all penalties.

    Args:
        values: eigenvalues `(m,)` of XXᵀ (dual, m = n) or XᵀX (primal, m = p), at least 0.
        vectors: the orthonormal eigenvectors `(m, m)`.
        projected: right-hand side projected on the eigenvectors `(m, c)`.
        rows: `(n, m)`, X projected on the eigenvectors; in the dual form the eigenvectors times their eigenvalues.
        others: `(n, m)`, such that H - 1/n = rows (values + λ)⁻¹ othersᵀ.
        weights: w; None: all are 1.
    """

    def __init__(
        self, values: Tensor, vectors: Tensor, projected: Tensor, rows: Tensor, others: Tensor, weights: Tensor | None
    ) -> None:
        self.values, self.vectors, self.projected, self.rows, self.others = values, vectors, projected, rows, others
        self._leverages = rows * others
        mass = rows.new_ones(len(rows)) if weights is None else weights
        self.of_mean = mass / mass.sum()
        self.unit = float(values.sum()) / float(mass.sum()) or 1.0

    def solve(self, penalty: float) -> Tensor:
        """Applies (A + λI)⁻¹ to the right-hand side, `(m, c)`."""
        return self.vectors @ (self.projected / (self.values + penalty)[:, None])

    def fitted(self, penalty: float) -> Tensor:
        """Returns X W(λ), `(n, c)`; with weights times their roots."""
        return self.rows @ (self.projected / (self.values + penalty)[:, None])

    def left_out_errors(self, errors: Tensor, penalty: float, members: list[Tensor] | None) -> Tensor:
        """Left-out errors, for each example or each group of `_by_size`, from the errors of the fit `(n, c)`.

        With weights both are times their roots.
        """
        n = len(errors)
        # 1 - h is at least λ / (λ + the largest eigenvalue), and is kept above rounding errors
        rounding = n * torch.finfo(errors.dtype).eps
        if members is None:
            leverages = self._leverages @ (1 / (self.values + penalty))
            return errors / (1 - self.of_mean - leverages).clamp_min(rounding)[:, None]
        found, shrunk = torch.empty_like(errors), self.others / (self.values + penalty)
        for own in members:
            mean = self.of_mean[own].sqrt()
            hat = self.rows[own] @ shrunk[own].mT + mean[..., None] * mean[..., None, :]
            eye = torch.eye(own.shape[1], dtype=errors.dtype, device=errors.device)
            found[own] = torch.linalg.solve((1 + rounding) * eye - hat, errors[own])
        return found


@final
class _Table:
    """The features of all examples, divided into blocks.

    Attributes:
        mean: μ `(p,)`.
        scale: divisor of each feature `(p,)`: σ, or 1 in a block that is not standardised; 0: it is constant.
    """

    def __init__(self, features: Tensor, blocks: Sequence[FeatureBlock], weights: Tensor | None = None) -> None:
        self._features, self._grams = features, dict[int, Tensor]()
        self._weights, self._root = weights, None if weights is None else weights.sqrt()
        self.mean, deviation = _moments(features, weights)
        ends = list(itertools.accumulate(block.size for block in blocks))
        self._slices = [slice(end - block.size, end) for end, block in zip(ends, blocks, strict=True)]
        self.scale, self._units = deviation.clone(), list[float]()
        for own, block in zip(self._slices, blocks, strict=True):
            if not block.standardised:
                self.scale[own] = (deviation[own] > 0).to(deviation)
            varies = deviation[own] > 0
            # t, the mean eigenvalue, is the sum of the variances
            self._units.append(float((deviation[own][varies] / self.scale[own][varies]).square().sum()))

    def possible(self, tried: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
        """Candidates of the shares, scaled to sum 1, with 0 for constant blocks."""
        found = dict[tuple[float, ...], None]()
        for shares in tried:
            kept = tuple(s if unit else 0.0 for s, unit in zip(shares, self._units, strict=True))
            if sum(kept) > 0:
                found[tuple(s / sum(kept) for s in kept)] = None
        varying = sum(unit > 0 for unit in self._units) or 1
        return list(found) or [tuple(float(unit > 0) / varying for unit in self._units)]

    def _of_blocks(self, shares: tuple[float, ...]) -> list[float]:
        """The factor of each block's XᵢXᵢᵀ."""
        factors = [s / unit if unit else 0.0 for s, unit in zip(shares, self._units, strict=True)]
        return factors if len(factors) > 1 else [1.0]

    def root(self, shares: tuple[float, ...]) -> Tensor:
        """Divisor of each feature in X with these shares, `(p,)`; 0: it is left out."""
        # a larger factor means a smaller divisor
        factors = [1 / math.sqrt(w) if w else 0.0 for w in self._of_blocks(shares)]
        return torch.cat([f * self.scale[own] for f, own in zip(factors, self._slices, strict=True)])

    def spectrum(self, shares: tuple[float, ...], targets: Tensor) -> tuple[_Spectrum, Tensor]:
        """The spectrum of X with these shares, and the divisor of each feature, `(p,)`; 0: it is left out."""
        factors, root, targets = self._of_blocks(shares), self.root(shares), weighed(targets, self._root)
        if self._is_dual(root):
            grams = (w * self._gram(i) for i, w in enumerate(factors) if w)
            return _dual(functools.reduce(torch.add, grams), targets, self._weights), root
        part = root.nonzero()[:, 0]
        features = self._features if len(part) == len(root) else self._features[:, part]
        return _primal(features, self.mean[part], root[part], targets, self._weights), root

    def weight(self, solution: Tensor, root: Tensor) -> Tensor:
        """W of the raw features, `(p, c)`, from the solution of a spectrum."""
        if self._is_dual(root):
            parts = (self.standard(root, part).T @ solution for part in _slices(len(root)))
            found = torch.cat(list(parts))
        else:
            found = solution.new_zeros(len(root), solution.shape[1])
            found[root > 0] = solution
        return found * torch.where(root > 0, 1 / root, 0.0)[:, None]

    def standard(self, scale: Tensor, part: slice) -> Tensor:
        """Features of a part less μ, divided by a scale, 0 where that is; with weights times their roots."""
        return weighed(_standard(self._features, self.mean, scale, part), self._root)

    def _is_dual(self, root: Tensor) -> bool:
        """Whether the dual form is used: there are no more examples than used features."""
        return len(self._features) <= int(root.count_nonzero())

    def _gram(self, block: int) -> Tensor:
        """XXᵀ of a block whose features are divided by `scale`."""
        if block not in self._grams:
            gram, whole = self.mean.new_zeros(2 * (len(self._features),)), self._slices[block]
            for start in range(whole.start, whole.stop, _BLOCK):
                own = slice(start, min(start + _BLOCK, whole.stop))
                rows = self.standard(self.scale, own)
                gram.addmm_(rows, rows.T)
            self._grams[block] = gram
        return self._grams[block]


def _dual(gram: Tensor, targets: Tensor, weights: Tensor | None) -> _Spectrum:
    values, vectors = torch.linalg.eigh(gram)
    # the eigenvalue of the mean's direction is 0: a rounding error there would matter for a small λ
    values = torch.where(values > len(values) * torch.finfo(values.dtype).eps * values[-1], values, 0.0)
    return _Spectrum(values, vectors, vectors.T @ targets, vectors * values, vectors, weights)


def _primal(features: Tensor, mean: Tensor, scale: Tensor, targets: Tensor, weights: Tensor | None) -> _Spectrum:
    def standardised() -> Iterator[Tensor]:
        """Yields X in chunks of rows, since all of it in float64 takes twice the memory of the features."""
        for rows in _slices(len(features)):
            own = None if weights is None else weights[rows].sqrt()
            yield weighed(_standard(features[rows], mean, scale, slice(None)), own)

    gram = mean.new_zeros(len(mean), len(mean))
    for block in standardised():
        gram.addmm_(block.T, block)
    values, vectors = torch.linalg.eigh(gram)
    rows = torch.cat([block @ vectors for block in standardised()])
    return _Spectrum(values.clamp_min(0), vectors, rows.T @ targets, rows, rows, weights)


def _best(spectrum: _Spectrum, targets: Tensor, groups: Tensor | None, weights: Tensor | None) -> _Fit:
    """The fit with the penalty and gain of the smallest mean square of left-out errors."""
    offset, best = mean_of(targets, weights), None
    wanted, root = targets - offset, None if weights is None else weights.sqrt()
    aligned = weighed(wanted, root)
    alone = float(mean_of_all(wanted.square(), weights))
    members = None if groups is None else _by_size(groups)
    # the gain is about the mean without the left-out example
    falls = left_out_mean_shift(wanted, members, weights)
    aim = wanted + falls
    for multiple in PENALTIES.tolist():
        penalty = multiple * spectrum.unit
        errors = spectrum.left_out_errors(aligned - spectrum.fitted(penalty), penalty, members)
        errors = errors if root is None else errors / root[:, None]
        predicted, plain_error, gain = aim - errors, float(mean_of_all(errors.square(), weights)), 1.0
        if is_worse := plain_error > alone:
            square = float(weighed(predicted.square(), weights).sum())
            product = float(weighed(predicted * aim, weights).sum())
            gain = min(1.0, max(0.0, product / square)) if square else 1.0
        key = is_worse, float(mean_of_all((aim - gain * predicted).square(), weights)), plain_error
        if best is None or key < best[:3]:
            best = _Fit(*key, penalty, gain or 1.0, offset - falls + (gain or 1.0) * predicted)
    assert best is not None
    return best


def _moments(features: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each feature in float64; a deviation that is only rounding becomes 0."""
    parts = _slices(features.shape[1])
    if weights is None:
        mean = features.mean(0, dtype=torch.float64)
    else:
        mean = torch.cat([mean_of(features[:, part].double(), weights) for part in parts])
    scale = torch.cat([mean_of((features[:, part].double() - mean[part]).square(), weights).sqrt() for part in parts])
    rounding = 10 * torch.finfo(features.dtype).eps * features.abs().amax(0).double()
    return mean, torch.where(scale > rounding, scale, 0.0)


def _standard(features: Tensor, mean: Tensor, scale: Tensor, part: slice) -> Tensor:
    centred = features[:, part].double() - mean[part]
    return centred * torch.where(scale[part] > 0, 1 / scale[part], 0.0)


def _slices(p: int) -> list[slice]:
    return [slice(start, min(start + _BLOCK, p)) for start in range(0, p, _BLOCK)]
