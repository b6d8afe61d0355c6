"""What a pairwise perceptron integral is computed from.

Legend of this folder (kernel g of G; batch entry b; query i; key j; hidden unit k; for κ see `kernels.PairwiseForm`)
    p_ijk   pre-activation of the first layer            h_ijk   last hidden layer
    R_ijk   the part of p that does not see the batch    α_ik    the part that only the query sees
    M_i     (w, d) "virtual queries" K + P ⊙ u_i, so that p_ij = R_ij + α_i + M_i u_j: one matrix product for all units
    S_i     Σ_j h_ij ⊗ ω_j u_j, (w, d)                   out_i   W S_i: the last layer is applied once a query

Per pair this costs 2w(2d) flops beyond R instead of the 2w·d² of evaluating κ; nothing of size N x N outlives a tile,
and the backward pass rebuilds each tile from the inputs alone.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class IntegralInputs(NamedTuple):
    """All tensors of one integral; an absent one is empty. B' is 1 or B."""

    query: Tensor  # u at the queries, (B, G, Nq, d)
    key: Tensor  # u at the keys, (B, G, N, d)
    weights: Tensor  # ω, (B', N)
    query_bias: Tensor  # (B', G, Nq, w)
    key_bias: Tensor  # (B', G, N, w)
    query_weight: Tensor  # (G, w, d)
    key_weight: Tensor  # K: (G, w, d)
    product_weight: Tensor  # P: (G, w, d)
    sin_weight: Tensor  # (G, w, L)
    cos_weight: Tensor  # (G, w, L)
    query_phase: Tensor  # [sin, cos]: (B', Nq, 2L)
    key_phase: Tensor  # (B', N, 2L)
    distance_weight: Tensor  # (G, w)
    query_pos: Tensor  # (B', Nq, s)
    key_pos: Tensor  # (B', N, s)
    hidden_weight: Tensor  # (m, G, w, w)
    hidden_bias: Tensor  # (m, G, w)
    output_weight: Tensor  # W: (G, w, d, d_out)
    table: Tensor  # R of the grid block by displacement, (G, w, 2 n_1 - 1, ...)
    seen: Tensor  # number of leading keys each query may see, int64 (B', Nq)


class IntegralOutputs(NamedTuple):
    """What an integral gives."""

    out: Tensor  # Σ_j ω_j W h_ij u_j, without the constant part of the kernel: (B, G, Nq, d_out)


class Block(NamedTuple):
    """Where the grid lies: its queries, in reversed order, from `query_start`, its keys from `key_start`."""

    query_start: int
    key_start: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of grid points; 0 without a grid."""
        return int(torch.Size(self.shape).numel()) if self.shape else 0

    @property
    def row(self) -> int:
        """Number of points that share their first grid coordinate."""
        return self.size // self.shape[0] if self.shape else 1


def length(run: slice) -> int:
    """Number of indices in a slice with start and stop."""
    return run.stop - run.start
