"""The abstract domain: points, their mask and their mass."""

import abc
import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Self, TypeVar, final

import torch
from torch import Tensor

from fredholm.domains.checks import values_can_be_read
from fredholm.domains.pair_list import PairList

Answer = TypeVar("Answer")
UniformParts = tuple[tuple[int, float | Tensor], ...]
"""Consecutive runs of points that share a mass evenly: number of points and mass, which may be `(B, 1)`."""


class GridBlock(NamedTuple):
    """A run of consecutive points of a domain that form a regular grid in row-major order.

    `start` is the index of its first point, `shape` its number of cells along each axis, `spacing` the distance between
    neighbours, `origin` the position of the first cell, `periodic` whether displacements wrap round the unit box.
    """

    start: int
    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    origin: tuple[float, ...]
    periodic: bool

    @property
    def num_points(self) -> int:
        """Number of grid points in the block."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def displacements(self, device: torch.device) -> Tensor:
        """Displacements x - y of any two cells, `(2 n_1 - 1, ..., 2 n_s - 1, s)` float64; on a torus they wrap round.

        Entry `[j_1 - i_1 + n_1 - 1, ...]` is that of cell x = i and cell y = j.
        """
        axes = [
            torch.arange(n - 1, -n, -1, dtype=torch.float64, device=device) * h
            for n, h in zip(self.shape, self.spacing, strict=True)
        ]
        displacement = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
        return wrapped(displacement) if self.periodic else displacement

    def shifted(self, offset: int) -> "GridBlock":
        """The same block, starting `offset` points later."""
        return self._replace(start=self.start + offset)

    def same_geometry(self, other: "GridBlock") -> bool:
        """Whether both blocks sample the same positions."""
        return self[1:] == other[1:]


class Domain(abc.ABC):
    """The points of a signal: N positions in R^s, each with the mass that a measure gives it.

    Attributes:
        pos: positions, `(N, s)`, or `(B, N, s)` when every batch entry has its own; always finite.
        weights: mass of each point, `(N,)` or `(B, N)`, >= 0, exactly 0 where `mask` is False.
            The default measure is uniform with total mass 1 over the points that exist.
        mask: `(N,)` or `(B, N)` bool, True = this point exists; None = all exist.

    A domain is a value: never change one in place. Points on a surface, on a mesh or on a grid of your own need no new
    class: use `Points(pos, weights)`, with the weights of their quadrature rule.
    """

    pos: Tensor
    weights: Tensor
    mask: Tensor | None
    times: Tensor | None = None
    """Non-decreasing times `(N,)` or `(B, N)` when the domain orders its points by time."""
    grid_blocks: tuple[GridBlock, ...] = ()
    """The runs of consecutive points that form regular grids."""
    is_periodic: bool = False
    """Whether displacements wrap round the unit box."""
    has_index_order: bool = True
    """Whether the order of indices is meaningful without times; False for scattered points."""
    is_generated: bool = False
    """Whether positions are computed from sizes and spacings, so that the domain may move to a signal's device."""
    uniform_parts: UniformParts | None
    """The runs that share their mass evenly; None when weights were given."""
    given_counts_per_mass: Tensor | None = None
    """`counts_per_mass` of points that represent those of another domain; None: it follows from the measure."""
    given_past_mass: Tensor | None = None
    """`past_mass` at points that represent another integral's queries, `(B', N)`; None: it follows from the measure."""
    pair_bias: Tensor | None = None
    """The `bias` of `weigh_pairs`, `(B', H', Nq, N)`: bool, or the logarithm of a density."""
    pair_density: Tensor | None = None
    """Listed m_ij as a dense matrix, because log m has no gradient at m = 0; None: it follows from `pair_bias`."""
    pair_list: PairList | None = None
    """The `pairs` of `list_pairs`: all pairs of a query and a point with a mass."""
    lists_means: bool = False
    """Whether the listed pairs of each query have total mass 1, also for kernels that count points."""
    features: Tensor | None = None
    """Features of each point that a kernel reads beside its position, `(B, N, c)`, such as those of a node's edge."""
    _cache: dict[Hashable, Any] | None = None
    """Results of `cached` by their keys; None: no cache."""

    @abc.abstractmethod
    def __init__(self) -> None: ...

    def _set(self, pos: Tensor, weights: Tensor | None, mask: Tensor | None, *, is_finite: bool = False) -> None:
        name = type(self).__name__
        check_tensor(name, "pos", pos)
        if pos.ndim not in (2, 3) or not pos.dtype.is_floating_point:
            raise ValueError(
                f"{name}: pos must be a float tensor of shape (N, s) or (B, N, s); got {tuple(pos.shape)}, {pos.dtype}"
            )
        if pos.shape[-1] == 0:
            raise ValueError(f"{name}: positions need at least one coordinate; got pos of shape {tuple(pos.shape)}")
        check_mask(name, mask, pos)
        _check_points(name, "weights", weights, pos)
        _check_one_batch(name, mask, weights)
        self.mask = mask
        self.pos = self._without_absent(pos, mask)
        is_known = is_finite or self.is_generated
        if not is_known and values_can_be_read(self.pos) and not bool(torch.isfinite(self.pos).all()):
            raise ValueError(f"{name}: pos holds NaN or infinite values at points that exist; remove or mask them")
        self.uniform_parts = ((pos.shape[-2], 1.0),) if weights is None else None
        self.weights = self._weights_over(mask) if weights is None else _checked_weights(name, weights, mask)

    @property
    def num_points(self) -> int:
        """Number of points N, masked ones included."""
        return self.pos.shape[-2]

    @property
    def pos_dim(self) -> int:
        """Number of coordinates s of a position."""
        return self.pos.shape[-1]

    @property
    def middle(self) -> Tensor:
        """Mean position of the points that exist, `(1, s)` or `(B, 1, s)`, without a gradient.

        Positions are centred at this point before they are rounded, so that their differences stay accurate.
        """
        return self.cached("middle", self._middle)

    def _middle(self) -> Tensor:
        # a sum may overflow 16 bits
        pos, mask = self.pos.detach().to(torch.promote_types(self.pos.dtype, torch.float32)), self.mask
        if mask is None:
            return pos.sum(-2, keepdim=True) / max(self.num_points, 1)
        exists = (mask if mask.ndim < pos.ndim else mask.any(0))[..., None]
        return torch.where(exists, pos, 0.0).sum(-2, keepdim=True) / exists.sum(-2, keepdim=True).clamp_min(1)

    @property
    def is_ordered(self) -> bool:
        """Whether the points are ordered, by times or by indices."""
        return self.times is not None or self.has_index_order

    @property
    def batch_size(self) -> int | None:
        """Batch size when positions, weights or mask differ within the batch, else None."""
        return self._own_batch()

    def _own_batch(self) -> int | None:
        """`batch_size`; a method, since the compiler follows `super()` to methods alone."""
        if self.pos.ndim == 3:
            return self.pos.shape[0]
        for per_point in (self.weights, self.mask):
            if per_point is not None and per_point.ndim == 2:
                return per_point.shape[0]
        if self.pair_bias is not None and self.pair_bias.shape[0] > 1:
            return self.pair_bias.shape[0]
        if self.pair_list is not None and self.pair_list.batch > 1:
            return self.pair_list.batch
        return None

    @property
    def whole(self) -> "Domain | None":
        """The whole domain, where these points are one process's part of it (`distributed.Shard`); else None."""
        return None

    @property
    def held(self) -> slice:
        """The slice of `whole` that these points are; all points where `whole` is None."""
        return slice(0, self.num_points)

    @property
    def counts(self) -> Tensor:
        """Mass of each point for a kernel that counts points, `(N,)` or `(B, N)`.

        With the uniform measure every point that exists counts 1; where parts share their mass, points count 1 on
        average; given weights are used unchanged, unless `counting_each` rescales them.
        """
        return self.weights * self.counts_per_mass

    @property
    def counts_per_mass(self) -> Tensor:
        """Ratio of `counts` to `weights`, `(1,)` or `(B, 1)`."""
        if self.lists_means:
            return self.weights.new_ones(1)
        if self.given_counts_per_mass is not None:
            return self.given_counts_per_mass
        if self.uniform_parts is None:
            return self.weights.new_ones(1)
        if self.mask is None:
            return self.weights.new_full((1,), self.num_points)
        return self.mask.sum(-1, keepdim=True).to(self.weights.dtype)

    def counting_each(self) -> Self:
        """The same measure with `counts` of mean 1 over the points that exist, whatever the total mass.

        For weights that are shares of a total, such as those of `trapezoid_weights`: with equal shares every kernel
        gives what it gives without weights.
        """
        total = self.weights.sum(-1, keepdim=True)
        exists = torch.ones_like(self.weights) if self.mask is None else self.mask.to(self.weights.dtype)
        other = self._with(pos=self.pos, weights=self.weights, mask=self.mask)
        other.given_counts_per_mass = exists.sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)
        return other

    def weigh_pairs(self, bias: Tensor) -> Self:
        """The domain with a measure that differs from query to query: point j weighs ω_j m_ij at query i.

        Args:
            bias: `(Nq, N)`, `(B, Nq, N)` or `(B, H, Nq, N)`, H = the kernel's heads; bool, True = m_ij is 1, else 0; or
                float, log m_ij (-inf = 0), which for attention is what is added to a score.

        Raises:
            ValueError, TypeError: on another shape or device, or values that are NaN or +inf.
        """
        name = f"{type(self).__name__}.weigh_pairs"
        check_tensor(name, "bias", bias)
        if not 2 <= bias.ndim <= 4 or bias.shape[-1] != self.num_points:
            raise ValueError(
                f"{name}: bias must be (Nq, {self.num_points}), (B, Nq, {self.num_points}) or (B, H, Nq, "
                f"{self.num_points}), a value a pair of query and point; got {tuple(bias.shape)}"
            )
        if bias.dtype != torch.bool and not bias.dtype.is_floating_point:
            raise TypeError(f"{name}: bias must be bool (True = keep) or float (a log-density); got {bias.dtype}")
        if self.pair_list is not None:
            raise ValueError(f"{name}: the domain lists its pairs already (list_pairs); put the weights into the list")
        if bias.device != self.device and not self.is_generated:
            raise ValueError(f"{name}: bias is on {bias.device} but the domain is on {self.device}")
        if bias.dtype != torch.bool and values_can_be_read(bias) and not bool((bias < torch.inf).all()):
            raise ValueError(f"{name}: bias holds NaN or +inf; a log-density is below +inf, and -inf hides a pair")
        other = self._with(pos=self.pos, weights=self.weights, mask=self.mask)
        other.pair_density = None
        other.pair_bias = bias[(None,) * (3 - bias.ndim)][:, None] if bias.ndim < 4 else bias
        return other

    def list_pairs(self, pairs: PairList, *, is_mean: bool = False) -> Self:
        """The domain with a measure listed pair by pair: at query i point j weighs ω_j m_ij, and 0 unless listed.

        Args:
            pairs: the pairs, and m of each.
            is_mean: whether Σ_j ω_j m_ij = 1 at each query: a mean, for kernels that count points too, and for those
                that divide by the mass of the past.

        Raises:
            ValueError: on a list for another number of points or another batch, and beside `weigh_pairs`.
        """
        name = f"{type(self).__name__}.list_pairs"
        if pairs.num_points != self.num_points:
            raise ValueError(f"{name}: the list is for {pairs.num_points} points; the domain has {self.num_points}")
        if self.pair_bias is not None:
            raise ValueError(f"{name}: the domain weighs pairs already (weigh_pairs); put those weights into the list")
        if pairs.batch > 1 and self.batch_size not in (None, pairs.batch):
            raise ValueError(f"{name}: the list is for {pairs.batch} entries; the domain has {self.batch_size}")
        other = self._with(pos=self.pos, weights=self.weights, mask=self.mask)
        other.pair_list = pairs
        other.lists_means = is_mean
        return other

    def with_dense_pairs(self) -> Self:
        """The same measure with listed pairs as pair weights, `(B', 1, Nq, N)`: for small N."""
        if self.pair_list is None:
            return self
        dtypes = (group.weights.dtype for group in self.pair_list.groups)
        m = self.pair_list.dense(functools.reduce(torch.promote_types, dtypes, self.weights.dtype))
        other = self._with(pos=self.pos, weights=self.weights, mask=self.mask)
        other.pair_list, other.pair_density = None, m
        other.pair_bias = torch.where(m > 0, torch.where(m > 0, m, 1.0).log(), -torch.inf)
        return other

    def as_met_by(self, queries: slice, times: Tensor | None) -> Self:
        """The domain restricted to some queries: with the pair weights of these, and the points' times."""
        other = self._with(pos=self.pos, weights=self.weights, mask=self.mask)
        other.times = times
        other.pair_bias = None if self.pair_bias is None else self.pair_bias[:, :, queries]
        other.pair_density = None if self.pair_density is None else self.pair_density[:, :, queries]
        return other

    @property
    def pair_weights(self) -> Tensor | None:
        """m_ij of `weigh_pairs`, `(B', H', Nq, N)`; None where all are 1."""
        if self.pair_bias is None or self.pair_density is not None:
            return self.pair_density
        if self.pair_bias.dtype == torch.bool:
            return self.pair_bias.to(self.weights.dtype)
        return self.pair_bias.exp()

    @property
    def is_uniform(self) -> bool:
        """Whether all points that exist weigh the same, and no weights were given."""
        return self.uniform_parts is not None and len(self.uniform_parts) == 1

    @property
    def is_even(self) -> bool:
        """Whether all points that exist, and all pairs that are not hidden, weigh the same."""
        return (
            self.is_uniform
            and self.pair_list is None
            and (self.pair_bias is None or self.pair_bias.dtype == torch.bool)
        )

    @property
    def is_plain(self) -> bool:
        """Whether nothing is hidden and all points weigh the same."""
        return self.mask is None and self.pair_bias is None and self.is_even

    def has_points_of(self, other: "Domain") -> bool:
        """Whether both domains have the same points in the same order: the same positions, times and masks.

        Points that represent another integral's queries, with `given_past_mass`, differ from all others.

        Generated points are compared by their geometry, others value by value. Where values cannot be read, as by the
        compiler, two tensors count as different.
        """
        if self is other:
            return True
        if self.whole is not None or other.whole is not None:
            return self._is_the_same_part(other)
        is_generated = self.is_generated and other.is_generated
        if not is_generated and self.pos is not other.pos and not values_can_be_read(self.pos, other.pos):
            return False  # before symbolic sizes are compared: a graph would be specialised to their being different
        if (self.num_points, self.pos_dim, self.is_periodic) != (other.num_points, other.pos_dim, other.is_periodic):
            return False
        if not _are_equal(self.mask, other.mask) or not _are_equal(self.given_past_mass, other.given_past_mass):
            return False
        gridded = sum(block.num_points for block in self.grid_blocks) == self.num_points
        if is_generated and gridded and self.grid_blocks == other.grid_blocks:
            return (self.times is None) == (other.times is None)
        return _are_equal(self.pos, other.pos) and _are_equal(self.times, other.times)

    def _is_the_same_part(self, other: "Domain") -> bool:
        """`has_points_of` where one is a part of a `whole`: compares the wholes, so that all processes agree."""
        return False

    def total(self, sums: Tensor) -> Tensor:
        """Sums over all points of the measure, from sums over these; the same unless other processes hold a part."""
        return sums

    def greatest(self, largest: Tensor) -> Tensor:
        """Maxima over all points, from the maxima over these points, `(B, C)`; see `total`."""
        return largest

    @final
    def where_existing(self, u: Tensor) -> Tensor:
        """Values at these points, `(B, N, C)`, and 0 at those that do not exist."""
        return u if self.mask is None else torch.where(self.mask[..., None], u, 0.0)

    def everywhere(self, u: Tensor) -> Tensor:
        """Values at all points, `(B, N, C)`, from the values at these points; see `total`."""
        return u

    def widest(self, dtype: torch.dtype) -> torch.dtype:
        """Dtype of sums over all points, from the dtype that these points need."""
        return dtype

    def mapped(self, where: Callable[["Domain"], "Domain"]) -> "Domain":
        """Applies a function to the domain; for a part, to the whole domain, and returns that part of the result."""
        return where(self)

    def with_cache(self) -> Self:
        """The same domain with a cache (see `cached`), for one pass of a model, whose layers share the results.

        Without a cache in a compiled graph, where the compiler shares common computations.
        """
        if torch.compiler.is_compiling():
            return self
        other = self._with(pos=self.pos, weights=self.weights, mask=self.mask)
        other._cache = {}
        return other

    @property
    def has_cache(self) -> bool:
        """Whether `cached` keeps its results."""
        # checked first: a graph that reads the dictionary is recompiled whenever its contents change
        return not torch.compiler.is_compiling() and self._cache is not None

    def cached(self, key: Hashable, compute: Callable[[], Answer]) -> Answer:
        """Computes a function of positions and weights, kept under a key if the domain has a cache."""
        if not self.has_cache or self._cache is None:
            return compute()
        if key not in self._cache:
            self._cache[key] = compute()
        return self._cache[key]

    @property
    def device(self) -> torch.device:
        """Device of the positions."""
        return self.pos.device

    def to(self, device: torch.device | str) -> Self:
        """The same domain on another device; its dtype stays, since an operator rounds positions to its signal's.

        Raises:
            TypeError: for a dtype.
        """
        if isinstance(device, torch.dtype):
            raise TypeError(
                f"{type(self).__name__}.to: a domain goes to a device, not to {device}; operators round its positions "
                "to the dtype of their signal"
            )
        if self.device == torch.device(device):
            return self
        mask = None if self.mask is None else self.mask.to(device)
        other = self._with(pos=self.pos.to(device), weights=self.weights.to(device), mask=mask)
        other.times = None if self.times is None else self.times.to(device)
        other.pair_bias = None if self.pair_bias is None else self.pair_bias.to(device)
        other.pair_density = None if self.pair_density is None else self.pair_density.to(device)
        other.pair_list = None if self.pair_list is None else self.pair_list.to(device)
        other.features = None if self.features is None else self.features.to(device)
        per_mass = self.given_counts_per_mass
        other.given_counts_per_mass = None if per_mass is None else per_mass.to(device)
        if self.uniform_parts is not None:
            moved = [(n, mass.to(device) if isinstance(mass, Tensor) else mass) for n, mass in self.uniform_parts]
            other.uniform_parts = tuple(moved)
        return other

    def restrict(self, mask: Tensor | None) -> Self:
        """The domain without the points where `mask` (`(N,)` or `(B, N)`, True = keep) is False.

        A uniform measure is spread anew over the points that stay; given weights are kept as they are.
        """
        if mask is None:
            return self
        name = type(self).__name__
        check_mask(name, mask, self.pos)
        _check_one_batch(name, mask, self.weights)
        joint = mask if self.mask is None else mask & self.mask
        return self._with(pos=self._without_absent(self.pos, joint), weights=self._weights_over(joint), mask=joint)

    def _with(self, *, pos: Tensor, weights: Tensor, mask: Tensor | None) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other.pos, other.weights, other.mask, other._cache = pos, weights, mask, None
        return other

    def _without_absent(self, pos: Tensor, mask: Tensor | None) -> Tensor:
        """Position 0 where no point exists, so that nothing computed from it overflows; a grid stays whole."""
        if mask is None or sum(block.num_points for block in self.grid_blocks) == pos.shape[-2]:
            return pos
        kept = mask.any(0) if mask.ndim == pos.ndim else mask
        index = torch.arange(pos.shape[-2], device=pos.device)
        for block in self.grid_blocks:
            kept = kept | ((index >= block.start) & (index < block.start + block.num_points))
        return torch.where(kept[..., None], pos, 0.0)

    def _weights_over(self, mask: Tensor | None) -> Tensor:
        if self.uniform_parts is None:
            return _dropped(self.weights, mask)
        counts = [n for n, _ in self.uniform_parts]
        exists = [None] * len(counts) if mask is None else mask.to(self.pos.dtype).split(counts, -1)
        pieces: list[Tensor] = []
        for kept, (n, mass) in zip(exists, self.uniform_parts, strict=True):
            if kept is None:
                even = self.pos.new_ones(n)
                pieces.append(even * (mass / n) if n else even)
            else:
                pieces.append(kept * (mass / kept.sum(-1, keepdim=True).clamp_min(1.0)))
        if len(pieces) == 1:
            return pieces[0]
        batch = torch.broadcast_shapes(*(piece.shape[:-1] for piece in pieces))
        return torch.cat([piece.expand(*batch, -1) for piece in pieces], dim=-1)

    def displacement(self, query_pos: Tensor) -> Tensor:
        """x - y from every point y of this domain to every x of `query_pos` `(..., Nq, s)`: `(..., Nq, N, s)`."""
        return self.wrap(query_pos[..., :, None, :] - self.pos[..., None, :, :])

    def wrap(self, displacement: Tensor) -> Tensor:
        """The shortest displacement on the torus when periodic, else unchanged."""
        return wrapped(displacement) if self.is_periodic else displacement

    def __repr__(self) -> str:
        batch = "" if self.batch_size is None else f", batch_size={self.batch_size}"
        if len(self.grid_blocks) == 1 and self.grid_blocks[0].num_points == self.num_points:
            shape = ", ".join(map(str, self.grid_blocks[0].shape))
            return f"{type(self).__name__}({shape}{', periodic=True' if self.is_periodic else ''})"
        return f"{type(self).__name__}(num_points={self.num_points}, pos_dim={self.pos_dim}{batch})"


