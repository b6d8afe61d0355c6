"""How clouds lie in space, and how to turn all of them alike."""

import torch
from torch import Tensor

from fredholm.fields.frames.axes import principal_axes, skewed_signs

from .augmentation import Rotation
from .point_set import PointSet

FEWEST_TO_TELL_TURNS = 30
"""Clouds, by which one can say whether they are turned at random."""
TOLERANCE = 1e-9
"""Gap of two principal variances, as a share of all three, and skewness, up to which chance decides."""


def turned(clouds: PointSet) -> Rotation:
    """How clouds lie: turned in all ways, about one vertical axis ("axis", which is z), or all alike ("none").

    Seen along an axis, a cloud is longest at an angle φ. Clouds that are turned about that axis have any φ, so that the
    means of exp(2iφ) and exp(4iφ) over n clouds vanish but for chance, of size 1/√n; clouds that all face one way, or
    one of two at right angles, give one of about 1. A mean below 2.5/√n is taken for chance. Fewer than 30 clouds tell
    nothing.
    """
    if len(clouds) < FEWEST_TO_TELL_TURNS:
        return "none"
    pos = [part - part.mean(0) for part in clouds.pos.split(clouds.sizes.tolist())]
    spread = torch.stack([part.T @ part / len(part) for part in pos])
    is_turned = []
    for a, b in ((1, 2), (0, 2), (0, 1)):
        angle = torch.atan2(2 * spread[:, a, b], spread[:, a, a] - spread[:, b, b])  # 2φ
        means = torch.stack([torch.polar(torch.ones_like(angle), k * angle).mean().abs() for k in (1, 2)])
        is_turned.append(bool((means < 2.5 / len(clouds) ** 0.5).all()))
    if all(is_turned):
        return "all"
    return "axis" if is_turned == [False, False, True] else "none"


@torch.no_grad()
def principal_turns(pos: Tensor, mask: Tensor) -> Tensor:
    """The rotation `(B, 3, 3)` of each cloud that brings its principal axes to x, y and z, the shortest first.

    Along y and z the skewness becomes positive; x is what makes it a rotation. A cloud whose axes are not determined
    stays as it is.

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
