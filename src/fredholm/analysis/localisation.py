"""Relevance as a detector of an object: ROC and precision-recall of patches inside against outside a box or mask.

Legend
    a patch is flagged where its relevance ≥ a threshold; TP, FP, FN count flagged foreground, flagged background and
    foreground that is not flagged; thresholds are the distinct values, so that equal patches are flagged together

    ROC: TP / (TP + FN) against FP / (FP + TN),   PR: precision TP / (TP + FP) against recall TP / (TP + FN)
    average precision Σ (recall_k - recall_{k-1}) precision_k

Source: Infinite Self-Attention, section 4.2, which names ROC-AUC and PR-AUC without formulas. Both areas of the
precision-recall curve are given: trapezoids, and the average precision, which does not interpolate.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class DetectionCurves(NamedTuple):
    """Curves over the K distinct values of a score, from the highest threshold down, and their areas."""

    thresholds: Tensor
    """`(K,)`, in descending order."""
    false_positive_rate: Tensor
    """`(K + 1,)`, from 0 to 1."""
    true_positive_rate: Tensor
    """`(K + 1,)`, from 0 to 1; the recall of the precision-recall curve."""
    precision: Tensor
    """`(K + 1,)`; 1 where nothing is flagged yet."""
    roc_auc: Tensor
    pr_auc: Tensor
    average_precision: Tensor


class Localisation(NamedTuple):
    """Areas under the curves of each image, `(B,)` in [0, 1]."""

    roc_auc: Tensor
    pr_auc: Tensor
    average_precision: Tensor


def detection_curves(scores: Tensor, labels: Tensor) -> DetectionCurves:
    """ROC and precision-recall curves of a score, in float64.

    Args:
        scores: any shape.
        labels: bool, the same shape, True = foreground; both kinds must occur.

    Raises:
        TypeError, ValueError: on labels that are not bool or of one kind alone, or scores that are not finite.
    """
    if labels.dtype != torch.bool:
        raise TypeError(f"analysis.detection_curves: labels must be bool, True = foreground; got {labels.dtype}")
    if scores.shape != labels.shape:
        raise ValueError(
            f"analysis.detection_curves: scores and labels must have one shape; got {tuple(scores.shape)} and "
            f"{tuple(labels.shape)}"
        )
    if not bool(scores.isfinite().all()):
        raise ValueError("analysis.detection_curves: scores hold NaN or infinite values")
    positives = int(labels.sum())
    if positives in (0, labels.numel()):
        raise ValueError(
            f"analysis.detection_curves: needs foreground and background; {positives} of {labels.numel()} labels are "
            "foreground, so that there is nothing to distinguish: leave such an image out"
        )
    ordered, order = scores.detach().flatten().double().sort(descending=True, stable=True)
    hits = labels.flatten()[order].double().cumsum(0)
    last = torch.cat([ordered[1:] != ordered[:-1], ordered.new_ones(1, dtype=torch.bool)])  # the last of equal scores
    flagged = (torch.arange(1, len(ordered) + 1, device=scores.device).double())[last]
    true = hits[last]
    zero, one = true.new_zeros(1), true.new_ones(1)
    recall = torch.cat([zero, true / positives])
    false_rate = torch.cat([zero, (flagged - true) / (len(ordered) - positives)])
    precision = torch.cat([one, true / flagged])
    return DetectionCurves(
        ordered[last],
        false_rate,
        recall,
        precision,
        torch.trapezoid(recall, false_rate),
        torch.trapezoid(precision, recall),
        (recall.diff() * precision[1:]).sum(),
    )


def localisation(relevance: Tensor, labels: Tensor) -> Localisation:
    """Measures how well each image's relevance detects its foreground; the score of a data set is the mean.

    Args:
        relevance: relevance of patches, `(B, rows, columns)`.
        labels: bool, the same shape, as `patch_labels` gives them.

    Raises:
        TypeError, ValueError: as `detection_curves`; an image whose patches are all of one kind must be left out.
    """
    if relevance.ndim != 3 or relevance.shape != labels.shape or not len(relevance):
        raise ValueError(
            "analysis.localisation: relevance and labels must both be (B, rows, columns) with an image at least; got "
            f"{tuple(relevance.shape)} and {tuple(labels.shape)}"
        )
    curves = [detection_curves(scores, own) for scores, own in zip(relevance, labels, strict=True)]
    return Localisation(
        torch.stack([curve.roc_auc for curve in curves]),
        torch.stack([curve.pr_auc for curve in curves]),
        torch.stack([curve.average_precision for curve in curves]),
    )


def patch_labels(mask: Tensor, shape: tuple[int, int], *, fraction: float = 0.5) -> Tensor:
    """Labels a patch as foreground if the mask covers at least a fraction of it; bool `(B, rows, columns)`.

    Args:
        mask: `(B, H, W)`, bool, or the covered share of every pixel in [0, 1], as from `box_mask`.
        shape: rows and columns of patches; they divide H and W.
        fraction: the least covered share of a foreground patch, in (0, 1].

    Raises:
        ValueError: on sizes that do not divide or numbers out of range.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"analysis.patch_labels: fraction must be in (0, 1]; got {fraction}")
    rows, columns = shape
    if mask.ndim != 3 or min(shape) < 1 or mask.shape[1] % rows or mask.shape[2] % columns:
        raise ValueError(
            f"analysis.patch_labels: mask must be (B, H, W) that {rows} x {columns} patches divide; "
            f"got {tuple(mask.shape)}"
        )
    covered = mask.double()
    if covered.numel() and not (covered.min() >= 0 and covered.max() <= 1):
        raise ValueError("analysis.patch_labels: mask must hold shares in [0, 1] of pixels, or be bool")
    share = covered.unflatten(2, (columns, -1)).unflatten(1, (rows, -1)).mean((2, 4))
    return share >= fraction * (1 - 1e-12)  # the tolerance accepts a share that is met exactly despite rounding


def box_mask(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Computes the share of every pixel that lies in a box, `(H, W)` in float64; overlapping boxes count once.

    Args:
        boxes: `(n, 4)` corners left, top, right, bottom in pixels, 0 at the outer edge of the first; n may be 0.
        size: H and W.

    Returns:
        The covered shares. A pixel that several boxes touch gets the largest share, which is exact for whole pixels.

    Raises:
        ValueError: on other shapes, or boxes without area.
    """
    if boxes.ndim != 2 or boxes.shape[1] != 4 or min(size) < 1:
        raise ValueError(
            f"analysis.box_mask: boxes must be (n, 4) in an image of H x W; got {tuple(boxes.shape)}, {size}"
        )
    left, top, right, bottom = boxes.double().unbind(1)
    if not bool(((right > left) & (bottom > top)).all()):
        raise ValueError("analysis.box_mask: boxes must be left, top, right, bottom with left < right and top < bottom")

    def covered(low: Tensor, high: Tensor, length: int) -> Tensor:
        edge = torch.arange(length, dtype=torch.float64, device=boxes.device)
        return (torch.minimum(high[:, None], edge + 1) - torch.maximum(low[:, None], edge)).clamp(0, 1)

    shares = covered(top, bottom, size[0])[:, :, None] * covered(left, right, size[1])[:, None]
    return torch.cat([shares.new_zeros(1, *size), shares]).amax(0)
