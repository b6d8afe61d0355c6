"""Gradient-boosted trees as a sum of integral operators, whose kernels indicate examples in a common box.

Legend
    x (d,)    the coordinates of an example                  Y (n, c)  regression targets, from a `Regressand`
    t         an oblivious tree of D_t levels, each with one split x_k > b for all boxes
    κ_t(x, y) 1 where x and y are on the same side of all D_t splits, so in the same one of 2^D_t boxes, else 0
    μ_t       the measure of mass 1 on each example of the sample drawn for t
    η, λ      RATE, PENALTY                                  Ȳ (c,)    the column means of Y

    f_0 = Ȳ        f_t = f_{t-1} + η K_t (Y - f_{t-1})
    (K_t r)(x) = ∫ κ_t(x, y) r(y) dμ_t(y) / (λ + ∫ κ_t(x, y) dμ_t(y)),   the mean of r in the box of x, drawn to 0
    k, b of a level:  the largest  Σ_boxes (∫_box ρ dμ_t)² / (λ + μ_t(box)),  ρ = r, or ⟨r, g⟩, g drawn for t, if c > 1

Half of the candidate coordinates of a tree are those with the largest gains in its fold, the others are drawn; if there
are few, all are candidates. b lies between two values of a coordinate, at one of BINS - 1 quantiles where there are
many values. D_t cycles through DEPTHS. Examples are divided into FOLDS parts, which keep groups whole. For each part
trees are grown on the other parts. f is the mean of these sums, and the left-out prediction of an example is that of
the trees grown without it. The number T of trees minimises the mean square of the left-out errors, which are exact for
this T and for Ȳ.

Source: gradient boosting (Friedman, 2001), on random samples (2002); oblivious trees as in CatBoost (Prokhorenkova et
al., arXiv 1706.09516); splits by a random direction of several outputs (Iosipoi and Vakhrushev, arXiv 2211.12858).
Deviations: squared errors alone, of the regressand; the mean over folds in place of a fit to all.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count
from fredholm.models.fitted.fitted_model import CoordinateModel, Solution
from fredholm.models.fitted.ridge_head import Losses, dealt

RATE = 0.1
PENALTY = 3.0
"""λ, in numbers of examples."""
DEPTHS = (4, 6)
BINS = 64
FOLDS = 5
DRAWN = 0.8
"""Share of a fold's examples in the random sample of a tree."""
MOST_DRAWN = 8192
COORDINATES, READ = (64, 512), 2**18
"""Bounds of the number of candidate coordinates of a tree, and their target number of values over its sample."""
PATIENCE = 50
"""Number of trees without improvement after which growth stops."""
MOST_BOXES = 30_000
"""Most trees of a fold times outputs in the default models of tasks."""
_LEVELS = max(DEPTHS)
_NEVER = torch.finfo(torch.float32).max
"""A threshold above all coordinates; not infinity, as saved weights are finite."""


