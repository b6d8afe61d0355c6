"""Degradation curves: the confidence in a class as patches of an image are removed.

Legend
    f_k          confidence after a share s_k of the patches is removed, s_0 = 0 … s_K = 1

    AUC = ∫₀¹ f ds  (trapezoids),   AOC = 1 - AUC

Patches are removed most relevant first (MoRF: with a faithful map f falls early, AOC near 1) or least relevant first
(LeRF: f stays, AUC near 1). Source: Samek et al. 2017; Infinite Self-Attention, section 4.2 and
supplement, section 9, which names the areas without a formula: these are the plain ones, of f as it is.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Order = Literal["morf", "lerf"]
"""Order of removal: most or least relevant patches first."""
Fill = Literal["mean", "zero", "blur"]
"""Replacement of a removed patch: the mean of each channel of its image, zero, or the Gaussian-blurred image."""


class DegradationCurve(NamedTuple):
    """Confidence against the share of removed patches, for each image."""

    removed: Tensor
    """s, `(K + 1,)`, from 0 to 1."""
    confidence: Tensor
    """f, `(B, K + 1)`."""
    auc: Tensor
    """Area under the curve, `(B,)`."""
    aoc: Tensor
    """Area over it, `(B,)`: 1 - AUC."""


@torch.no_grad()
def degradation_curve(
    confidence: Callable[[Tensor], Tensor],
    images: Tensor,
    relevance: Tensor,
    *,
    order: Order = "morf",
    fill: Fill = "mean",
    steps: int | None = None,
) -> DegradationCurve:
    """Removes the patches of images by their relevance and evaluates the confidence after each step.

    Args:
        confidence: maps images `(B, C, H, W)` to the confidence in one class of each, `(B,)`, such as its probability.
        images: `(B, C, H, W)`, as the model takes them.
        relevance: relevance of patches, `(B, rows, columns)`, as from `patch_relevance`; rows divide H and columns W.
            Of equally relevant patches the upper one, then the left one, is removed first.
        order: "morf" or "lerf".
        fill: "mean", "zero" (the mean of the data where it was standardised) or "blur", a Gaussian as wide as half a
            patch's longer side.
        steps: number K of steps, each with as nearly as possible the same number of patches; None: one patch a step.

    Raises:
        ValueError: on sizes that do not fit, values that are not finite, or a confidence of another shape.
    """
    _check(images, relevance, order, fill)
    batch, (rows, columns) = len(images), relevance.shape[1:]
    num_patches = rows * columns
    steps = num_patches if steps is None else steps
    if not 1 <= steps <= num_patches:
        raise ValueError(f"analysis.degradation_curve: steps must be from 1 to {num_patches} patches; got {steps}")
    ranking = relevance.flatten(1).argsort(dim=1, descending=order == "morf", stable=True)
    place = ranking.argsort(dim=1)  # rank of each patch in the order of removal
    background = _background(images, (images.shape[2] // rows, images.shape[3] // columns), fill)
    counts = [round(step * num_patches / steps) for step in range(steps + 1)]
    values = []
    for count in counts:
        gone = (place < count).unflatten(1, (rows, columns))
        gone = gone.repeat_interleave(images.shape[2] // rows, 1).repeat_interleave(images.shape[3] // columns, 2)
        value = confidence(torch.where(gone[:, None], background, images))
        if value.shape != (batch,) or not bool(value.isfinite().all()):
            raise ValueError(
                f"analysis.degradation_curve: confidence must give {batch} finite values, one an image; "
                f"got {tuple(value.shape)}"
            )
        values.append(value)
    curve = torch.stack(values, 1)
    removed = torch.tensor(counts, dtype=curve.dtype, device=curve.device) / num_patches
    auc = torch.trapezoid(curve, removed, dim=1)
    return DegradationCurve(removed, curve, auc, 1 - auc)


def _check(images: Tensor, relevance: Tensor, order: str, fill: str) -> None:
    for name, value, known in (("order", order, ("morf", "lerf")), ("fill", fill, ("mean", "zero", "blur"))):
        if value not in known:
            raise ValueError(f"analysis.degradation_curve: {name} is one of {known}; got {value!r}")
    fits = images.ndim == 4 and relevance.ndim == 3 and len(images) == len(relevance) and relevance.numel() > 0
    if not fits or images.shape[2] % relevance.shape[1] or images.shape[3] % relevance.shape[2]:
        raise ValueError(
            "analysis.degradation_curve: needs images (B, C, H, W) and relevance (B, rows, columns) with rows and "
            f"columns that divide H and W; got {tuple(images.shape)} and {tuple(relevance.shape)}"
        )
    if not bool(relevance.isfinite().all()):
        raise ValueError("analysis.degradation_curve: relevance holds NaN or infinite values")


def _background(images: Tensor, patch: tuple[int, int], fill: Fill) -> Tensor:
    """The replacement of removed patches, as large as the images."""
    if fill == "zero":
        return torch.zeros_like(images)
    if fill == "mean":
        return images.mean((2, 3), keepdim=True).expand_as(images)
    deviation = max(patch) / 2
    blurred = images
    for dim in (2, 3):
        blurred = _blur_along(blurred, dim, deviation)
    return blurred


def _blur_along(images: Tensor, dim: int, deviation: float) -> Tensor:
    """Gaussian blur along one dimension; the weights sum to 1 inside the image, so that no padding enters."""
    index = torch.arange(
        images.shape[dim], device=images.device, dtype=torch.promote_types(images.dtype, torch.float32)
    )
    weights = torch.exp(-(index[:, None] - index).square() / (2 * deviation**2))
    weights = (weights / weights.sum(1, keepdim=True)).to(images.dtype)
    return (images.movedim(dim, -1) @ weights.T).movedim(-1, dim)
