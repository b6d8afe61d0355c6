"""Numeric descriptors of features of points, such as colours, over a whole cloud: moments, and where values lie.

Legend
    x, w, y, D   as in `cloud_numbers.py`: the points of a cloud, scaled, also whitened, either of both, and distances
    ⟨·⟩          means over the points of a cloud
    f            a feature of a point, less its mean;  s² = ⟨f²⟩
    n            a unit normal, in the frame of y: that of x, or for w the normalised Lᵀ n

    values          mean, s, minimum, maximum and ⟨f ‖x‖⟩
    all rotations   ‖⟨f x⟩‖, and the mean of f_i f_j / s² over pairs in each of RANGES of distance (Moran's I, 1950)
    about the axis  ⟨f⟩ over each of SLABS parts of the height, times its share of the points, and ⟨f ρ⟩ with ρ the
                    distance from the axis
    no rotation     ⟨f⟩ over each cell of a cube about the centre, times its share of the points
    normals         for both y quantiles of n·y/‖y‖ and of its absolute value, and shares of |n_i·n_j|, of n_i·n_j and
                    of |n_i·(y_j - y_i)| / D_ij below some thresholds over pairs in each of RANGES

Components of normals are features too where no rotation leaves the descriptors as they are, and n_z about the axis.
Pairs of points with normals are those of Drost et al. (Model globally, match locally, 2010).
"""

import torch
from torch import Tensor

from fredholm.models.fitted.cloud_numbers import (
    FEW_RANKS,
    RANKS,
    SLABS,
    CloudFrame,
    Turns,
    cells,
    distances,
    other_pairs,
    quantiles,
    shares_below,
    slabs,
)

MOST_FEATURES = 64
"""Most features of a point that are summarised by values; with more features only their means are used."""
MOST_PLACED = 8
"""Most features of a point whose arrangement is described too."""
RANGES = ((0.0, 0.35), (0.35, 0.7), (0.7, 1.4), (1.4, 4.0))
_SIDE = 3
"""Cells along an axis of the cube."""
_SIGNED = (-0.8, -0.3, 0.3, 0.8)
_ALIKE = (0.1, 0.3, 0.6, 0.8, 0.95)
_SLOPES = (0.05, 0.15, 0.35, 0.6, 0.85)
_OF_VALUES = 5
_OF_NORMALS = 2 * (FEW_RANKS + RANKS + len(RANGES) * (len(_SIGNED) + len(_ALIKE) + len(_SLOPES)))


def read_features(num_features: int, normal: tuple[int, ...], turns: Turns) -> list[int]:
    """Indices of the features that are read as numbers; of a normal those components that rotations keep."""
    hidden = {"none": (), "axis": normal[:2], "all": normal}[turns]
    return [k for k in range(num_features) if k not in hidden]


def num_of_features(num_features: int, normal: tuple[int, ...], turns: Turns) -> int:
    """Number of descriptors of `numbers_of_features`."""
    count = len(read_features(num_features, normal, turns))
    if count > MOST_FEATURES:
        each = 1
    elif count > MOST_PLACED:
        each = _OF_VALUES
    else:
        each = _OF_VALUES + 1 + len(RANGES)
        each += SLABS + 1 if turns != "all" else 0
        each += _SIDE**3 if turns == "none" else 0
    return each * count + (_OF_NORMALS if normal else 0)


def numbers_of_features(frame: CloudFrame, features: Tensor, normal: tuple[int, ...], turns: Turns) -> Tensor:
    """Computes the descriptors, float64 `(B, num_of_features)`; all of an empty cloud are 0.

    Args:
        frame: the points.
        features: `(B, N, F)`, finite where a point exists.
        normal: indices of the features nx, ny and nz, in this order; empty: there are no normals.
        turns: rotations that the descriptors are invariant to; they rotate normals too.
    """
    exists, features = frame.exists, torch.where(frame.exists[..., None], features.double(), 0.0)
    own = features[..., read_features(features.shape[2], normal, turns)]
    found = _of_values(frame, own)
    if own.shape[2] <= MOST_PLACED:
        found += _of_places(frame, own, turns)
    if normal:
        found += _of_normals(frame, features[..., list(normal)])
    return torch.where(exists.any(1, keepdim=True), torch.cat(found, 1), 0.0)


def _of_values(frame: CloudFrame, features: Tensor) -> list[Tensor]:
    mean = features.sum(1) / frame.count[:, None]
    if features.shape[2] > MOST_FEATURES:
        return [mean]
    there = frame.exists[..., None]
    rest = torch.where(there, features - mean[:, None], 0.0)
    deviation = (rest.square().sum(1) / frame.count[:, None]).sqrt()
    along = (rest * frame.x.norm(dim=2, keepdim=True)).sum(1) / frame.count[:, None]
    least = torch.where(there, features, torch.inf).amin(1)
    largest = torch.where(there, features, -torch.inf).amax(1)
    return [mean, deviation, least, largest, along]


def _of_places(frame: CloudFrame, features: Tensor, turns: Turns) -> list[Tensor]:
    """Descriptors of where the values of each feature lie."""
    x, exists, count = frame.x, frame.exists, frame.count[:, None]
    rest = torch.where(exists[..., None], features - (features.sum(1) / count)[:, None], 0.0)
    found = [(rest.mT @ x / count[..., None]).norm(dim=2)]
    square = (rest.square().sum(1) / count).clamp_min(1e-18)
    distance, pairs = distances(x), other_pairs(exists)
    for low, high in RANGES:
        near = (pairs & (distance >= low) & (distance < high)).double()
        number = near.sum((1, 2)).clamp_min(1)[:, None]
        found.append((rest * (near @ rest)).sum(1) / number / square)
    if turns != "all":
        found.append((rest * x[..., :2].norm(dim=2, keepdim=True)).sum(1) / count)
        found.append(_sums(rest, slabs(x[..., 2], exists), SLABS) / count)
    if turns == "none":
        found.append(_sums(rest, cells(x, _SIDE), _SIDE**3) / count)
    return found


def _sums(rest: Tensor, part: Tensor, num_parts: int) -> Tensor:
    """Sums of values `(B, N, F)` over the parts of points `(B, N)`, `(B, num_parts F)`."""
    sums = rest.new_zeros(rest.shape[0], num_parts, rest.shape[2])
    return sums.scatter_add(1, part[..., None].expand_as(rest), rest).flatten(1)


def _of_normals(frame: CloudFrame, normals: Tensor) -> list[Tensor]:
    found, exists = list[Tensor](), frame.exists
    pairs = other_pairs(exists)
    for y, n in ((frame.x, normals), (frame.w, frame.whitened_normals(normals))):
        n = n / n.norm(dim=2, keepdim=True).clamp_min(1e-12)
        outward = (n * y).sum(2) / y.norm(dim=2).clamp_min(1e-12)
        found += [quantiles(outward[:, None], exists, FEW_RANKS), quantiles(outward.abs()[:, None], exists, RANKS)]
        distance, inner = distances(y), n @ n.mT
        slope = ((n @ y.mT - (n * y).sum(2, keepdim=True)) / distance.clamp_min(1e-12)).abs()
        for low, high in RANGES:
            near = pairs & (distance >= low) & (distance < high)
            found.append(shares_below(inner, _SIGNED, near))
            found.append(shares_below(inner.abs(), _ALIKE, near))
            found.append(shares_below(slope, _SLOPES, near))
    return found
