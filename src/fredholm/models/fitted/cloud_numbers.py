"""Numeric descriptors of a whole point cloud, invariant to the order of its points: counts, shares and moments.

Legend
    x_i     a point, less the mean of all, in units of √(mean ‖x_i‖²);   N  number of points;   C  mean of x_i x_iᵀ
    w_i     L⁻¹ x_i, where L Lᵀ = C + FLAT tr(C) I: the whitened cloud, unique up to a rotation
    y       either of x and w, in units of √(mean ‖y_i‖²);   D_ij  ‖y_i - y_j‖;   r_i  ‖y_i‖
    B_i     points within a radius R of y_i, n_i of them;   m_i  their mean;   T_i  their covariance over its trace

    all rotations    of x and of w: quantiles of r;  over pairs of points the shares of D, of the cosine of y_i and y_j
                     and of the area of the triangle of both and the centre, below some thresholds;  ‖mean r² y‖,
                     mean r⁴ and the mean of ⟨y_i, y_j⟩³ (Mardia's skewness of w);  for each R quantiles over i of
                     tr T_i², 27 det T_i, n_i / N, ‖m_i - y_i‖ / R and of y_iᵀ T_i y_i / r_i², and the shares of
                     3 tr(T_i T_j) below some thresholds over pairs that are near, farther and far apart;
                     roots of the eigenvalues of C
    about the axis   quantiles of z and of the distance from the z axis, and of each of SLABS parts of the height the
                     share of points, and mean and deviation of their distances from the axis
    no rotation      quantiles of x and y, C, and the roots of the shares of points in cells of cubes about the centre

tr T_i² is 1/3 for a ball, 1/2 for a plane and 1 for a line: T distinguishes linear, flat and scattered neighbourhoods
without eigenvectors, whose directions may depend on rounding. Source: distributions of distances and areas are Osada
et al.'s (Shape distributions, 2002), shapes of neighbourhoods Weinmann et al.'s (2015), and rotation-invariant pairs
of surface elements Wahl et al.'s (2003). All are also computed from w: w of a cloud and w of its image under any linear
map are equal up to a rotation.
"""

import math
from typing import Literal, final

import torch
from torch import Tensor

Turns = Literal["none", "axis", "all"]
"""Rotations that descriptors are invariant to: none, those about z, or all."""
FLAT = 1e-4
RADII = (0.25, 0.5, 1.0)
RANKS = 13
"""Number of quantiles of a coordinate or radius."""
FEW_RANKS = 5
"""Number of quantiles of a measure of neighbourhoods."""
SLABS = 5
CELLS = (3, 5)
"""Numbers of cells along an axis of the cubes that hold the cloud."""
_DISTANCES = tuple(0.25 * k for k in range(1, 13))
_COSINES = tuple(-0.88 + 0.15 * k for k in range(13))
_AREAS = tuple(0.1 * k for k in range(1, 13))
_ALIKE = (0.85, 1.05, 1.25, 1.45, 1.9)
"""Thresholds that avoid the exact values of lattices and planes, which rounding would put on either side."""
_NUDGE = 1e-6
"""Shift, in cells, that puts points on a border of two cells into one of them despite rounding."""
_RANGES = ((0.0, 0.7), (0.7, 1.4), (1.4, 4.0))
_OF_FRAME = RANKS + len(_DISTANCES) + len(_COSINES) + len(_AREAS) + 3
_OF_RADIUS = 5 * FEW_RANKS + len(_RANGES) * len(_ALIKE)
NUM_OF_TURNS: dict[Turns, int] = {
    "all": 2 * (_OF_FRAME + len(RADII) * _OF_RADIUS) + 3,
    "axis": 2 * RANKS + 3 * SLABS,
    "none": 2 * RANKS + 6 + sum(side**3 for side in CELLS),
}
"""Number of descriptors of each kind; weaker invariances include the descriptors of the stronger ones."""


def num_numbers(turns: Turns) -> int:
    """Number of descriptors of `numbers_of_clouds`."""
    kinds: dict[Turns, tuple[Turns, ...]] = {"all": ("all",), "axis": ("all", "axis"), "none": ("all", "axis", "none")}
    return sum(NUM_OF_TURNS[kind] for kind in kinds[turns])


