"""Checks of attention weights and discounts before they are analysed."""

import torch
from torch import Tensor


def checked_matrix(name: str, A: Tensor) -> Tensor:
    """Checks for square matrices of finite weights >= 0, `(..., N, N)`, and returns them in at least float32.

    Values slightly below 0, as solvers leave them, become 0: down to 100 rounding errors of the largest weight.

        Args:
            name: function named in the error messages.
            A: the weights.
    """
    if not isinstance(A, Tensor) or not A.dtype.is_floating_point:
        got = str(A.dtype) if isinstance(A, Tensor) else type(A).__name__
        raise TypeError(f"analysis.{name}: weights must be a float tensor (..., N, N); got {got}")
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise ValueError(
            f"analysis.{name}: weights must be (..., N, N), from the points of a domain to the same points; "
            f"got {tuple(A.shape)}"
        )
    if not bool(A.isfinite().all()):
        raise ValueError(f"analysis.{name}: weights hold NaN or infinite values")
    if A.numel() and bool(A.min() < -100 * torch.finfo(A.dtype).eps * A.max()):
        raise ValueError(
            f"analysis.{name}: weights must be >= 0, to be read as a graph; the least is {A.min().item():.3g}"
        )
    return A.to(torch.promote_types(A.dtype, torch.float32)).clamp_min(0)


def checked_discount(name: str, gamma: float | Tensor, A: Tensor) -> Tensor:
    """Checks that γ is in (0, 1) and broadcasts to the matrices; returns a tensor that multiplies `(..., N, N)`."""
    discount = torch.as_tensor(gamma, dtype=A.dtype, device=A.device)
    if not bool(((discount > 0) & (discount < 1)).all()):
        raise ValueError(f"analysis.{name}: gamma must be in (0, 1); got {_range_text(discount)}")
    leading = A.shape[:-2]
    fits = discount.ndim <= len(leading) and all(
        own in (1, size) for own, size in zip(discount.shape[::-1], leading[::-1], strict=False)
    )
    if not fits:
        raise ValueError(
            f"analysis.{name}: gamma must be one number, or broadcast to the matrices' {tuple(leading)}; "
            f"got {tuple(discount.shape)}"
        )
    return discount[..., None, None]


def _range_text(values: Tensor) -> str:
    return f"{values.item():.4g}" if values.ndim == 0 else f"values from {values.min():.4g} to {values.max():.4g}"