def wrapped(displacement: Tensor) -> Tensor:
    """The shortest displacement on the torus of the unit box: components in [-1/2, 1/2)."""
    return displacement - torch.floor(displacement + 0.5)


def _are_equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is other:
        return True
    if one is None or other is None or one.shape != other.shape:
        return False
    comparable = one.dtype == other.dtype and one.device == other.device and values_can_be_read(one, other)
    return comparable and torch.equal(one, other)


def check_tensor(name: str, what: str, value: object) -> None:
    """Raises a TypeError that begins with `name` unless `value` is a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: {what} must be a tensor; got {type(value).__name__}; torch.as_tensor makes one")


def device_of(*given: Tensor | None) -> torch.device | None:
    """Device of the first of `given` that is a tensor."""
    return next((value.device for value in given if isinstance(value, Tensor)), None)


def check_mask(name: str, mask: Tensor | None, pos: Tensor) -> None:
    """Raises an error that begins with `name` unless `mask` is None or a bool mask of the points of `pos`."""
    _check_points(name, "mask", mask, pos)
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"{name}: mask must be bool, True = this point exists; got {mask.dtype}")


def _check_points(name: str, what: str, value: Tensor | None, pos: Tensor) -> None:
    """Raises an error that begins with `name` unless `value` is None or has one entry a point of `pos`."""
    if value is None:
        return
    check_tensor(name, what, value)
    num_points, shape = pos.shape[-2], tuple(value.shape)
    batch = str(pos.shape[0]) if pos.ndim == 3 else "B"
    batch_fits = len(shape) == 1 or (len(shape) == 2 and (pos.ndim == 2 or shape[0] == pos.shape[0]))
    if not batch_fits or shape[-1] != num_points:
        raise ValueError(
            f"{name}: {what} must have one entry a point, ({num_points},) or ({batch}, {num_points}); "
            f"got shape {shape} for pos of shape {tuple(pos.shape)}"
        )
    if value.device != pos.device:
        raise ValueError(f"{name}: {what} is on {value.device} but pos is on {pos.device}; move them to one device")


def _check_one_batch(name: str, mask: Tensor | None, weights: Tensor | None) -> None:
    """Raises a ValueError that begins with `name` where mask and weights have two different batch sizes."""
    if mask is None or weights is None or min(mask.ndim, weights.ndim) < 2:
        return
    if mask.shape[0] != weights.shape[0]:
        raise ValueError(
            f"{name}: mask {tuple(mask.shape)} has another batch size than the points' weights {tuple(weights.shape)}"
        )


def _dropped(weights: Tensor, mask: Tensor | None) -> Tensor:
    """The weights, 0 where no point exists."""
    if mask is None:
        return weights
    return torch.where(mask, weights, 0.0)


def _checked_weights(name: str, weights: Tensor, mask: Tensor | None) -> Tensor:
    """Weights that were given, 0 where no point exists; raises unless they are finite masses >= 0."""
    if not weights.dtype.is_floating_point:
        raise TypeError(f"{name}: weights must be a float tensor; got {weights.dtype}")
    weights = _dropped(weights, mask)
    if values_can_be_read(weights):
        if not bool(torch.isfinite(weights).all()):
            raise ValueError(f"{name}: weights hold NaN or infinite values at points that exist")
        if bool((weights < 0).any()):
            raise ValueError(f"{name}: weights are masses and must be >= 0; got {weights.min().item():.4g}")
    return weights
