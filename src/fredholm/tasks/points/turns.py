"""Orientation of clouds: whether they are turned at random, and rotations to their principal axes."""

import torch
from torch import Tensor

from fredholm.fields.frames.axes import principal_axes, skewed_signs
from fredholm.models.fitted.ridge_head import RidgeHead
from fredholm.tasks.targets import ClassTarget

from .augmentation import Rotation
from .point_set import PointSet

FEWEST_FOR_ANGLES = 30
"""Fewest clouds from whose angles alone random rotations are recognised."""
_CELLS = (3, 5)
"""Cells along an axis of the cubes in which the points of a cloud are counted."""
CHANCE, SURE = 2.5, 3.5
"""Size of a mean direction, in 1/√n, below which directions are random; standard errors that count as a difference."""
TOLERANCE = 1e-9
"""Gap of two principal variances, as a share of all three, and skewness, up to which chance decides."""


def turned(clouds: PointSet) -> Rotation:
    """The random rotations that clouds seem to have: any ("all"), about the vertical axis z ("axis"), or none ("none").

    Seen along an axis, a cloud is longest at an angle φ. Where clouds are turned about that axis at random, φ is
    uniform, so the means of exp(2iφ) and exp(4iφ) over n clouds are of order 1/√n; where all face one way, or one of
    two at right angles, one of them is about 1. A mean below 2.5/√n counts as random. So does the mean direction, seen
    from above, in which clouds are skewed. Upright clouds may look as long as wide from each side: they count as turned
    about z alone if their kurtosis along z differs from that along x and y, or their skewness along z from 0, by 3.5
    standard errors of the mean.

    With fewer than 30 clouds this test alone is unreliable. They count as turned in all ways only if, in addition, a
    ridge regression of classes on numbers of points in the cells of a cube has smaller left-out errors once the clouds
    are aligned; without classes they count as not turned.
    """
    if len(clouds) >= FEWEST_FOR_ANGLES:
        return _seem_turned(clouds)
    if (labels := clouds.labels) is None or _seem_turned(clouds) != "all":
        return "none"
    return "all" if _error(clouds, labels, align=True) < _error(clouds, labels, align=False) else "none"


def _error(clouds: PointSet, labels: Tensor, *, align: bool) -> float:
    """Mean squared left-out error of a ridge regression of classes on numbers of points in cells."""
    counted = list[Tensor]()
    for pos in clouds.pos.split(clouds.sizes.tolist()):
        if align:
            pos = pos @ principal_turns(pos[None], torch.ones(1, len(pos), dtype=torch.bool))[0]
        centred = pos - pos.mean(0)
        unit = centred / centred.norm(dim=1).max().clamp(min=torch.finfo(pos.dtype).tiny)
        shares = list[Tensor]()
        for side in _CELLS:
            cell = ((unit + 1) / 2 * side).long().clamp(0, side - 1)
            number = (cell * torch.tensor([side * side, side, 1])).sum(1)
            shares.append(number.bincount(minlength=side**3).double() / len(pos))
        counted.append(torch.cat(shares).sqrt())
    target = ClassTarget(names=clouds.classes)
    head = RidgeHead(len(counted[0]), target.num_outputs)
    head.fit(torch.stack(counted), labels, target)
    return float(head.error)


def _seem_turned(clouds: PointSet) -> Rotation:
    """The random rotations of clouds, by their shapes alone; see `turned`."""
    pos = [(part - part.mean(0)).double() for part in clouds.pos.split(clouds.sizes.tolist())]
    spread = torch.stack([part.T @ part / len(part) for part in pos])
    is_turned = []
    for a, b in ((1, 2), (0, 2), (0, 1)):
        angle = torch.atan2(2 * spread[:, a, b], spread[:, a, a] - spread[:, b, b])  # 2φ
        means = torch.stack([torch.polar(torch.ones_like(angle), k * angle).mean().abs() for k in (1, 2)])
        is_turned.append(bool((means < CHANCE / len(clouds) ** 0.5).all()))
    lean = torch.stack([(part.square().sum(1, keepdim=True) * part).mean(0) for part in pos])
    lean = lean / lean.norm(dim=1, keepdim=True).clamp_min(torch.finfo(lean.dtype).tiny)
    leans = float(lean[:, :2].mean(0).norm()) >= CHANCE / len(clouds) ** 0.5
    if leans or not is_turned[2]:
        return "none"
    return "all" if all(is_turned) and not _has_vertical(pos) else "axis"


def _has_vertical(pos: list[Tensor]) -> bool:
    """Whether the kurtosis of centred clouds differs along z from along x and y, or their skewness along z from 0."""
    kurtosis, skewness = torch.stack([_moments(part) for part in pos]).unbind(1)
    differences = torch.stack([kurtosis[:, 2] - kurtosis[:, :2].mean(1), skewness[:, 2]], 1)
    errors = differences.std(0) / len(pos) ** 0.5
    return bool((differences.mean(0).abs() > SURE * errors).any())


def _moments(pos: Tensor) -> Tensor:
    """Logarithm of the kurtosis, and the skewness, of a centred cloud `(N, 3)` along each axis, `(2, 3)`."""
    deviation = pos.square().mean(0).sqrt()
    unit = pos / deviation.clamp_min(TOLERANCE * pos.norm(dim=1).max()).clamp_min(torch.finfo(pos.dtype).tiny)
    return torch.stack([unit.pow(4).mean(0).clamp_min(TOLERANCE).log(), unit.pow(3).mean(0)])


@torch.no_grad()
def principal_turns(pos: Tensor, mask: Tensor) -> Tensor:
    """The rotation `(B, 3, 3)` of each cloud that brings its principal axes to x, y and z, the shortest first.

    Along y and z the skewness becomes positive; the sign of x makes the map a rotation. A cloud whose axes are not
    determined is not turned.

    Args:
        pos: `(B, N, 3)`.
        mask: `(B, N)`, True where a point exists.
    """
    shares = mask.double() / mask.sum(1, keepdim=True).clamp(min=1)
    centred = pos.double() - (shares[..., None] * pos).sum(1, keepdim=True)
    spread = (shares[..., None] * centred).mT @ centred
    vectors = principal_axes(spread, torch.zeros_like(mask[:, 0]), TOLERANCE).vectors
    signs = skewed_signs(vectors, centred @ vectors, shares, proper=True, tolerance=TOLERANCE).signs
    return (vectors * signs[:, None]).to(pos.dtype)