@final
class CloudFrame:
    """The points of clouds, centred and scaled, and whitened.

    Args:
        pos: `(B, N, 3)`, N at least 1; finite where a point exists.
        exists: `(B, N)`, True where a point exists.

    Attributes:
        x, w: float64 `(B, N, 3)`; 0 where there is no point.
        centre, size: the mean of the points `(B, 3)`, and the root of their mean squared distance from it `(B, 1)`.
        spread: C, `(B, 3, 3)`.
        count: the number of points of each cloud, at least 1, float64 `(B,)`.
    """

    def __init__(self, pos: Tensor, exists: Tensor) -> None:
        pos = torch.where(exists[..., None], pos.double(), 0.0)
        self.exists, self.count = exists, exists.sum(1).clamp_min(1).double()
        self.centre = pos.sum(1) / self.count[:, None]
        centred = torch.where(exists[..., None], pos - self.centre[:, None], 0.0)
        self.size = (centred.square().sum((1, 2))[:, None] / self.count[:, None]).sqrt()
        self.x = _scaled(centred, self.count)
        self.spread = self.x.mT @ self.x / self.count[:, None, None]
        self._factor = _cholesky(self.spread)
        self.w = _scaled(_solved(self._factor, self.x), self.count)

    def whitened_normals(self, normals: Tensor) -> Tensor:
        """Lᵀ n, the normals `(B, N, 3)` of the surface in w, of any length."""
        a, b, d, e, f, g = (each[:, None] for each in self._factor)
        first, second, third = normals.unbind(2)
        return torch.stack([a * first + b * second + d * third, e * second + f * third, g * third], 2)


def numbers_of_clouds(frame: CloudFrame, turns: Turns) -> Tensor:
    """Computes the descriptors, float64 `(B, num_numbers)`; all of an empty cloud are 0.

    Args:
        frame: the points.
        turns: rotations that the descriptors are invariant to.
    """
    x, exists, count = frame.x, frame.exists, frame.count
    found = [*_Frame(x, exists, count).numbers(), *_Frame(frame.w, exists, count).numbers()]
    found.append(eigenvalues(frame.spread).clamp_min(0).sqrt())
    if turns != "all":
        found += _about_axis(x, exists)
    if turns == "none":
        found += _as_it_lies(x, exists, count, frame.spread)
    return torch.where(exists.any(1, keepdim=True), torch.cat(found, 1), 0.0)


@final
class _Frame:
    """Rotation-invariant descriptors of y."""

    def __init__(self, y: Tensor, exists: Tensor, count: Tensor) -> None:
        self.y, self.exists, self.count = y, exists, count
        self.pairs = other_pairs(exists)
        self.square = y.square().sum(2)
        self.inner = y @ y.mT
        self.distance = distances(y)

    def numbers(self) -> list[Tensor]:
        y, square, r = self.y, self.square, self.square.sqrt()
        size = r[:, :, None] * r[:, None]
        cosine = self.inner / size.clamp_min(1e-12)
        area = (size.square() - self.inner.square()).clamp_min(0).sqrt() / 2
        count = self.count[:, None]
        moments = torch.stack(
            [
                ((square[..., None] * y).sum(1) / count).norm(dim=1),
                (square.square().sum(1, keepdim=True) / count)[:, 0],
                self.inner.pow(3).sum((1, 2)) / self.count.square(),
            ],
            1,
        )
        found = [
            quantiles(r[:, None], self.exists, RANKS),
            shares_below(self.distance, _DISTANCES, self.pairs),
            shares_below(cosine, _COSINES, self.pairs),
            shares_below(area, _AREAS, self.pairs),
            moments,
        ]
        for radius in RADII:
            found += self._within(radius)
        return found

    def _within(self, radius: float) -> list[Tensor]:
        """Descriptors of the neighbourhoods within a radius."""
        y, exists = self.y, self.exists
        near = ((self.distance < radius) & exists[:, None] & exists[:, :, None]).double()
        number = near.sum(2).clamp_min(1)[..., None]
        mean = near @ y / number
        products = (y[..., :, None] * y[..., None, :]).flatten(2)
        shape = near @ products / number - (mean[..., :, None] * mean[..., None, :]).flatten(2)
        trace = shape[..., [0, 4, 8]].sum(2, keepdim=True)
        has_extent = trace > 1e-9
        shape = torch.where(has_extent, shape / torch.where(has_extent, trace, 1.0), 0.0)
        measured = [
            shape.square().sum(2),
            27 * determinant(shape.unflatten(2, (3, 3))),
            number[..., 0] / self.count[:, None],
            (mean - y).norm(dim=2) / radius,
            (shape * products).sum(2) / self.square.clamp_min(1e-12),
        ]
        found = [quantiles(torch.stack(measured, 1), exists, FEW_RANKS)]
        alike = 3 * shape @ shape.mT
        for low, high in _RANGES:
            found.append(shares_below(alike, _ALIKE, self.pairs & (self.distance >= low) & (self.distance < high)))
        return found


