"""Stationary kernels on regular grids: a function of x - y sampled on a lattice is a filter.

Legend
    h           spacing of the key grid along an axis         n, m    its cells, and those of the query grid
    W, k        the filter and its number of taps             d, r    dilation and stride
    p           cells by which the first window starts before the first key ("lo"); "hi" at the other end

    v_o = Σ_t W_t u_{r·o + d·t - p}            an ordinary filter: the query grid has spacing r·h
    v_o = Σ_{r·i + d·t = o + p} W_t u_i        a transposed one: the query grid has spacing h / r

Outside the key grid u continues by the boundary mode: zeros, reflection at the outermost keys, their values, or
periodically.
"""

import abc
import math
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from fredholm._settings import is_count
from fredholm.domains import GridBlock
from fredholm.domains.domain import wrapped
from fredholm.kernels.kernel import Kernel

BoundaryMode = Literal["zeros", "reflect", "replicate", "circular"]

LATTICE_TOLERANCE = 1e-3
"""Largest distance, in cells, of a position from its lattice point."""


class FilterGeometry(NamedTuple):
    """The geometry of a filter, without its coefficients; each tuple has one entry per axis."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # (lo, hi): cells by which the windows reach beyond the keys; < 0: fall short
    mode: BoundaryMode
    transposed: bool

    @property
    def reach(self) -> tuple[int, ...]:
        """Number of cells from the first tap to the last, both included."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.size, self.dilation, strict=True))


class Stationary(Kernel):
    """Marker: between two aligned regular grids the kernel is one filter, in groups of channels.

    With a uniform counting measure the integral is the formula on top of this file; any other measure multiplies u.

    Attributes:
        groups: channel groups that do not mix.
        is_filter: whether the kernel is a filter, which may depend on its options.
    """

    groups: int
    is_filter: bool = True

    @abc.abstractmethod
    def filter_geometry(self, keys: GridBlock, queries: GridBlock) -> FilterGeometry | str:
        """The filter from a signal on `keys` to `queries`, or a sentence with the reason why there is none."""

    @abc.abstractmethod
    def filter_weight(self, keys: GridBlock, queries: GridBlock) -> Tensor:
        """The filter's coefficients: `(d_out, d_in / groups, *size)`, transposed `(d_in, d_out / groups, *size)`."""


class DisplacementFilter(Stationary):
    """Marker: where it is a filter, κ(x, y) = ψ(x - y), with a tap for every displacement at which ψ may be nonzero.

    W_t = ψ(h (first + lo - t)), first being the position of the first query, in cells from the first key. There is a
    filter where the queries' spacing is a whole multiple of the keys', wherever the first query lies.
    """

    def unfiltered(self, keys: GridBlock, queries: GridBlock) -> str | None:
        """Reason why the kernel is no function of displacement between two grids, in a sentence; None where it is."""
        return None

    def tap_range(self, back: int, first: float, n: int, h: float) -> tuple[int, int]:
        """First and last of the taps t = 0 … n - 1 + `back`, at h (first + back - t), where ψ may be nonzero.

        The last may lie before the first. A causal kernel vanishes at displacements below 0.
        """
        return 0, min(n - 1 + back, math.floor(first + back + LATTICE_TOLERANCE)) if self.is_causal else n - 1 + back

    @final
    def filter_geometry(self, keys: GridBlock, queries: GridBlock) -> FilterGeometry | str:
        """See `Stationary.filter_geometry`; on a torus a tap for every cell."""
        if self.pos_dim is not None and len(keys.shape) != self.pos_dim:
            return f"the grid has {len(keys.shape)} axes, and the kernel reads positions with {self.pos_dim}"
        reason = self.unfiltered(keys, queries)
        if reason is not None:
            return reason
        if keys.periodic != queries.periodic:
            return "of the grids of signal and queries, one is periodic"
        lattice = relative_lattice(keys, queries, (1,) * len(keys.shape))
        if lattice is None:
            return "the queries are not spaced by whole cells of the signal's grid"
        size, padding = [], []
        for (step, first), n, m, h in zip(lattice, keys.shape, queries.shape, keys.spacing, strict=True):
            back = step * (m - 1)
            if keys.periodic:
                lo, taps = n // 2, n
            else:
                least, most = self.tap_range(back, first, n, h)
                # one tap even where ψ vanishes everywhere, since torch has no empty filter
                least = min(least, n - 1 + back)
                lo, taps = back - least, max(most, least) - least + 1
            size.append(taps)
            padding.append((lo, back - lo + taps - n))
        ones = (1,) * len(size)
        mode: BoundaryMode = "circular" if keys.periodic else "zeros"
        return FilterGeometry(tuple(size), tuple(step for step, _ in lattice), ones, tuple(padding), mode, False)

    @final
    def tap_displacements(self, keys: GridBlock, queries: GridBlock) -> Tensor:
        """x - y at each tap, `(*size, s)` float64.

        Raises:
            ValueError: where there is no filter between the two grids.
        """
        geometry = self.filter_geometry(keys, queries)
        lattice = relative_lattice(keys, queries, (1,) * len(keys.shape))
        if isinstance(geometry, str) or lattice is None:
            raise ValueError(
                f"{type(self).__name__}: no filter leads from the grid {keys} to the grid {queries}: {geometry}"
            )
        like = next(self.parameters(), None)
        axes = []
        for size, (lo, _), (_, first), h in zip(geometry.size, geometry.padding, lattice, keys.spacing, strict=True):
            whole = nearest(first)
            first = whole if abs(first - whole) <= LATTICE_TOLERANCE else first
            taps = torch.arange(size, dtype=torch.float64, device=None if like is None else like.device)
            axes.append((first + lo - taps) * h)
        displacement = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
        return wrapped(displacement) if keys.periodic else displacement


