"""Channels by head, and kernels that act on each head by itself."""

import torch
from torch import Tensor


def split_heads(u: Tensor, num_heads: int) -> Tensor:
    """`(B, N, C)` to `(B, H, N, d)`: head h has channels h·d … (h + 1)·d - 1, d = C / H."""
    return u.unflatten(-1, (num_heads, u.shape[-1] // num_heads)).transpose(1, 2)


def block_diagonal(blocks: Tensor) -> Tensor:
    """κ head by head, `(B, H, Nq, N, d, d)`, as matrices on all channels, `(B, Nq, N, H·d, H·d)`."""
    batch, heads, n_q, n_k, d, _ = blocks.shape
    full = blocks.new_zeros(batch, n_q, n_k, heads, d, heads, d)
    diagonal = torch.arange(heads, device=blocks.device)
    # advanced indices apart in the index list put their dimension first
    full[:, :, :, diagonal, :, diagonal] = blocks.transpose(0, 1)
    return full.reshape(batch, n_q, n_k, heads * d, heads * d)
