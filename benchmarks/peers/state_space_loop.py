"""The selective state space as a plain loop: every point discretised at once, then one step after the other."""

import torch
from torch import Tensor
from torch.nn import functional as F


def selective_loop(
    u: Tensor, content: Tensor, step_weight: Tensor, step_bias: Tensor, log_a: Tensor, feedthrough: Tensor
) -> Tensor:
    """Mamba's Algorithm 2 from weights in its layout, differentiated by autograd.

    Args:
        u: signal, `(B, T, d)`.
        content: weight rows of the low-rank step, of B and of C, `(rank + 2 n, d)`.
        step_weight, step_bias: map from the low-rank step to all channels, `(d, rank)` and `(d,)`.
        log_a: logarithms of -A, `(d, n)`.
        feedthrough: D, `(d,)`.
    """
    (d, rank), n = step_weight.shape, log_a.shape[1]
    low_rank, read_in, read_out = F.linear(u, content).split([rank, n, n], dim=-1)
    step = F.softplus(F.linear(low_rank, step_weight, step_bias))
    decay = torch.exp(step[..., None] * -log_a.exp())  # (B, T, d, n)
    driven = (step * u)[..., None] * read_in[:, :, None]
    h = u.new_zeros(u.shape[0], d, n)
    rows = []
    # unbound once: indexing one point at a time would allocate a whole array in the backward pass of every point
    for a, w, c in zip(decay.unbind(1), driven.unbind(1), read_out[..., None].unbind(1), strict=True):
        h = a * h + w
        rows.append((h @ c)[..., 0])
    return torch.stack(rows, dim=1) + feedthrough * u
