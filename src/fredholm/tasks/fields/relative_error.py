"""Relative errors of predicted functions.

    ‖f - u‖ / ‖u‖,    ‖v‖² = Σ v²,  or with first derivatives (h1)  Σ v² + |∇v|²,  over the samples of a function

Source: FNO (Li et al., 2021), section 5, for the loss.
"""

from typing import Literal

import torch
from torch import Tensor

from fredholm.domains import Domain, whole_grid

from .batches import Scale

Loss = Literal["l2", "h1"]


def relative_errors(answers: Tensor, targets: Tensor, exists: Tensor, scale: Scale, domain: Domain | None) -> Tensor:
    """Returns the relative error of each function, `(B,)`, averaged over channels, each in the unit of the data.

    A channel that is 0 at all samples of a function is measured relative to its deviation.

    Args:
        answers: standardised predictions, `(B, N, m)`, or `(B, N, T·m)` for T steps.
        targets: standardised targets, likewise.
        exists: `(B, N)`, True where a sample exists.
        scale: scale of the m channels.
        domain: domain of the samples, for the error of values and first derivatives together; None: values alone.

    Raises:
        ValueError: derivatives are requested where the samples form no whole grid.
    """
    exists = exists[..., None]
    truth = torch.where(exists, scale.in_deviations(targets), 0.0)
    difference = torch.where(exists, answers - targets, 0.0)
    squares, scales = difference.square().sum(1), truth.square().sum(1)
    if domain is not None:
        squares, scales = squares + slope_squares(difference, domain), scales + slope_squares(truth, domain)
    zero = exists.to(scales).sum(1).expand_as(scales)
    relative = (squares / torch.where(scales > 0, scales, zero)).clamp(min=1e-24).sqrt()
    return relative.mean(-1)


def slope_squares(values: Tensor, domain: Domain) -> Tensor:
    """Returns Σ |∇v|² over the points of a grid by central differences, one-sided at borders that do not wrap around.

    Args:
        values: `(B, N, m)`.
        domain: domain of the points.

    Returns:
        `(B, m)`.

    Raises:
        ValueError: the points form no whole grid.
    """
    grid = whole_grid(domain)
    if grid is None or domain.mask is not None:
        raise ValueError(f"loss='h1' takes differences, and the targets are at {domain!r}, which is no grid")
    shaped = values.mT.unflatten(-1, grid.shape)
    total = torch.zeros_like(shaped[..., *(0 for _ in grid.shape)])
    for axis, (count, spacing) in enumerate(zip(grid.shape, grid.spacing, strict=True), 2):
        if count == 1:
            continue
        if domain.is_periodic:
            slope = (shaped.roll(-1, axis) - shaped.roll(1, axis)) / (2 * spacing)
        else:
            (slope,) = torch.gradient(shaped, spacing=spacing, dim=axis)
        total = total + slope.square().flatten(2).sum(-1)
    return total