def relative_lattice(keys: GridBlock, queries: GridBlock, refine: tuple[int, ...]) -> list[tuple[int, float]] | None:
    """Position of one grid on the lattice of another, along one axis.

    Args:
        keys: the grid whose spacing, divided by `refine`, is the unit, and whose first cell is the origin.
        queries: the other grid.
        refine: >= 1.

    Returns:
        Spacing of the queries, in whole units, and position of the first one; None where a spacing is not whole.
    """
    if len(keys.shape) != len(queries.shape):
        return None
    axes = []
    for n, h, x, key_h, key_x, r in zip(
        queries.shape, queries.spacing, queries.origin, keys.spacing, keys.origin, refine, strict=True
    ):
        unit = key_h / r
        step = nearest(h / unit) if n > 1 else 1
        if step < 1 or abs(h / unit - step) * (n - 1) > LATTICE_TOLERANCE:
            return None
        axes.append((step, (x - key_x) / unit))
    return axes


def nearest(x: float) -> int:
    """Rounds to the nearest whole number."""
    # not round(), whose sign test near x = 0 fails the compiler's guards; and floor division of symbolic sizes would
    # make strides that torch.export cannot save
    return int(math.floor(x + 0.5))  # noqa: RUF046


def boundary_map(index: Tensor, n: int, mode: BoundaryMode) -> Tensor:
    """The key, 0 ... n - 1, whose value the continued signal has at each whole `index`; -1 where it is zero."""
    if mode == "circular":
        return index % n
    if mode == "replicate":
        return index.clamp(0, n - 1)
    if mode == "reflect":
        folded = index % max(2 * (n - 1), 1)
        return torch.minimum(folded, 2 * (n - 1) - folded)
    return torch.where((index >= 0) & (index < n), index, -1)


def check_channels(kernel: str, in_dim: int, out_dim: int, groups: int) -> None:
    """Raises ValueError, in the name of `kernel`, unless the groups divide both channel counts."""
    for name, size in {"in_dim": in_dim, "out_dim": out_dim, "groups": groups}.items():
        if not is_count(size):
            raise ValueError(f"{kernel}: {name} must be an integer >= 1; got {size!r}")
    if in_dim % groups or out_dim % groups:
        raise ValueError(
            f"{kernel}: groups must divide both channel counts; got {groups} groups for {in_dim} in and {out_dim} out"
        )
