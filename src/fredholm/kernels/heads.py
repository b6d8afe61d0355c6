"""Channels by head, and kernels that act on each head by itself."""

import torch
from torch import Tensor


def split_heads(u: Tensor, num_heads: int) -> Tensor:
    """`(B, N, C)` to `(B, H, N, d)`: head h has channels h·d … (h + 1)·d - 1, d = C / H."""
    return u.unflatten(-1, (num_heads, u.shape[-1] // num_heads)).transpose(1, 2)


def each_query_head(keys: Tensor, heads: int) -> Tensor:
    """Keys, values or constants of some heads `(B, H', ...)`, H' a divisor of H, for each of H heads of queries."""
    return keys if keys.shape[1] == heads else keys.repeat_interleave(heads // keys.shape[1], dim=1)


def block_diagonal(blocks: Tensor) -> Tensor:
    """κ head by head, `(B, H, Nq, N, d, d)`, as matrices on all channels, `(B, Nq, N, H·d, H·d)`."""
    full = torch.diag_embed(blocks.permute(0, 2, 3, 4, 5, 1), dim1=3, dim2=5)  # (B, Nq, N, H, d, H, d)
    return full.flatten(5).flatten(3, 4)


def weigh_by_head(kappa: Tensor, pair_weights: Tensor) -> Tensor:
    """κ `(B, Nq, N, d_out, d_in)` times m `(B', H', Nq, N)`; of the output channels each head has its share, in a row.

    Raises:
        ValueError: when heads do not divide the output channels.
    """
    heads = pair_weights.shape[1]
    if kappa.shape[-2] % heads:
        raise ValueError(
            f"Dense: pair weights for {heads} heads do not fit a kernel with {kappa.shape[-2]} output channels"
        )
    by_head = kappa.unflatten(-2, (heads, -1)) * pair_weights.movedim(1, -1)[..., None, None].to(kappa.dtype)
    return by_head.flatten(-3, -2)
