"""Windows in their own scale: what a model of forecasts sees and tells.

l and s of a window are its last value, and its deviation, at least FLOOR of the channel's in training.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from .structure import Base
from .windows import WindowSet

Scale = Literal["window", "training"]
"""Whether s is the window's own, or the channel's deviation in training."""
FLOOR = 0.05


@final
class Scaled(NamedTuple):
    """Windows `(n, N, C)` and answers `(n, H, F)` in their own scale, answers as they are, what these are counted from,
    and the scale `(n, 1, C)`."""

    seen: Tensor
    answers: Tensor
    told: Tensor
    base: Tensor
    scale: Tensor


def scale_of(seen: Tensor, deviation: Tensor, kind: Scale) -> tuple[Tensor, Tensor]:
    """l and s of windows `(n, N, C)`, both `(n, 1, C)`."""
    scale = deviation.expand(seen.shape[0], 1, -1)
    if kind == "window":
        scale = torch.maximum(seen.std(1, correction=0, keepdim=True), FLOOR * scale)
    return seen[:, -1:], scale


def scaled(windows: WindowSet, columns: Sequence[int], deviation: Tensor, kind: Scale, base: Base | None) -> Scaled:
    """Windows, and of their answers those channels, counted from a base or, where there is none, from l."""
    seen, told = windows.seen(), windows.told()
    last, scale = scale_of(seen, deviation, kind)
    begins = last[..., columns].expand_as(told) if base is None else base.told(windows, columns)
    answers = (told - begins) / scale[..., columns]
    return Scaled(seen_in_scale(seen, last, scale), answers, told, begins, scale)


def seen_in_scale(seen: Tensor, last: Tensor, scale: Tensor) -> Tensor:
    """(u - l) / s, and 0 where that is below what float32 tells from 1 beside numbers of order 1.

    A bank divides a lag by its deviation, and would else learn from the rounding of a lag that equals the last value,
    as in a series that repeats itself.
    """
    found = (seen - last) / scale
    return torch.where(found.abs() > torch.finfo(torch.float32).eps, found, 0.0)
