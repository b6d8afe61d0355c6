"""The weights of a two-layer kernel MLP in the common layout of all peers."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F


@final
@dataclass(frozen=True, kw_only=True)
class KernelWeights:
    """Weights of ``vec K = W2 act(W1 z + b1) + b2`` per head, with ``z`` ordered as in `kernel_input`.

    hidden ``(H, w, F)``, hidden_bias ``(H, w)``, output ``(H, d_h * d_h, w)`` and output_bias ``(H, d_h * d_h)``
    with K row-major (row = output channel), frequencies ``(L, s)`` the frozen Fourier matrix B.
    """

    hidden: Tensor
    hidden_bias: Tensor
    output: Tensor
    output_bias: Tensor
    frequencies: Tensor
    activation: str = "gelu"

    @property
    def num_heads(self) -> int:
        return self.hidden.shape[0]

    @property
    def head_dim(self) -> int:
        return round(self.output_bias.shape[1] ** 0.5)


def activate(hidden: Tensor, activation: str) -> Tensor:
    """The kernel MLP's activation: "gelu", "gelu_tanh" or "relu"."""
    if activation == "relu":
        return F.relu(hidden)
    return F.gelu(hidden, approximate="tanh" if activation == "gelu_tanh" else "none")


def evaluate_kernel(weights: KernelWeights, z: Tensor) -> Tensor:
    """The kernel MLP on concatenated inputs ``z (H, ..., F)``: all matrices ``(H, ..., d_h, d_h)``, materialised."""
    rows = z.flatten(1, -2)
    hidden = torch.baddbmm(weights.hidden_bias[:, None], rows, weights.hidden.transpose(1, 2))
    entries = torch.baddbmm(
        weights.output_bias[:, None], activate(hidden, weights.activation), weights.output.transpose(1, 2)
    )
    return entries.view(*z.shape[:-1], weights.head_dim, weights.head_dim)


def split_heads(u: Tensor, num_heads: int) -> Tensor:
    """``(B, N, H * d_h)`` to ``(H, B, N, d_h)``."""
    return u.unflatten(-1, (num_heads, -1)).permute(2, 0, 1, 3)


def join_heads(heads: Tensor) -> Tensor:
    """``(H, B, N, d_h)`` to ``(B, N, H * d_h)``."""
    return heads.permute(1, 2, 0, 3).flatten(2)
