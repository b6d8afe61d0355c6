"""Ranking metrics of problems whose records have several labels each.

Legend
    n, L     records and labels
    N_l      training records with label l, of N in all
    p_l      propensity: the probability that a record to which l applies is labelled so, as modelled below

    p_l = 1 / (1 + C (N_l + B)^(-A)),   C = (log N - 1) (B + 1)^A

    P@k    = mean over records of  |top k ∩ labels| / k
    PSP@k  = Σ_records Σ_{l in top k ∩ labels} 1/p_l  /  the largest value that any ranking gives this sum

Source of p_l and PSP: Jain, Prabhu and Varma, "Extreme multi-label loss functions", KDD 2016. The division by the
largest value, which keeps PSP@k in [0, 1], is that of the Extreme Classification Repository.
"""

import math

import torch
from torch import Tensor


def propensities(label_counts: Tensor, num_records: int, a: float = 0.55, b: float = 1.5) -> Tensor:
    """Returns p_l of every label, in (0, 1), float64.

    Args:
        label_counts: N_l, `(L,)`, >= 0, from the training records.
        num_records: N, training records; at least 3, so that C is positive.
        a: A; 0.55 where no better value is known.
        b: B; 1.5 where no better value is known.

    Raises:
        ValueError: on counts outside [0, N], too few records, or constants that are not positive and finite.
    """
    if num_records < 3:
        raise ValueError(f"propensities: expected at least 3 training records; got {num_records}")
    if not (0 < a < math.inf and 0 < b < math.inf):
        raise ValueError(f"propensities: expected a and b above 0 and finite; got {a} and {b}")
    if label_counts.ndim != 1 or bool(((label_counts < 0) | (label_counts > num_records)).any()):
        raise ValueError(f"propensities: expected one count from 0 to {num_records} a label; got {label_counts}")
    c = (math.log(num_records) - 1) * (b + 1) ** a
    return 1 / (1 + c * (label_counts.double() + b) ** -a)


def precision_at(scores: Tensor, labels: Tensor, k: int) -> float:
    """Returns P@k in [0, 1]. A record without labels counts as 0; equal scores are ranked in an unspecified order.

    Args:
        scores: `(n, L)`, higher is ranked first.
        labels: `(n, L)`, bool.
        k: from 1 to L.

    Raises:
        ValueError: on shapes that differ, no record, a k out of range, or scores that are NaN.
        TypeError: for labels that are not bool.
    """
    _check("precision_at", scores, labels, k)
    return labels.gather(1, scores.topk(k, dim=1).indices).double().mean().item()


def propensity_scored_precision_at(scores: Tensor, labels: Tensor, propensity: Tensor, k: int) -> float:
    """Returns PSP@k in [0, 1]: rare labels weigh more. 0 where no record has a label.

    Args:
        scores: `(n, L)`, higher is ranked first.
        labels: `(n, L)`, bool.
        propensity: p_l, `(L,)`, in (0, 1]; see `propensities`.
        k: from 1 to L.

    Raises:
        ValueError: as `precision_at` does, and for propensities of another shape or outside (0, 1].
        TypeError: for labels that are not bool.
    """
    _check("propensity_scored_precision_at", scores, labels, k)
    if propensity.shape != scores.shape[1:] or not bool(((propensity > 0) & (propensity <= 1)).all()):
        raise ValueError(
            f"propensity_scored_precision_at: expected a propensity in (0, 1] for each of {scores.shape[1]} labels; "
            f"got {propensity}"
        )
    gains = labels.double() / propensity.double()
    best = gains.topk(k, dim=1).values.sum()
    found = gains.gather(1, scores.topk(k, dim=1).indices).sum()
    return (found / best).item() if best > 0 else 0.0


def _check(name: str, scores: Tensor, labels: Tensor, k: int) -> None:
    if labels.dtype != torch.bool:
        raise TypeError(f"{name}: expected labels of dtype bool; got {labels.dtype}")
    if scores.ndim != 2 or scores.shape != labels.shape or not len(scores):
        raise ValueError(
            f"{name}: expected scores and labels (n, L), n >= 1; got {tuple(scores.shape)} and {tuple(labels.shape)}"
        )
    if not 1 <= k <= scores.shape[1]:
        raise ValueError(f"{name}: k must be from 1 to {scores.shape[1]}, the number of labels; got {k}")
    if bool(scores.isnan().any()):
        raise ValueError(f"{name}: scores hold NaN, which has no rank")
