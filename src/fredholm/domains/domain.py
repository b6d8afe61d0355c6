"""The abstract domain: points, what they weigh, and which of them exist."""

import abc
from typing import NamedTuple, Self

import torch
from torch import Tensor


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

    def shifted(self, offset: int) -> "GridBlock":
        """The same block, starting `offset` points later."""
        return self._replace(start=self.start + offset)

    def same_geometry(self, other: "GridBlock") -> bool:
        """Whether both blocks sample the same positions."""
        return self[1:] == other[1:]


class Domain(abc.ABC):
    """Where a signal lives: N points in R^s with the mass that a measure gives each of them.

    Attributes:
        pos: positions, `(N, s)`, or `(B, N, s)` when every batch entry has its own; always finite.
        weights: mass of each point, `(N,)` or `(B, N)`, >= 0, exactly 0 where `mask` is False.
            The default measure is uniform with total mass 1 over the points that exist.
        mask: `(N,)` or `(B, N)` bool, True = this point exists; None = all exist.

    A domain is a value: never change one in place.
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
    is_generated: bool = False
    """Whether positions follow from numbers alone, so that the domain may follow a signal to its device."""
    uniform_parts: tuple[tuple[int, float], ...] | None
    """(number of points, mass) of consecutive runs that share their mass evenly; None when weights were given."""

    @abc.abstractmethod
    def __init__(self) -> None: ...

    def _set(self, pos: Tensor, weights: Tensor | None, mask: Tensor | None) -> None:
        name = type(self).__name__
        if pos.ndim not in (2, 3) or not pos.dtype.is_floating_point:
            raise ValueError(
                f"{name}: pos must be a float tensor of shape (N, s) or (B, N, s); got {tuple(pos.shape)}, {pos.dtype}"
            )
        if pos.shape[-1] == 0:
            raise ValueError(f"{name}: positions need at least one coordinate; got pos of shape {tuple(pos.shape)}")
        _check_points(name, "mask", mask, pos)
        _check_points(name, "weights", weights, pos)
        if mask is not None:
            if mask.dtype != torch.bool:
                raise TypeError(f"{name}: mask must be bool with True = this point exists; got {mask.dtype}")
            kept = mask.any(0) if mask.ndim > pos.ndim - 1 else mask
            pos = torch.where(kept[..., None] | torch.isfinite(pos), pos, 0.0)
        if not torch.compiler.is_compiling() and not bool(torch.isfinite(pos).all()):
            raise ValueError(f"{name}: pos holds NaN or infinite values at points that exist; remove or mask them")
        self.mask = mask
        self.pos = pos
        self.uniform_parts = ((pos.shape[-2], 1.0),) if weights is None else None
        self.weights = self._weights_over(mask) if weights is None else _explicit(name, weights, mask)

    @property
    def num_points(self) -> int:
        """Number of points N, masked ones included."""
        return self.pos.shape[-2]

    @property
    def pos_dim(self) -> int:
        """Number of coordinates s of a position."""
        return self.pos.shape[-1]

    @property
    def batch_size(self) -> int | None:
        """Batch size when positions, weights or mask differ within the batch, else None."""
        if self.pos.ndim == 3:
            return self.pos.shape[0]
        for per_point in (self.weights, self.mask):
            if per_point is not None and per_point.ndim == 2:
                return per_point.shape[0]
        return None

    @property
    def device(self) -> torch.device:
        """Device of the positions."""
        return self.pos.device

    def to(self, device: torch.device | str) -> Self:
        """The same domain on another device."""
        if self.device == torch.device(device):
            return self
        mask = None if self.mask is None else self.mask.to(device)
        return self._with(pos=self.pos.to(device), weights=self.weights.to(device), mask=mask)

    def restrict(self, mask: Tensor | None) -> Self:
        """The domain without the points where `mask` (`(N,)` or `(B, N)`, True = keep) is False.

        A uniform measure is spread anew over the points that stay; given weights are kept as they are.
        """
        if mask is None:
            return self
        _check_points(type(self).__name__, "mask", mask, self.pos, per_batch=True)
        if mask.dtype != torch.bool:
            raise TypeError(f"{type(self).__name__}: mask must be bool with True = keep; got {mask.dtype}")
        joint = mask if self.mask is None else mask & self.mask
        return self._with(pos=self.pos, weights=self._weights_over(joint), mask=joint)

    def _with(self, *, pos: Tensor, weights: Tensor, mask: Tensor | None) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other.pos, other.weights, other.mask = pos, weights, mask
        return other

    def _weights_over(self, mask: Tensor | None) -> Tensor:
        if self.uniform_parts is None:
            return _drop(self.weights, mask)
        if mask is None:
            mask = torch.ones(self.num_points, dtype=torch.bool, device=self.device)
        pieces = []
        for part, (_, mass) in zip(mask.split([n for n, _ in self.uniform_parts], -1), self.uniform_parts, strict=True):
            kept = part.to(self.pos.dtype)
            pieces.append(kept * (mass / kept.sum(-1, keepdim=True).clamp_min(1.0)))
        return torch.cat(pieces, dim=-1)

    def displacement(self, query_pos: Tensor) -> Tensor:
        """x - y from every point y of this domain to every x of `query_pos` `(..., Nq, s)`: `(..., Nq, N, s)`."""
        return self.wrap(query_pos[..., :, None, :] - self.pos[..., None, :, :])

    def wrap(self, displacement: Tensor) -> Tensor:
        """The shortest displacement on the torus when periodic (components in [-1/2, 1/2)), else unchanged."""
        return displacement - torch.floor(displacement + 0.5) if self.is_periodic else displacement

    def __repr__(self) -> str:
        batch = "" if self.batch_size is None else f", batch_size={self.batch_size}"
        if len(self.grid_blocks) == 1 and self.grid_blocks[0].num_points == self.num_points:
            shape = ", ".join(map(str, self.grid_blocks[0].shape))
            return f"{type(self).__name__}({shape}{', periodic=True' if self.is_periodic else ''})"
        return f"{type(self).__name__}(num_points={self.num_points}, pos_dim={self.pos_dim}{batch})"


def _check_points(name: str, what: str, value: Tensor | None, pos: Tensor, *, per_batch: bool = False) -> None:
    if value is None:
        return
    expected = [tuple(pos.shape[-2:-1])]
    if pos.ndim == 3:
        expected.append(tuple(pos.shape[:2]))
    fits = tuple(value.shape) in expected or (
        (per_batch or pos.ndim == 2) and value.ndim == 2 and value.shape[1] == pos.shape[-2]
    )
    if pos.ndim == 3 and value.ndim == 2 and value.shape[0] != pos.shape[0]:
        fits = False
    if not fits:
        raise ValueError(
            f"{name}: {what} must have one entry a point, {' or '.join(map(str, expected))} (or (B, N)); "
            f"got shape {tuple(value.shape)} for pos of shape {tuple(pos.shape)}"
        )
    if value.device != pos.device:
        raise ValueError(f"{name}: {what} is on {value.device} but pos is on {pos.device}; move them to one device")


def _drop(weights: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return weights
    return torch.where(mask, weights, 0.0)


def _explicit(name: str, weights: Tensor, mask: Tensor | None) -> Tensor:
    if not weights.dtype.is_floating_point:
        raise TypeError(f"{name}: weights must be a float tensor; got {weights.dtype}")
    weights = _drop(weights, mask)
    if not torch.compiler.is_compiling():
        if not bool(torch.isfinite(weights).all()):
            raise ValueError(f"{name}: weights hold NaN or infinite values at points that exist")
        if bool((weights < 0).any()):
            raise ValueError(f"{name}: weights are masses and must be >= 0; got {weights.min().item():.4g}")
    return weights
