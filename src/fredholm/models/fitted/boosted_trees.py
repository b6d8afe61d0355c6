"""Gradient-boosted trees as a sum of integral operators, whose kernels indicate examples in a common box.

Legend
    x (d,)    the coordinates of an example                  Y (n, c)  regression targets, from a `Regressand`
    t         a tree, which divides the coordinates into boxes
    κ_t(x, y) 1 where x and y are in the same box of t, else 0
    μ_t       the measure of mass 1, or of its weight, on each example of the sample drawn for t
    η, λ      RATE, PENALTY                                  Ȳ (c,)    the column means of Y

    f_0 = Ȳ        f_t = f_{t-1} + η K_t (Y - f_{t-1})
    (K_t r)(x) = ∫ κ_t(x, y) r(y) dμ_t(y) / (λ + ∫ κ_t(x, y) dμ_t(y)),   the mean of r in the box of x, drawn to 0
    S(boxes)  Σ_boxes (∫_box ρ dμ_t)² / (λ + μ_t(box)),  ρ = r, or ⟨r, g⟩, g drawn for t, if c > 1

    oblivious tree   D_t levels, each with one split x_k > b for all boxes: the one with the largest S
    leaf-wise tree   at most LEAVES boxes; of all boxes the AT_ONCE whose own splits x_k > b add most to S are divided,
                     again and again

Half of the candidate coordinates of a tree are those with the largest gains in its fold, the others are drawn; if there
are few, all are candidates. b lies between two values of a coordinate, at one of BINS - 1 quantiles where there are
many values. D_t cycles through DEPTHS. Examples are divided into FOLDS parts, which keep groups whole. For each part
trees are grown on the other parts. f is the mean of these sums, and the left-out prediction of an example is that of
the trees grown without it. The number T of trees minimises the mean square of the left-out errors, which are exact for
this T and for Ȳ.

With more than FEW examples there are two sums, one of oblivious and one of leaf-wise trees, weighted by the one of
SHARES with the smallest mean square of left-out errors. Oblivious trees find effects of few coordinates from few
examples; leaf-wise trees are deep where it matters, as conditions within conditions need.

Source: gradient boosting (Friedman, 2001), on random samples (2002); oblivious trees as in CatBoost (Prokhorenkova et
al., arXiv 1706.09516); leaf-wise trees as in LightGBM (Ke et al., 2017), which divides one box at a time; splits by a
random direction of several outputs (Iosipoi and Vakhrushev, arXiv 2211.12858).
Deviations: squared errors alone, of the regressand; the mean over folds in place of a fit to all.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count
from fredholm.domains.checks import values_can_be_read
from fredholm.models.fitted.example_weights import mean_of, mean_of_all
from fredholm.models.fitted.fitted_model import CoordinateModel, Solution
from fredholm.models.fitted.kernel_choice import FEW
from fredholm.models.fitted.ridge_head import Losses, dealt

RATE = 0.1
PENALTY = 3.0
"""λ, in numbers of examples."""
DEPTHS = (4, 6)
LEAVES, AT_ONCE = 32, 4
"""Most boxes of a leaf-wise tree, and most of them that are divided at a time."""
SHARES = tuple(tenths / 10 for tenths in range(11))
"""Candidates of the share of the leaf-wise trees."""
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
_ROUNDING = 1e-6
"""Largest relative error of a score in float32."""
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
        num_trees: most trees T of each fold, of either kind.

    Attributes:
        leaves: `(FOLDS, num_trees, 64 + LEAVES, num_outputs)`, values of the boxes of oblivious trees, then of those of
            leaf-wise trees; 0 before a fit, and for trees beyond T. A parameter, so that gradient steps may continue
            from the fit.
        bias: `(num_outputs,)`, Ȳ after the readout.
        coordinate: int64 `(FOLDS, num_trees, 6)`, k of each level of the oblivious trees.
        threshold: b of each level, of the same shape; the largest number beyond the depth of a tree.
        split_box: int64 `(LEAVES - 1, FOLDS, num_trees)`, the box that each split of a leaf-wise tree divides; split i
            puts examples with x_k > b into box i + 1.
        split_coordinate, split_threshold: k and b of these splits, of the same shape; the largest number where there is
            no split.
        counts: int64 `(2,)`, T of the oblivious and of the leaf-wise trees.
        gains: `(d,)`, total gain of the splits of each coordinate, scaled to a maximum of 1; 0 before a fit.
        folds: int64 `(n,)`, the fold of each example of the last fit; empty before one, and not saved.

    Raises:
        ValueError: on sizes below 1.
    """

    coordinate: Tensor
    threshold: Tensor
    split_box: Tensor
    split_coordinate: Tensor
    split_threshold: Tensor
    counts: Tensor
    gains: Tensor
    folds: Tensor

    def __init__(self, num_coordinates: int, num_outputs: int, num_trees: int) -> None:
        super().__init__(num_coordinates, num_outputs)
        check_count("models.BoostedTrees", "num_trees", num_trees)
        self.leaves = nn.Parameter(torch.zeros(FOLDS, num_trees, 2**_LEVELS + LEAVES, num_outputs))
        self.register_buffer("coordinate", torch.zeros(FOLDS, num_trees, _LEVELS, dtype=torch.int64))
        self.register_buffer("threshold", torch.full((FOLDS, num_trees, _LEVELS), _NEVER))
        self.register_buffer("split_box", torch.zeros(LEAVES - 1, FOLDS, num_trees, dtype=torch.int64))
        self.register_buffer("split_coordinate", torch.zeros(LEAVES - 1, FOLDS, num_trees, dtype=torch.int64))
        self.register_buffer("split_threshold", torch.full((LEAVES - 1, FOLDS, num_trees), _NEVER))
        self.register_buffer("counts", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("gains", torch.zeros(num_coordinates))
        self.register_buffer("folds", torch.zeros(0, dtype=torch.int64), persistent=False)

    def forward(self, coordinates: Tensor) -> Tensor:
        """Maps `(B, d)` to outputs `(B, num_outputs)`, which are all equal before a fit."""
        return self.bias + self._of_folds(slice(None), coordinates)

    def without(self, fold: int, coordinates: Tensor) -> Tensor:
        """Outputs by the trees grown without a fold of the last fit, see `folds`, `(B, num_outputs)`."""
        return self.bias + FOLDS * self._of_folds(slice(fold, fold + 1), coordinates)

    def _of_folds(self, folds: slice, coordinates: Tensor) -> Tensor:
        """The sum over the trees of some folds, `(B, num_outputs)`."""
        num_trees, x = self.leaves.shape[1], coordinates.to(self.threshold.dtype).clamp_max(_NEVER)
        of_levels, of_splits = self.counts.tolist() if values_can_be_read(x) else (num_trees, num_trees)
        total = self.leaves.new_zeros(x.shape[0], self.leaves.shape[3])
        start = torch.arange(of_levels, device=x.device) * 2**_LEVELS
        each = (own[folds, :of_levels] for own in (self.coordinate, self.threshold, self.leaves[:, :, : 2**_LEVELS]))
        for coordinate, threshold, leaves in zip(*each, strict=True):
            outcomes = x[:, coordinate.flatten()].unflatten(1, threshold.shape) > threshold
            total = total + leaves.flatten(0, 1)[_box(outcomes) + start].sum(1)
        leaves = self.leaves[folds, :of_splits, 2**_LEVELS :].flatten(0, 1)
        box = torch.zeros(x.shape[0], len(leaves), dtype=torch.int64, device=x.device)
        each = (own[:, folds, :of_splits].flatten(1) for own in (self.split_box, self.split_coordinate))
        splits = zip(*each, self.split_threshold[:, folds, :of_splits].flatten(1), strict=True)
        for i, (divided, coordinate, threshold) in enumerate(splits if of_splits else ()):
            box = torch.where((box == divided) & (x[:, coordinate] > threshold), i + 1, box)
        start = torch.arange(len(leaves), device=x.device) * LEAVES
        for part, own in zip(box.split(max(1, of_splits), 1), start.split(max(1, of_splits)), strict=True):
            total = total + leaves.flatten(0, 1)[part + own].sum(1)
        return total

    def _solved(
        self, x: Tensor, wanted: Tensor, groups: Tensor | None, weights: Tensor | None, losses: Losses | None
    ) -> Solution:
        offset, num_trees = mean_of(wanted, weights), self.leaves.shape[1]
        examples = _Binned.of(x.to(self.threshold.dtype), weights)
        self.folds = dealt(len(x), groups, FOLDS, x.device)
        growth = _Growth(examples, wanted - offset, self.folds, weights)
        trees, errors = _boosted(growth, lambda t: growth.grow(DEPTHS[t % len(DEPTHS)]), num_trees)
        splits, share = list[_SplitTrees](), 0.0
        if len(x) > FEW:
            again = _Growth(examples, wanted - offset, self.folds, weights)
            splits, others = _boosted(again, lambda _: again.grow_leafwise(), num_trees)
            blends = [torch.lerp(errors, others, each) for each in SHARES]
            best = int(torch.stack([mean_of_all(each.square(), weights) for each in blends]).argmin())
            share, errors = SHARES[best], blends[best]
        trees, splits = trees if share < 1 else [], splits if share > 0 else []
        self.coordinate.zero_()
        self.threshold.fill_(_NEVER)
        self.split_box.zero_()
        self.split_coordinate.zero_()
        self.split_threshold.fill_(_NEVER)
        self.counts.copy_(torch.tensor([len(trees), len(splits)]))
        gains = torch.zeros_like(self.gains)
        boxes = wanted.new_zeros(*self.leaves.shape[:-1], wanted.shape[1])
        for t, tree in enumerate(trees):
            self.coordinate[:, t] = tree.coordinate
            self.threshold[:, t] = tree.threshold.clamp_max(_NEVER)
            boxes[:, t, : 2**_LEVELS] = (1 - share) * tree.boxes
            gains.index_add_(0, tree.coordinate.flatten(), (1 - share) * tree.gains.flatten().to(gains))
        for t, tree in enumerate(splits):
            self.split_box[:, :, t] = tree.box.T
            self.split_coordinate[:, :, t] = tree.coordinate.T
            self.split_threshold[:, :, t] = tree.threshold.T.clamp_max(_NEVER)
            boxes[:, t, 2**_LEVELS :] = share * tree.boxes
            gains.index_add_(0, tree.coordinate.flatten(), share * tree.gains.flatten().to(gains))
        self.gains.copy_(gains / gains.max().clamp_min(torch.finfo(gains.dtype).tiny))
        return Solution(boxes / FOLDS, offset, wanted - errors)

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
class _SplitTrees(NamedTuple):
    """One leaf-wise tree per fold.

    Args:
        box: the box that each split divides, int64 `(FOLDS, LEAVES - 1)`.
        coordinate, threshold, gains: k, b and the gain of each split, of this shape.
        boxes: values of the boxes `(FOLDS, LEAVES, c)`.
    """

    box: Tensor
    coordinate: Tensor
    threshold: Tensor
    gains: Tensor
    boxes: Tensor


_Grown = TypeVar("_Grown", _Trees, _SplitTrees)


def _boosted(growth: "_Growth", grow: Callable[[int], _Grown], num_trees: int) -> tuple[list[_Grown], Tensor]:
    """Grows trees until they no longer help; returns T of them, and the left-out errors, float64 `(n, c)`."""
    trees, count, left_out = list[_Grown](), 0, growth.left_out()
    error = float(mean_of_all(left_out.square(), growth.weights))
    for t in range(num_trees):
        trees.append(grow(t))
        errors = growth.left_out()
        if (found := float(mean_of_all(errors.square(), growth.weights))) < error:
            count, error, left_out = len(trees), found, errors
        if len(trees) - count >= PATIENCE:
            break
    return trees[:count], left_out


@final
class _Binned(NamedTuple):
    """Coordinates of examples in bins.

    Args:
        edges: candidate thresholds of each coordinate, ascending `(d, most)`, padded with infinity.
        bins: the bin of each example, int16 `(n, d)`: x > edges[b] if and only if it is above b.
    """

    edges: Tensor
    bins: Tensor

    @classmethod
    def of(cls, x: Tensor, weights: Tensor | None = None) -> "_Binned":
        edges = torch.stack([_edges(column, weights) for column in x.T])
        edges = edges[:, : max(1, int(edges.isfinite().sum(1).max()))].contiguous()
        return cls(edges, torch.searchsorted(edges, x.T.contiguous()).T.to(torch.int16))


@final
class _Sample(NamedTuple):
    """Examples drawn for a tree of each fold, in its candidate coordinates.

    Args:
        candidates: int64 `(FOLDS, k)`.
        bins: int64 `(FOLDS, m, k)`.
        rest: residuals times the weights `(FOLDS, m, c)`.
        along: ρ times the weights `(FOLDS, m)`.
        mass: the weights, of this shape; None: all are 1.
    """

    candidates: Tensor
    bins: Tensor
    rest: Tensor
    along: Tensor
    mass: Tensor | None


@final
class _Growth:
    """State of boosting for all folds at once: residuals of Y, `(FOLDS, n, c)`, and gains of the coordinates."""

    def __init__(self, examples: _Binned, wanted: Tensor, fold: Tensor, weights: Tensor | None = None) -> None:
        self.edges, self.bins = examples
        self.weights = weights
        self.rest = wanted.float().repeat(FOLDS, 1, 1)
        self.gains = torch.zeros(FOLDS, self.bins.shape[1], device=wanted.device)
        self.folds = torch.arange(FOLDS, device=wanted.device)[:, None]
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

    def _sample(self) -> _Sample:
        drawn = torch.stack([_some(known, self.num_drawn) for known in self.known])
        candidates = torch.stack([self._candidates(gained) for gained in self.gains])
        bins, rest = self.bins[drawn[..., None], candidates[:, None]].long(), self.rest[self.folds, drawn]
        mass = None if self.weights is None else self.weights[drawn].float()
        rest = rest if mass is None else rest * mass[..., None]
        along = rest[..., 0] if rest.shape[2] == 1 else rest @ torch.randn(rest.shape[2]).to(rest)
        return _Sample(candidates, bins, rest, along, mass)

    def grow(self, depth: int) -> _Trees:
        """Grows the next oblivious tree of each fold and subtracts it from the residuals."""
        device, fold, num_edges = self.rest.device, self.folds[:, 0], self.edges.shape[1]
        candidates, bins, rest, along, mass = self._sample()
        trees = _Trees(
            torch.zeros(FOLDS, _LEVELS, dtype=torch.int64, device=device),
            torch.full((FOLDS, _LEVELS), _NEVER, dtype=self.edges.dtype, device=device),
            torch.zeros(FOLDS, _LEVELS, device=device),
            self.rest.new_zeros(FOLDS, 2**_LEVELS, rest.shape[2]),
        )
        places = torch.full((FOLDS, _LEVELS), BINS, device=device)
        box = torch.zeros(along.shape, dtype=torch.int64, device=device)
        for level in range(depth):
            own = (box + self.folds * 2**level).flatten()
            flat = None if mass is None else mass.flatten()
            scores, whole = _scores(bins.flatten(0, 1), along.flatten(), flat, own, FOLDS * 2**level, 1 + num_edges)
            score = scores.unflatten(0, (FOLDS, -1)).sum(1)
            score = torch.where(self.edges[candidates].isfinite(), score, -1.0).flatten(1)
            best = score.argmax(1)
            column, place = best // num_edges, best % num_edges
            coordinate = candidates[fold, column]
            trees.coordinate[:, level], places[:, level] = coordinate, place
            trees.threshold[:, level] = self.edges[coordinate, place]
            gained = score[fold, best] - whole.view(FOLDS, -1).sum(1)
            trees.gains[:, level] = gained.clamp_min(0)
            box = 2 * box + (_taken(bins, column) > place[:, None])
        box = box << (_LEVELS - depth)
        trees.boxes.copy_(self._values(rest, mass, box, 2**_LEVELS))
        everywhere = _box(self.bins[:, trees.coordinate].transpose(0, 1) > places[:, None])
        self._subtract(trees, everywhere)
        return trees

    def grow_leafwise(self) -> _SplitTrees:
        """Grows the next leaf-wise tree of each fold and subtracts it from the residuals."""
        device, fold, shape = self.rest.device, self.folds[:, 0], (FOLDS, LEAVES - 1)
        sample = self._sample()
        candidates, bins, rest, along, mass = sample
        trees = _SplitTrees(
            torch.zeros(shape, dtype=torch.int64, device=device),
            torch.zeros(shape, dtype=torch.int64, device=device),
            torch.full(shape, _NEVER, dtype=self.edges.dtype, device=device),
            torch.zeros(shape, device=device),
            self.rest.new_zeros(FOLDS, LEAVES, rest.shape[2]),
        )
        box = torch.zeros(along.shape, dtype=torch.int64, device=device)
        everywhere = torch.zeros(FOLDS, len(self.bins), dtype=torch.int64, device=device)
        # the best split of each box, and its gain
        gain = torch.zeros(FOLDS, LEAVES, device=device)
        column, place = (torch.zeros(FOLDS, LEAVES, dtype=torch.int64, device=device) for _ in range(2))
        count, changed = 1, torch.zeros(FOLDS, 1, dtype=torch.int64, device=device)
        while count < LEAVES:
            found = self._best_splits(sample, box, changed)
            for own, each in zip((gain, column, place), found, strict=True):
                own.scatter_(1, changed, each)
            if not bool((gain > 0).any()):
                break
            chosen = gain.topk(min(AT_ONCE, count, LEAVES - count), 1).indices
            for divided in chosen.T:
                its_gain, its_column, its_place = (each[fold, divided] for each in (gain, column, place))
                # where no split gains, none is made
                divided = torch.where(its_gain > 0, divided, -1)[:, None]
                coordinate, split = candidates[fold, its_column], count - 1
                trees.box[:, split], trees.gains[:, split] = divided[:, 0].clamp_min(0), its_gain
                trees.coordinate[:, split] = coordinate
                trees.threshold[:, split] = torch.where(its_gain > 0, self.edges[coordinate, its_place], _NEVER)
                above = _taken(bins, its_column) > its_place[:, None]
                box = torch.where((box == divided) & above, count, box)
                above = (self.bins[:, coordinate] > its_place).T
                everywhere = torch.where((everywhere == divided) & above, count, everywhere)
                count += 1
            new = torch.arange(count - chosen.shape[1], count, device=device)
            changed = torch.cat([chosen, new.expand_as(chosen)], 1)
        trees.boxes.copy_(self._values(rest, mass, box, LEAVES))
        self._subtract(trees, everywhere)
        return trees

    def _best_splits(self, sample: _Sample, box: Tensor, changed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gain, the candidate and the edge of the best split of some boxes `(FOLDS, b)`, each of this shape."""
        candidates, bins, _, along, mass = sample
        count, num_edges = changed.shape[1], self.edges.shape[1]
        number = torch.full((FOLDS, LEAVES), -1, device=box.device)
        number.scatter_(1, changed, torch.arange(count, device=box.device).expand_as(changed))
        number = number.gather(1, box)
        some = (number >= 0).flatten().nonzero()[:, 0]
        own = (number + self.folds * count).flatten()[some]
        along, mass = along.flatten()[some], None if mass is None else mass.flatten()[some]
        scores, whole = _scores(bins.flatten(0, 1)[some], along, mass, own, FOLDS * count, 1 + num_edges)
        scores = torch.where(self.edges[candidates].isfinite()[:, None], scores.unflatten(0, (FOLDS, -1)), -1.0)
        best = scores.flatten(2).max(2)
        gain = best.values - whole.view_as(changed)
        gain = torch.where(gain > _ROUNDING * best.values, gain, 0.0)  # a split of nothing gains a rounding error
        return gain, best.indices // num_edges, best.indices % num_edges

    def _values(self, rest: Tensor, mass: Tensor | None, box: Tensor, num_boxes: int) -> Tensor:
        """Values of the boxes `(FOLDS, num_boxes, c)`, from weighted residuals of the examples in them."""
        own = (box + self.folds * num_boxes).flatten()
        sums = rest.new_zeros(FOLDS * num_boxes, rest.shape[2]).index_add_(0, own, rest.flatten(0, 1))
        whole = torch.bincount(own, None if mass is None else mass.flatten(), minlength=len(sums))
        return (RATE * sums / (whole + PENALTY)[:, None]).unflatten(0, (FOLDS, -1))

    def _subtract(self, trees: _Trees | _SplitTrees, box: Tensor) -> None:
        """Subtracts trees from the residuals of all examples, by their boxes `(FOLDS, n)`, and adds to the gains."""
        self.gains.scatter_add_(1, trees.coordinate, trees.gains)
        self.rest -= trees.boxes[self.folds, box]


def _taken(bins: Tensor, column: Tensor) -> Tensor:
    """Bins `(FOLDS, m)` of one of the coordinates `(FOLDS,)` of each fold."""
    return bins.gather(2, column[:, None, None].expand(-1, bins.shape[1], 1))[..., 0]


def _scores(
    bins: Tensor, along: Tensor, weights: Tensor | None, own: Tensor, num_boxes: int, num_bins: int
) -> tuple[Tensor, Tensor]:
    """Scores of all splits of boxes.

    Args:
        bins: `(m, k)`, bins of m examples in k coordinates.
        along: `(m,)`, ρ times the weights.
        weights: `(m,)`; None: all are 1.
        own: `(m,)`, box of each example, below num_boxes.
        num_bins: most bins of a coordinate.

    Returns:
        (∫ ρ dμ)² / (λ + μ), summed over the two parts of each split, `(num_boxes, k, num_bins - 1)`, and of the boxes
        without a split, `(num_boxes,)`.
    """
    k = bins.shape[1]
    size = (num_boxes, k, num_bins)
    key = ((own[:, None] * k + torch.arange(k, device=bins.device)) * num_bins + bins).flatten()
    own_mass = None if weights is None else weights[:, None].expand_as(bins).flatten()
    mass = torch.bincount(key, own_mass, minlength=num_boxes * k * num_bins).view(size).to(along.dtype).cumsum(2)
    sums = along.new_zeros(num_boxes * k * num_bins)
    sums = sums.index_add_(0, key, along[:, None].expand_as(bins).flatten()).view(size).cumsum(2)
    whole, of_whole = sums[..., -1:], mass[..., -1:]
    below = sums.square() / (mass + PENALTY)
    above = (whole - sums).square() / (of_whole - mass + PENALTY)
    return (below + above)[..., :-1], below[:, 0, -1]


def _box(outcomes: Tensor) -> Tensor:
    """The index of a box from its splits' outcomes `(..., _LEVELS)`, the first as the highest bit."""
    box = torch.zeros_like(outcomes[..., 0], dtype=torch.int64)
    for level in range(_LEVELS):  # torch.compile sums int64 along a dimension wrongly on CPUs
        box = 2 * box + outcomes[..., level]
    return box


def _edges(column: Tensor, weights: Tensor | None = None) -> Tensor:
    """Candidate thresholds of a coordinate `(n,)`, ascending `(BINS - 1,)`, padded with infinity."""
    values, counts = column.unique(return_counts=True)
    bins = torch.arange(len(values), device=column.device)
    if len(values) > BINS:
        counts = counts if weights is None else torch.searchsorted(values, column.contiguous()).bincount(weights)
        bins = (2 * counts.cumsum(0) - counts) * BINS // (2 * counts.sum())  # by the middle of the ranks of a value
    first = (bins.diff() > 0).nonzero()[:, 0] + 1  # of each bin but the lowest
    found = column.new_full((BINS - 1,), torch.inf)
    found[: len(first)] = values[first - 1] / 2 + values[first] / 2
    return found


def _some(of: Tensor, count: int) -> Tensor:
    """A random subset of at most `count` entries, by the CPU's global generator."""
    return of[torch.randperm(len(of))[:count].sort().values.to(of.device)]
