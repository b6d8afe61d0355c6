"""How alike two weightings of the same points are.

Legend
    a, b         two vectors over points, `(..., N)`        r(·)    ranks from 1; equal values share their mean rank

    cosine = a·b / ‖a‖‖b‖,   Spearman = the correlation of r(a) and r(b)
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Alignment(NamedTuple):
    """Two measures of likeness, `(...)` each, in [-1, 1]."""

    cosine: Tensor
    spearman: Tensor


def alignment(weights: Tensor, vector: Tensor) -> Alignment:
    """Cosine and Spearman's rank correlation of two vectors over points, for each of a batch.

    Args:
        weights: `(..., N)`, N >= 2, over points that exist.
        vector: the same shape, such as that of `perron_vector`.

    Raises:
        ValueError: on shapes that differ, fewer than two points, values that are not finite, or vectors with one
            value everywhere, which order nothing.
    """
    if weights.shape != vector.shape or weights.ndim < 1 or weights.shape[-1] < 2:
        raise ValueError(
            f"analysis.alignment: needs two tensors of one shape (..., N) with N >= 2; got {tuple(weights.shape)} and "
            f"{tuple(vector.shape)}"
        )
    dtype = torch.promote_types(torch.promote_types(weights.dtype, vector.dtype), torch.float32)
    a, b = weights.to(dtype), vector.to(dtype)
    for name, values in (("weights", a), ("vector", b)):
        if not bool(values.isfinite().all()):
            raise ValueError(f"analysis.alignment: {name} holds NaN or infinite values")
        constant = values.amax(-1) == values.amin(-1)
        if bool(constant.any()):
            raise ValueError(
                f"analysis.alignment: {int(constant.sum())} of {constant.numel()} {name} are constant, so that they "
                "order nothing; leave those out"
            )
    return Alignment(_cosine(a, b), _cosine(*(_centred(ranks(values)).to(dtype) for values in (a, b))))


def ranks(values: Tensor) -> Tensor:
    """Ranks along the last dimension, from 1; equal values share the mean of theirs. Float64."""
    ordered = values.sort(-1).values.contiguous()
    values = values.contiguous()
    below, up_to = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (below + up_to + 1).double() / 2


def _centred(values: Tensor) -> Tensor:
    return values - values.mean(-1, keepdim=True)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    # sizes first: squares of small weights underflow
    a, b = (side / side.abs().amax(-1, keepdim=True) for side in (a, b))
    norms = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
    return ((a * b).sum(-1) / norms).clamp(-1, 1)