def affordable_trees(num_trees: int, num_outputs: int) -> int:
    """Limits the trees of a fold so that trees times outputs stay within MOST_BOXES; at least one."""
    return min(num_trees, max(1, MOST_BOXES // num_outputs))


@final
class BoostedTrees(CoordinateModel):
    """A sum over trees, fitted by boosting.

    Args:
        num_coordinates: d.
        num_outputs: number of outputs, such as classes.
        num_trees: most trees T of each fold.

    Attributes:
        leaves: `(FOLDS, num_trees, 64, num_outputs)`, values of the boxes; 0 before a fit, and for trees beyond T. A
            parameter, so that gradient steps may continue from the fit.
        bias: `(num_outputs,)`, Ȳ after the readout.
        coordinate: int64 `(FOLDS, num_trees, 6)`, k of each level.
        threshold: b of each level, of the same shape; the largest number beyond the depth of a tree.
        gains: `(d,)`, total gain of the splits of each coordinate, scaled to a maximum of 1; 0 before a fit.
        folds: int64 `(n,)`, the fold of each example of the last fit; empty before one, and not saved.

    Raises:
        ValueError: on sizes below 1.
    """

    coordinate: Tensor
    threshold: Tensor
    gains: Tensor
    folds: Tensor

    def __init__(self, num_coordinates: int, num_outputs: int, num_trees: int) -> None:
        super().__init__(num_coordinates, num_outputs)
        check_count("models.BoostedTrees", "num_trees", num_trees)
        self.leaves = nn.Parameter(torch.zeros(FOLDS, num_trees, 2**_LEVELS, num_outputs))
        self.register_buffer("coordinate", torch.zeros(FOLDS, num_trees, _LEVELS, dtype=torch.int64))
        self.register_buffer("threshold", torch.full((FOLDS, num_trees, _LEVELS), _NEVER))
        self.register_buffer("gains", torch.zeros(num_coordinates))
        self.register_buffer("folds", torch.zeros(0, dtype=torch.int64), persistent=False)

    def forward(self, coordinates: Tensor) -> Tensor:
        """Maps `(B, d)` to outputs `(B, num_outputs)`, which are all equal before a fit."""
        total = self.bias
        for k in range(FOLDS):
            total = total + self._of_fold(k, coordinates)
        return total

    def without(self, fold: int, coordinates: Tensor) -> Tensor:
        """Outputs by the trees grown without a fold of the last fit, see `folds`, `(B, num_outputs)`."""
        return self.bias + FOLDS * self._of_fold(fold, coordinates)

    def _of_fold(self, k: int, coordinates: Tensor) -> Tensor:
        leaves, threshold = self.leaves[k], self.threshold[k]
        x = coordinates.to(threshold.dtype).clamp_max(_NEVER)
        start = torch.arange(leaves.shape[0], device=x.device) * leaves.shape[1]
        outcomes = x[:, self.coordinate[k].flatten()].unflatten(1, threshold.shape) > threshold
        return leaves.flatten(0, 1)[_box(outcomes) + start].sum(1)

    def _solved(self, x: Tensor, wanted: Tensor, groups: Tensor | None, losses: Losses | None) -> Solution:
        offset = wanted.mean(0)
        x = x.to(self.threshold.dtype)
        self.folds = dealt(len(x), groups, FOLDS, x.device)
        growth = _Growth(x, wanted - offset, self.folds)
        trees, count, left_out = list[_Trees](), 0, growth.left_out()
        error = float(left_out.square().mean())
        for _ in range(self.leaves.shape[1]):
            trees.append(growth.grow(DEPTHS[len(trees) % len(DEPTHS)]))
            errors = growth.left_out()
            if (found := float(errors.square().mean())) < error:
                count, error, left_out = len(trees), found, errors
            if len(trees) - count >= PATIENCE:
                break
        self.coordinate.zero_()
        self.threshold.fill_(_NEVER)
        gains = torch.zeros_like(self.gains)
        boxes = wanted.new_zeros(*self.leaves.shape[:-1], wanted.shape[1])
        for t, tree in enumerate(trees[:count]):
            self.coordinate[:, t] = tree.coordinate
            self.threshold[:, t] = tree.threshold.clamp_max(_NEVER)
            boxes[:, t] = tree.boxes
            for own, gain in zip(tree.coordinate, tree.gains, strict=True):
                gains.index_add_(0, own, gain.to(gains))
        self.gains.copy_(gains / gains.max().clamp_min(torch.finfo(gains.dtype).tiny))
        return Solution(boxes / FOLDS, offset, wanted - left_out)

    def _read(self, weights: Tensor) -> None:
        self.leaves.copy_(weights)


@final
class _Trees(NamedTuple):
    """One tree per fold: k, b and the gain of each level `(FOLDS, _LEVELS)`, and values of boxes `(FOLDS, 64, c)`."""

    coordinate: Tensor
    threshold: Tensor
    gains: Tensor
    boxes: Tensor


@final
class _Growth:
    """State of boosting for all folds at once: residuals of Y, `(FOLDS, n, c)`, and gains of the coordinates."""

    def __init__(self, x: Tensor, wanted: Tensor, fold: Tensor) -> None:
        edges = torch.stack([_edges(column) for column in x.T])
        self.edges = edges[:, : max(1, int(edges.isfinite().sum(1).max()))].contiguous()
        # x > edges[b] if and only if the bin of x is above b
        self.bins = torch.searchsorted(self.edges, x.T.contiguous()).T.to(torch.int16)
        self.rest = wanted.float().repeat(FOLDS, 1, 1)
        self.gains = torch.zeros(FOLDS, x.shape[1], device=x.device)
        self.fold = fold
        self.known = [(fold != k).nonzero()[:, 0] for k in range(FOLDS)]
        self.num_drawn = min(MOST_DRAWN, max(1, int(DRAWN * min(len(known) for known in self.known))))

    def left_out(self) -> Tensor:
        """Errors of each example by the trees grown without it, float64 `(n, c)`."""
        return self.rest[self.fold, torch.arange(len(self.fold), device=self.fold.device)].double()

    def _candidates(self, gained: Tensor) -> Tensor:
        """Candidate coordinates of the next tree of a fold, by their gains in this fold."""
        number, count = len(gained), min(max(COORDINATES[0], READ // self.num_drawn), COORDINATES[1])
        if number <= count:
            return torch.arange(number, device=gained.device)
        best = gained.topk(count // 2).indices
        best = best[gained[best] > 0]
        others = torch.ones(number, dtype=torch.bool, device=gained.device)
        others[best] = False
        return torch.cat([best, _some(others.nonzero()[:, 0], count - len(best))])

    def grow(self, depth: int) -> _Trees:
        """Grows the next tree of each fold and subtracts it from the residuals."""
        folds, device = torch.arange(FOLDS, device=self.rest.device)[:, None], self.rest.device
        drawn = torch.stack([_some(known, self.num_drawn) for known in self.known])
        candidates = torch.stack([self._candidates(gained) for gained in self.gains])
        bins, rest = self.bins[drawn[..., None], candidates[:, None]].long(), self.rest[folds, drawn]
        along = rest[..., 0] if rest.shape[2] == 1 else rest @ torch.randn(rest.shape[2]).to(rest)
        trees = _Trees(
            torch.zeros(FOLDS, _LEVELS, dtype=torch.int64, device=device),
            torch.full((FOLDS, _LEVELS), _NEVER, dtype=self.edges.dtype, device=device),
            torch.zeros(FOLDS, _LEVELS, device=device),
            rest.new_zeros(FOLDS, 2**_LEVELS, rest.shape[2]),
        )
        places = torch.full((FOLDS, _LEVELS), BINS, device=device)
        box = torch.zeros_like(drawn)
        for level in range(depth):
            gain, gained = _gains(bins, along, box, 2**level, 1 + self.edges.shape[1])
            gain = torch.where(self.edges[candidates].isfinite(), gain, -1.0).flatten(1)
            best = gain.argmax(1)
            column, place = best // self.edges.shape[1], best % self.edges.shape[1]
            coordinate = candidates[folds[:, 0], column]
            trees.coordinate[:, level], places[:, level] = coordinate, place
            trees.threshold[:, level] = self.edges[coordinate, place]
            trees.gains[:, level] = (gain[folds[:, 0], best] - gained).clamp_min(0)
            outcomes = bins.gather(2, column[:, None, None].expand(-1, bins.shape[1], 1))[..., 0] > place[:, None]
            box = 2 * box + outcomes
        box = box << (_LEVELS - depth)
        shape = trees.boxes.shape
        sums = torch.zeros_like(trees.boxes).flatten(0, 1)
        sums.index_add_(0, (box + folds * shape[1]).flatten(), rest.flatten(0, 1))
        mass = torch.bincount((box + folds * shape[1]).flatten(), minlength=len(sums))
        trees.boxes.copy_((RATE * sums / (mass + PENALTY)[:, None]).view(shape))
        self.gains.scatter_add_(1, trees.coordinate, trees.gains)
        everywhere = _box(self.bins[:, trees.coordinate].transpose(0, 1) > places[:, None])
        self.rest -= trees.boxes[folds, everywhere]
        return trees


def _gains(bins: Tensor, along: Tensor, box: Tensor, num_boxes: int, num_bins: int) -> tuple[Tensor, Tensor]:
    """Scores of all splits.

    Args:
        bins: `(FOLDS, m, k)`, bins of m examples in k coordinates.
        along: `(FOLDS, m)`, ρ.
        box: `(FOLDS, m)`, box of each example, below num_boxes.
        num_bins: most bins of a coordinate.

    Returns:
        Σ (∫ ρ dμ)² / (λ + μ) after each split, `(FOLDS, k, num_bins - 1)`, and without a split, `(FOLDS,)`.
    """
    folds, _, k = bins.shape
    size = (folds, num_boxes, k, num_bins)
    own = torch.arange(folds, device=bins.device)[:, None] * num_boxes + box
    key = (own[..., None] * k + torch.arange(k, device=bins.device)) * num_bins + bins
    key = key.flatten()
    mass = torch.bincount(key, minlength=folds * num_boxes * k * num_bins).view(size).to(along.dtype).cumsum(3)
    sums = along.new_zeros(folds * num_boxes * k * num_bins)
    sums = sums.index_add_(0, key, along[..., None].expand_as(bins).flatten()).view(size).cumsum(3)
    whole, of_whole = sums[..., -1:], mass[..., -1:]
    below = sums.square() / (mass + PENALTY)
    above = (whole - sums).square() / (of_whole - mass + PENALTY)
    return (below + above).sum(1)[..., :-1], below[:, :, 0, -1].sum(1)


def _box(outcomes: Tensor) -> Tensor:
    """The index of a box from its splits' outcomes `(..., _LEVELS)`, the first as the highest bit."""
    box = torch.zeros_like(outcomes[..., 0], dtype=torch.int64)
    for level in range(_LEVELS):  # torch.compile sums int64 along a dimension wrongly on CPUs
        box = 2 * box + outcomes[..., level]
    return box


def _edges(column: Tensor) -> Tensor:
    """Candidate thresholds of a coordinate `(n,)`, ascending `(BINS - 1,)`, padded with infinity."""
    values, counts = column.unique(return_counts=True)
    bins = torch.arange(len(values), device=column.device)
    if len(values) > BINS:
        bins = (2 * counts.cumsum(0) - counts) * BINS // (2 * len(column))  # by the middle of the ranks of a value
    first = (bins.diff() > 0).nonzero()[:, 0] + 1  # of each bin but the lowest
    found = column.new_full((BINS - 1,), torch.inf)
    found[: len(first)] = values[first - 1] / 2 + values[first] / 2
    return found


def _some(of: Tensor, count: int) -> Tensor:
    """A random subset of at most `count` entries, by the CPU's global generator."""
    return of[torch.randperm(len(of))[:count].sort().values.to(of.device)]
