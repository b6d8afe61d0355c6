"""Arithmetic that several families share: the precision of accumulators, and quotients where there may be nothing."""

import functools
from collections.abc import Iterable

import torch
from torch import Tensor


def wide_dtype(*tensors: Tensor) -> torch.dtype:
    """What is accumulated in: the dtype that the tensors promote to, float32 at least."""
    return functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in `wide_dtype`."""
    return tensor.to(wide_dtype(tensor))


def divided(numerator: Tensor | float, denominator: Tensor) -> Tensor:
    """Their quotient; 0, with gradient 0, where the denominator is 0."""
    # not `denominator > 0`: NaN stays NaN
    return torch.where(denominator == 0, 0.0, numerator / torch.where(denominator == 0, 1.0, denominator))


def added(parts: Iterable[Tensor]) -> Tensor:
    """The sum of at least one tensor."""
    total, *others = parts
    for other in others:
        total = total + other
    return total
