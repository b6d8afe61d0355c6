"""Fitting fields that an operator has placed to their samples, by gradient steps on their parameters alone."""

import torch
from torch import Tensor

from fredholm.fields.placed import PlacedField


def refine(
    placed: PlacedField, x: Tensor, y: Tensor, mask: Tensor | None = None, *, steps: int, rate: float = 1e-2
) -> PlacedField:
    """The fields after steps of Adam on the mean squared error of each at its samples.

    What is optimised is δ in θ = θ_given + σ δ, with σ the field's `sizes`, so that one rate suits all entries. Frames
    stay as they are, so the result moves with the samples as the operator's own does. Nothing flows back into the
    operator.

    Args:
        placed: B fields.
        x: positions of samples, `(B, N, s)`.
        y: their values, `(B, N, m)`.
        mask: `(B, N)` bool, True = this sample exists.
        steps: how many, >= 0.
        rate: of Adam at the start, > 0, in units of σ; it falls to 0 along a cosine.

    Raises:
        ValueError: on steps below 0, a rate that is not positive, or values that do not fit.
    """
    if steps < 0 or not 0 < rate < float("inf"):
        raise ValueError(f"fields.refine: needs steps >= 0 and a finite rate > 0; got {steps} and {rate!r}")
    expected = (len(placed.parameters), x.shape[-2], placed.field.out_dim)
    if y.shape != expected:
        raise ValueError(f"fields.refine: y must be {expected}, a value a sample; got {tuple(y.shape)}")
    exists = torch.ones(y.shape[:2], dtype=y.dtype, device=y.device) if mask is None else mask.to(y.dtype)
    y = torch.where(exists[..., None] > 0, y, 0.0)
    start, sizes = placed.parameters.detach(), placed.field.sizes().to(placed.parameters)
    with torch.enable_grad():
        change = torch.zeros_like(start, requires_grad=True)
        optimizer = torch.optim.Adam([change], lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
        for _ in range(steps):
            error = (placed.with_parameters(start + sizes * change)(x) - y).square().mean(-1) * exists
            # summed over fields: none of them slows the others down
            loss = (error.sum(-1) / exists.sum(-1).clamp(min=1)).sum()
            (change.grad,) = torch.autograd.grad(loss, change)
            optimizer.step()
            schedule.step()
    return placed.with_parameters(start + sizes * change.detach())