def other_pairs(exists: Tensor) -> Tensor:
    """The pairs of different points that exist, `(B, N, N)`."""
    return exists[:, :, None] & exists[:, None] & ~torch.eye(exists.shape[1], dtype=torch.bool, device=exists.device)


def distances(y: Tensor) -> Tensor:
    """Distances between the points `(B, N, 3)`, `(B, N, N)`."""
    square = y.square().sum(2)
    return (square[:, :, None] + square[:, None] - 2 * y @ y.mT).clamp_min(0).sqrt()


def shares_below(values: Tensor, thresholds: tuple[float, ...], of: Tensor) -> Tensor:
    """Shares `(B, thresholds)` of the pairs `of` below each threshold; 0 where there are no pairs."""
    number = of.sum((1, 2)).clamp_min(1)
    values = torch.where(of, values, torch.inf).float().unsqueeze(1)
    # all at once: large graphs take long to export
    below = (values < values.new_tensor(thresholds).view(-1, 1, 1)).sum((2, 3), dtype=torch.int32)
    return (below / number.unsqueeze(1)).double()


def slabs(height: Tensor, exists: Tensor) -> Tensor:
    """The part of the height, from 0 to SLABS - 1, in which each point `(B, N)` lies."""
    low = torch.where(exists, height, torch.inf).amin(1, keepdim=True)
    high = torch.where(exists, height, -torch.inf).amax(1, keepdim=True)
    return (
        ((height - low) / (high - low).clamp_min(1e-9) * SLABS + _NUDGE)
        .nan_to_num(0.0)
        .floor()
        .clamp(0, SLABS - 1)
        .long()
    )


def cells(x: Tensor, side: int) -> Tensor:
    """The cell of each point `(B, N)` in a cube of `side`³ cells about the centre that holds the cloud."""
    unit = x / x.square().sum(2).amax(1).sqrt().clamp_min(1e-9)[:, None, None]
    cell = ((unit + 1) / 2 * side + _NUDGE).floor().clamp(0, side - 1).long()
    return cell[..., 0] * side * side + cell[..., 1] * side + cell[..., 2]


def _about_axis(x: Tensor, exists: Tensor) -> list[Tensor]:
    height, away = x[..., 2], x[..., :2].norm(dim=2)
    found = [quantiles(torch.stack([height, away], 1), exists, RANKS)]
    slab = slabs(height, exists)
    for k in range(SLABS):
        inside = (exists & (slab == k)).double()
        number = inside.sum(1)
        mean = (inside * away).sum(1) / number.clamp_min(1)
        spread = ((inside * (away - mean[:, None]).square()).sum(1) / number.clamp_min(1)).sqrt()
        found.append(torch.stack([number / exists.sum(1).clamp_min(1), mean, spread], 1))
    return found


