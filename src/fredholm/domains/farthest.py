"""Farthest-point sampling: each next point is the farthest from those before it.

Source: T. F. Gonzalez, Clustering to minimize the maximum intercluster distance (1985). No choice of M centres leaves
every point less than half as far from its nearest centre as this one does.
"""

import torch
from torch import Tensor

from fredholm._settings import check_count
from fredholm.domains.checks import values_can_be_read
from fredholm.domains.domain import check_mask, check_tensor, wrapped


@torch.no_grad()
def farthest_points(
    pos: Tensor,
    num_points: int,
    mask: Tensor | None = None,
    first: Tensor | None = None,
    *,
    periodic: bool = False,
) -> Tensor:
    """Indices of M points that are far from each other, in the order in which they are chosen.

    Args:
        pos: `(N, s)` or `(B, N, s)`, float, N >= 1; finite where points exist.
        num_points: M >= 1. If fewer points exist, or fewer different positions, points are repeated.
        mask: `(N,)` or `(B, N)` bool, True = this point exists; others are never chosen where any exists.
        first: index of the first point, int64 scalar or `(B,)`; None: the point nearest to the mean of all.
        periodic: distances wrap round the unit box; the mean is then that of coordinates in the box as they are.

    Returns:
        int64 `(M,)`, or `(B, M)` where any argument has a batch axis. Of equally distant points the first is chosen.

    Raises:
        ValueError: on numbers out of range, shapes that do not fit, and no points to choose from.
        TypeError: on arguments that are no tensor or number, and a mask that is not bool.
    """
    check_count("farthest_points", "num_points", num_points)
    check_tensor("farthest_points", "pos", pos)
    if pos.ndim not in (2, 3) or not pos.dtype.is_floating_point or 0 in pos.shape[-2:]:
        raise ValueError(
            "farthest_points: pos must be float, (N, s) or (B, N, s) with N and s >= 1; "
            f"got {tuple(pos.shape)}, {pos.dtype}"
        )
    check_mask("farthest_points", mask, pos)
    bad = ~pos.isfinite().all(-1)
    if values_can_be_read(pos, mask) and bool((bad if mask is None else bad & mask).any()):
        raise ValueError("farthest_points: pos holds NaN or infinite values at points that exist; remove or mask them")
    return chosen_far_apart(pos, num_points, mask, first, _batch(pos, mask, first), periodic=periodic)


@torch.no_grad()
def chosen_far_apart(
    pos: Tensor, num_points: int, mask: Tensor | None, first: Tensor | None, shape: tuple[int, ...], *, periodic: bool
) -> Tensor:
    """`farthest_points` without checks, which would wait for a device; `shape` is that of the batch, or empty."""
    batch = shape[0] if shape else 1
    # squares may overflow 16 bits, or round near distances to the same value
    pos = pos.to(torch.promote_types(pos.dtype, torch.float32))
    # axis by axis, because sums over a short last axis are slow
    axes = pos.expand(*shape, -1, -1).reshape(batch, *pos.shape[-2:]).movedim(-1, 0).contiguous()
    exists = None if mask is None else mask.expand(*shape, -1).reshape(batch, -1)
    index = _central(axes, exists) if first is None else first.expand(shape).reshape(batch)
    nearest = torch.full_like(axes[0], torch.inf)
    if exists is not None:
        nearest, axes = nearest.masked_fill(~exists, -1.0), torch.where(exists, axes, 0.0)
    chosen = [index]
    for _ in range(num_points - 1):
        squared = torch.zeros((), dtype=pos.dtype, device=pos.device)
        for x in axes:
            difference = x - x.gather(1, index[:, None])
            squared = squared + (wrapped(difference) if periodic else difference).square()
        nearest = torch.minimum(nearest, squared)
        index = nearest.argmax(-1)
        chosen.append(index)
    return torch.stack(chosen, dim=-1).view(*shape, num_points)


def _batch(pos: Tensor, mask: Tensor | None, first: Tensor | None) -> tuple[int, ...]:
    """The common batch shape of the arguments, or ()."""
    shapes = {"pos": pos.shape[:-2]}
    if mask is not None:
        shapes["mask"] = mask.shape[:-1]
    if first is not None:
        check_tensor("farthest_points", "first", first)
        num_points, shapes["first"] = pos.shape[-2], first.shape
        is_outside = values_can_be_read(first) and bool(((first < 0) | (first >= num_points)).any())
        if first.dtype != torch.int64 or first.ndim > 1 or is_outside:
            raise ValueError(
                f"farthest_points: first must be int64 in [0, {num_points}), a scalar or (B,); "
                f"got {tuple(first.shape)}, {first.dtype}, up to {first.max().item() if first.numel() else None}"
            )
    sizes = {shape[0] for shape in shapes.values() if shape}
    if len(sizes - {1}) > 1:
        batch_sizes = ", ".join(f"{name} {shape[0]}" for name, shape in shapes.items() if shape)
        raise ValueError(f"farthest_points: batch sizes must be one and the same; got {batch_sizes}")
    return (max(sizes),) if sizes else ()


def _central(axes: Tensor, exists: Tensor | None) -> Tensor:
    """The point nearest to the mean of those that exist, `(B,)`, of positions `(s, B, N)`."""
    if exists is None:
        return (axes - axes.mean(-1, keepdim=True)).square().sum(0).argmin(-1)
    mean = torch.where(exists, axes, 0.0).sum(-1, keepdim=True) / exists.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(exists, (axes - mean).square().sum(0), torch.inf).argmin(-1)
