"""Sequences, the default domain of a signal, and the trapezoid weights of irregular samples."""

import math
from typing import final

import torch
from torch import Tensor

from fredholm._settings import is_count
from fredholm.domains.checks import is_open, values_can_be_read
from fredholm.domains.domain import Domain, GridBlock, check_mask, check_tensor, device_of

SPACING = 1 / 256
"""Distance between neighbours of `Sequence(n)`, for every n."""


@final
class Sequence(Domain):
    """Points on a line in non-decreasing order.

    A sequence extends: positions do not depend on the number of points, so that padding and later points
    change nothing. (`Grid(n)` refines instead: n cells of the unit interval.)

    `Sequence(n)` has n points at k / 256, k = 0 … n - 1, with an order but no times: a unit of length is 256 points, so
    that Fourier features of σ cycles per unit length have waves of about 256 / σ points (ITNet's k / n is that of a
    sequence of 256). `Sequence(n, spacing=h, start=t)` has regular samples in a unit of time, at t + k h.
    `Sequence(times=t)` has the points t, `(N,)` or `(B, N)`.

    Args:
        length: number of points n >= 0; give this or `times`.
        spacing: distance between neighbouring samples, any unit, > 0; only with `length`. The points then have times.
        start: time of the first sample; only with `spacing`, default 0.
        first: index k of the first point, an integer, of a later part of a sequence; not with `spacing` or `times`.
        times: non-decreasing finite times (over the points that exist), any unit. Far from 0, such as seconds since
            1970, float32 has a resolution of minutes only: give float64, or count from the first sample.
        weights: mass of each point, `(N,)` or `(B, N)`, >= 0; default uniform with total mass 1. For irregular
            samples `trapezoid_weights(times, mask)` gives the inverse-density measure.
        mask: `(N,)` or `(B, N)` bool, True = this point exists.
        device: of positions that follow from a length; None: that of weights or mask, else torch's default. Not with
            `times`.

    Raises:
        ValueError: on both or none of `length` and `times`, a `spacing` or `start` that is no regular sampling, times
            that decrease or are rounded so coarsely that most steps are lost, and what `Points` refuses.

    Positions that follow from a length are float64, as those of a `Grid`.
    """

    def __init__(
        self,
        length: int | None = None,
        *,
        spacing: float | None = None,
        start: float | None = None,
        first: int = 0,
        times: Tensor | None = None,
        weights: Tensor | None = None,
        mask: Tensor | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if (length is None) == (times is None):
            raise ValueError("Sequence: give either a length, Sequence(n), or times, Sequence(times=t)")
        if times is None:
            n = _checked_length(length)
            # sizes in torch.export are symbolic, as in is_count
            is_whole = isinstance(first, int | torch.SymInt) and not isinstance(first, bool)
            if not is_whole or (spacing is not None and first):
                raise ValueError(
                    f"Sequence: first is the integer place of the first point, without a spacing; got first={first!r} "
                    f"and spacing={spacing!r}; with a spacing give start="
                )
            origin = _checked_start(n, spacing, start)
            device = device_of(weights, mask) if device is None else device
            points = torch.arange(first, first + n, dtype=torch.float64, device=device)
            self.is_generated = True
            if spacing is None:
                points = points * SPACING
            else:
                self.times = points = origin + points * spacing
            if n > 0:
                h, x = (SPACING, first * SPACING) if spacing is None else (float(spacing), origin)
                self.grid_blocks = (GridBlock(0, (n,), (h,), (x,), False),)
            self._set(points[:, None], weights, mask)
            return
        if spacing is not None or start is not None or first:
            raise ValueError("Sequence: times say where the samples are; leave spacing, start and first out")
        if device is not None:
            raise ValueError(f"Sequence: the times are on {times.device}; leave device out, or move them")
        _check_times("Sequence", times, mask)
        if mask is not None and times.shape[-1]:
            times = _carry_forward(times, mask)
        self._set(times[..., None], weights, mask)
        # a masked point takes the last time before it, so that times stay in order
        self.times = times
        if values_can_be_read(times):
            _check_order(times, mask)


def _checked_length(length: int | None) -> int:
    if isinstance(length, Tensor):
        raise TypeError("Sequence: length must be an integer >= 0; got a tensor; times are given as Sequence(times=t)")
    if length is None or not is_count(length, 0):
        raise ValueError(f"Sequence: length must be an integer >= 0; got {length!r}")
    return length


def _checked_start(n: int, spacing: float | None, start: float | None) -> float:
    """Time of the first of `n` regular samples."""
    if spacing is None:
        if start is not None:
            raise ValueError(
                f"Sequence: start needs a spacing, the distance between samples; got start={start!r} alone"
            )
        return 0.0
    if not _is_number(spacing) or not 0 < spacing < math.inf:
        raise ValueError(f"Sequence: spacing must be a finite number > 0, the time between samples; got {spacing!r}")
    origin = 0.0 if start is None else start
    if not _is_number(origin) or not abs(origin) < math.inf:
        raise ValueError(f"Sequence: start must be a finite number, the time of the first sample; got {start!r}")
    if is_open(n):
        return float(origin)
    last = origin + max(n - 1, 0) * spacing
    # one step must change every position, or samples would coincide
    if not abs(last) < math.inf or spacing < 4 * max(math.ulp(origin), math.ulp(last)):
        raise ValueError(
            f"Sequence: float64 cannot distinguish {n} samples at a spacing of {spacing!r} from {origin!r} on; use "
            "another unit of time, or count it from another start"
        )
    return float(origin)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_times(name: str, times: Tensor, mask: Tensor | None) -> None:
    check_tensor(name, "times", times)
    if times.ndim not in (1, 2) or not times.dtype.is_floating_point:
        raise ValueError(
            f"{name}: times must be float of shape (N,) or (B, N); got {tuple(times.shape)}, {times.dtype}"
        )
    check_mask(name, mask, times[..., None])


def _check_order(times: Tensor, mask: Tensor | None) -> None:
    """Raises ValueError for times that decrease, or whose steps are mostly below the resolution of their dtype."""
    if times.numel() == 0:
        return
    steps, resolution = times.diff(dim=-1), torch.finfo(times.dtype).eps * times.abs()
    # whole numbers within the dtype's resolution were not rounded
    is_whole = ((times == times.round()) & (resolution < 1)).all()
    # rounded times have steps of a few units in the last place
    is_rounded = ~is_whole & (steps > 0) & (steps <= 4 * resolution[..., 1:])
    decreases, num_rounded, num_steps = torch.stack(
        [(steps < 0).any().long(), is_rounded.sum(), (steps > 0).sum()]
    ).tolist()
    if decreases:
        raise ValueError("Sequence: times must not decrease along a sequence; sort them (and the signal) first")
    if num_steps == 0 and times.shape[-1] > 1:  # or all were rounded to one
        several = mask is None or bool((mask.sum(-1) > 1).any())
        num_rounded = int(several and bool((resolution >= 1).all()))
    if num_rounded * 2 > num_steps:
        name, far = str(times.dtype).removeprefix("torch."), times.abs().max().item()
        raise ValueError(
            f"Sequence: {name} has a resolution of {torch.finfo(times.dtype).eps * far:.2g} at times near {far:.3g}, "
            "and most steps are hardly longer; give float64, or count from the first sample"
        )


def _carry_forward(times: Tensor, mask: Tensor) -> Tensor:
    lowest = torch.finfo(times.dtype).min
    carried = torch.where(mask, times, lowest).cummax(dim=-1).values
    first = torch.where(mask, times, torch.finfo(times.dtype).max).amin(dim=-1, keepdim=True)
    first = torch.where(mask.any(dim=-1, keepdim=True), first, 0.0)  # no earlier sample, so no time to carry
    return torch.where(carried == lowest, first, torch.where(mask, times, carried))


def trapezoid_weights(times: Tensor, mask: Tensor | None = None, *, total: float | None = 1.0) -> Tensor:
    """Trapezoid rule on irregular times: half the distance between a sample's two neighbours.

    Args:
        times: non-decreasing, `(N,)` or `(B, N)`.
        mask: same shape, True = this sample exists; neighbours are the nearest samples that exist.
        total: the mass is scaled to this; None keeps the length of the interval, so that weights carry the time unit.

    Returns:
        Weights of the shape of `times` (broadcast with `mask`), 0 where masked. Samples that all share one time get
        equal weights (zero when `total` is None: the interval has no length).
    """
    _check_times("trapezoid_weights", times, mask)
    if mask is None:
        mask = torch.ones_like(times, dtype=torch.bool)
    times, exists = torch.broadcast_tensors(times, mask)
    if times.shape[-1] == 0:
        return torch.zeros_like(times)
    kept = torch.where(exists, times, 0.0)
    is_checked = values_can_be_read(kept)
    if is_checked and not bool(torch.isfinite(kept).all()):
        raise ValueError("trapezoid_weights: times hold NaN or infinite values at samples that exist")
    forward = _carry_forward(times, exists)
    if is_checked and bool((forward.diff(dim=-1) < 0).any()):
        raise ValueError("trapezoid_weights: times must not decrease along a sequence; sort them first")
    backward = -_carry_forward(-times.flip(-1), exists.flip(-1)).flip(-1)
    previous = torch.cat([forward[..., :1], forward[..., :-1]], dim=-1)
    following = torch.cat([backward[..., 1:], backward[..., -1:]], dim=-1)
    weights = torch.where(exists, 0.5 * (following - previous), 0.0)
    if total is None:
        return weights
    mass = weights.sum(dim=-1, keepdim=True)
    count = exists.sum(dim=-1, keepdim=True).clamp_min(1)
    even = exists.to(times.dtype) / count
    return total * torch.where(mass > 0, weights / torch.where(mass > 0, mass, torch.ones_like(mass)), even)
