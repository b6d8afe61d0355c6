"""Stationary kernels on regular grids: a function of x - y sampled on a lattice is a filter.

Legend
    h           spacing of the key grid along an axis         n, m    its cells, and those of the query grid
    W, k        the filter and its number of taps             d, r    dilation and stride
    p           cells by which the first window starts before the first key ("lo"); "hi" at the other end

    v_o = Σ_t W_t u_{r·o + d·t - p}            an ordinary filter: the query grid has spacing r·h
    v_o = Σ_{r·i + d·t = o + p} W_t u_i        a transposed one: the query grid has spacing h / r

Outside the key grid u continues as its boundary mode says: with zeros, by reflection at the outermost keys, with their
values, or periodically.
"""

import abc
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fredholm._settings import is_count
from fredholm.domains import GridBlock
from fredholm.kernels.kernel import Kernel

BoundaryMode = Literal["zeros", "reflect", "replicate", "circular"]

LATTICE_TOLERANCE = 1e-3
"""How far, in cells, a position may lie from the lattice point that it is taken for."""


class FilterGeometry(NamedTuple):
    """Everything about a filter but its coefficients; each tuple has an entry an axis."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # (lo, hi): cells by which the windows reach beyond the keys; < 0: fall short
    mode: BoundaryMode
    transposed: bool

    @property
    def reach(self) -> tuple[int, ...]:
        """Cells from the first tap to the last, both included."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.size, self.dilation, strict=True))


class Stationary(Kernel):
    """Marker: between two aligned regular grids the kernel is one filter, in groups of channels.

    With a uniform counting measure the integral is the formula on top of this file; any other measure multiplies u.
    """

    groups: int

    @abc.abstractmethod
    def filter_geometry(self, keys: GridBlock, queries: GridBlock) -> FilterGeometry | None:
        """The filter that takes a signal on `keys` to `queries`; None where these two grids have none."""

    @abc.abstractmethod
    def filter_weight(self, keys: GridBlock, queries: GridBlock) -> Tensor:
        """Its coefficients: `(d_out, d_in / groups, *size)`, or if transposed `(d_in, d_out / groups, *size)`."""


def relative_lattice(keys: GridBlock, queries: GridBlock, refine: tuple[int, ...]) -> list[tuple[int, float]] | None:
    """Where one grid lies on the lattice of another, an axis at a time.

    Args:
        keys: the grid whose spacing, divided by `refine`, is the unit, and whose first cell is the origin.
        queries: the other grid.
        refine: >= 1.

    Returns:
        Spacing of the queries (a whole number of units), and where the first one lies; None where a spacing is none.
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
    """The nearest whole number."""
    return int(x + 0.5) if x >= 0 else -int(0.5 - x)


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