def _as_it_lies(x: Tensor, exists: Tensor, count: Tensor, spread: Tensor) -> list[Tensor]:
    found = [quantiles(x[..., :2].mT, exists, RANKS)]
    found.append(torch.stack([spread[:, a, b] for a, b in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))], 1))
    for side in CELLS:
        counts = x.new_zeros(x.shape[0], side**3).scatter_add(1, cells(x, side), exists.to(x.dtype))
        found.append((counts / count[:, None]).sqrt())
    return found


def _scaled(y: Tensor, count: Tensor) -> Tensor:
    """y scaled to mean square 1; 0 where all points coincide."""
    size = (y.square().sum((1, 2)) / count).sqrt()[:, None, None]
    return torch.where(size > 1e-150, y / torch.where(size > 1e-150, size, 1.0), 0.0)


def _cholesky(spread: Tensor) -> tuple[Tensor, ...]:
    """L of C + FLAT tr(C) I, by rows, `(B,)` each."""
    c = spread + (FLAT * spread.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]).clamp_min(1e-12) * torch.eye(
        3, dtype=spread.dtype, device=spread.device
    )
    a = c[:, 0, 0].sqrt()
    b, d = c[:, 0, 1] / a, c[:, 0, 2] / a
    e = (c[:, 1, 1] - b * b).sqrt()
    f = (c[:, 1, 2] - b * d) / e
    g = (c[:, 2, 2] - d * d - f * f).sqrt()
    return a, b, d, e, f, g


def _solved(factor: tuple[Tensor, ...], x: Tensor) -> Tensor:
    """L⁻¹ x, by forward substitution."""
    a, b, d, e, f, g = (each[:, None] for each in factor)
    first = x[..., 0] / a
    second = (x[..., 1] - b * first) / e
    third = (x[..., 2] - d * first - f * second) / g
    return torch.stack([first, second, third], 2)


def determinant(matrices: Tensor) -> Tensor:
    """Determinants of matrices `(..., 3, 3)`."""
    a, b, c = matrices.unbind(-2)
    return (a * torch.linalg.cross(b, c)).sum(-1)


def eigenvalues(matrices: Tensor) -> Tensor:
    """Eigenvalues of symmetric matrices `(..., 3, 3)`, in descending order, `(..., 3)`.

    They are the mean + 2 size y with 4 y³ - 3 y = half. Newton's method finds the isolated root near ±1, and the other
    two follow from it; some runtimes of exported models lack an arccosine in float64.
    """
    eye = torch.eye(3, dtype=matrices.dtype, device=matrices.device)
    mean = matrices.diagonal(dim1=-2, dim2=-1).mean(-1)
    rest = matrices - mean[..., None, None] * eye
    size = (rest.square().sum((-2, -1)) / 6).sqrt()
    half = determinant(rest / size.clamp_min(1e-30)[..., None, None]) / 2
    to = half.abs().clamp(max=1)
    alone = math.sqrt(0.75) + (1 - math.sqrt(0.75)) * to  # error of at most 0.007, which three Newton steps remove
    for _ in range(3):
        alone = alone - (alone * (4 * alone.square() - 3) - to) / (12 * alone.square() - 3)
    apart = (3 * (1 - alone.square()).clamp_min(0)).sqrt()
    roots = torch.stack([alone, (apart - alone) / 2, (-apart - alone) / 2], -1)
    values = mean[..., None] + 2 * size[..., None] * torch.where(half < 0, -1.0, 1.0)[..., None] * roots
    return values.sort(-1, descending=True).values


def quantiles(values: Tensor, exists: Tensor, count: int) -> Tensor:
    """Quantiles of existing values `(B, K, N)` at the ranks (k + 1/2) / count, interpolated, `(B, K count)`."""
    ordered = torch.where(exists[:, None], values, torch.inf).sort(2).values
    last = exists.sum(1, keepdim=True).clamp_min(1) - 1
    ranks = (torch.arange(count, dtype=values.dtype, device=values.device) + 0.5) / count
    at = ranks * last
    below = at.floor().long()
    above = torch.minimum(below + 1, last)
    low, high = (ordered.gather(2, each[:, None].expand(-1, values.shape[1], -1)) for each in (below, above))
    return (low + (high - low) * (at - below)[:, None]).flatten(1)
