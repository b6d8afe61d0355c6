"""Sums and means over the past by chunks, for kernels that split over the two points of a pair."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from fredholm.domains import is_ordered_by_index
from fredholm.domains.checks import is_open
from fredholm.evaluation.integral import Integral
from fredholm.kernels import Kernel, State, Stateful


def order_refusals(integral: Integral[Kernel]) -> list[str]:
    """Reasons why the i-th query of a causal kernel does not see exactly the first i points, a sentence each."""
    reasons = [] if integral.at_points else ["the kernel is causal and the queries are not the points of the signal"]
    if not is_ordered_by_index(integral.domain):
        reasons.append("points that share a time see each other")
    return reasons


def reset_refusals(reset: Tensor | None) -> list[str]:
    """Reasons why sums by chunks cannot restart within a sequence; empty without a reset."""
    return [] if reset is None else ["running sums support no reset; use evaluation=StepLoop(), or split the signal"]


def causal_sums(phi: Tensor, psi: Tensor, weighed: Tensor, before: Tensor | None, chunk: int) -> tuple[Tensor, Tensor]:
    """Σ_{j ≤ i} (φ_i · ψ_j) v_j at every i: pair by pair inside a chunk, by Σ ψ ⊗ v over the chunks before.

    Args:
        phi: φ by shared head, `(B, H', H / H', N, r)`.
        psi: ψ, `(B, H', N, r)`.
        weighed: v, with the mass of its point, `(B, H', N, m)`.
        before: Σ ψ ⊗ v before the first point, `(B, H', r, m)`; None: 0.
        chunk: largest number of points in a chunk.

    Returns:
        `(B, H', H / H', N, m)`, and Σ ψ ⊗ v after the last point, `(B, H', r, m)`.
    """
    length = psi.shape[2]
    chunks = 1 if is_open(length) else max(1, -(-length // chunk))
    size = -(-length // chunks)
    fill = chunks * size - length
    # contiguous: with symbolic sizes the compiler assumes that padded tensors are, but padding by 0 keeps strides
    phi, psi, weighed = (
        pad(part.contiguous(), (0, 0, 0, fill)).unflatten(-2, (chunks, size)) for part in (phi, psi, weighed)
    )  # (B, H', H / H', chunks, size, r), and without H / H'
    totals = (psi.mT @ weighed).cumsum(2)  # (B, H', chunks, r, m)
    if before is not None:
        totals = totals + before[:, :, None]
    first = torch.zeros_like(totals[:, :, :1]) if before is None else before[:, :, None]
    earlier = torch.cat([first, totals[:, :, :-1]], dim=2)
    within = (phi @ psi.mT[:, :, None]).tril() @ weighed[:, :, None]
    out = (within + phi @ earlier[:, :, None]).flatten(-3, -2)
    return out[..., :length, :], totals[:, :, -1]


def state_refusals(integral: Integral[Stateful], state: State | None) -> list[str]:
    """Reasons why a state cannot continue at these points: their positions would restart with every chunk."""
    domain = integral.domain
    # a sequence from position 0 may be one without given positions
    is_placed = not domain.is_generated or domain.times is not None or any(any(b.origin) for b in domain.grid_blocks)
    if state is None or is_placed or not integral.kernel.reads_time:
        return []
    return [
        f"the kernel reads positions, and {integral.domain!r} does not continue those of a sequence; "
        "give Sequence(n, first=...) or Sequence(times=...), or switch positions off in inputs="
    ]
