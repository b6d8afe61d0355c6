"""Attention with an additive score, a sum of one term per point.

Legend
    v_j    value W u(y_j) of a head, d channels, which the score reads too        p, q   a vector each per head

    s_ij = leaky_relu(p·v_i + q·v_j),   κ_ij = softmax over j of s_ij times W

Source: Veličković et al., Graph Attention Networks (arXiv 1710.10903), eq. 1-5: on the edges of a graph with self-loops
(`kernels.OnEdges`) this is their layer.
"""

import dataclasses
from typing import final

import torch
from torch import Tensor, nn

from fredholm.domains import Domain
from fredholm.kernels.attention.scored import Score, Scored, ScoreForm, Softmax
from fredholm.kernels.heads import check_heads


@final
@dataclasses.dataclass(frozen=True)
class LeakyReLU(Score):
    """s = leaky_relu(q·k + b)."""

    slope: float

    def value(self, dot: Tensor, distance: Tensor | None, *numbers: Tensor) -> Tensor:
        """See `Score.value`."""
        return nn.functional.leaky_relu(dot, self.slope)


@final
class AdditiveAttention(Scored):
    """κ = softmax(leaky_relu(p·W u(x) + q·W u(y))) W, head by head.

    Args:
        embed_dim: channels in and out; a multiple of `num_heads`.
        num_heads: heads H.
        negative_slope: slope of the leaky ReLU below 0, finite.

    Attributes:
        value_weight: W, `(embed_dim, embed_dim)`.
        query_vector, key_vector: p and q, `(H, embed_dim / H)`.

    Raises:
        ValueError: on heads that do not divide the channels.
    """

    pos_dim = None
    is_causal = False
    reads_query = True
    reads_bias = True
    normaliser = Softmax()

    def __init__(self, embed_dim: int, num_heads: int = 1, *, negative_slope: float = 0.2) -> None:
        super().__init__()
        check_heads("kernels.AdditiveAttention", embed_dim, num_heads, num_heads)
        self.in_dim = self.out_dim = embed_dim
        self.num_heads, self.score = num_heads, LeakyReLU(float(negative_slope))
        self.value_weight = nn.Parameter(torch.empty(embed_dim, embed_dim))
        self.query_vector = nn.Parameter(torch.empty(num_heads, embed_dim // num_heads))
        self.key_vector = nn.Parameter(torch.empty(num_heads, embed_dim // num_heads))
        for weight in self.parameters():
            nn.init.xavier_uniform_(weight)

    def score_form(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain) -> ScoreForm:
        """The score as a dot product: the query's term times a key of 1, plus the key's term as its constant."""
        here, value = (self._values(signal) for signal in (query, u))  # (B, H, N, d)
        of_query = (here * self.query_vector[:, None]).sum(-1, keepdim=True)
        of_key = (value * self.key_vector[:, None]).sum(-1)
        return ScoreForm(of_query, torch.ones_like(value[..., :1]), value, key_bias=of_key)

    def value_matrices(self) -> Tensor:
        """W of each head; see `ValueMixing.value_matrices`."""
        return self.value_weight.unflatten(0, (self.num_heads, -1))

    def _values(self, signal: Tensor) -> Tensor:
        return nn.functional.linear(signal, self.value_weight).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"embed_dim={self.in_dim}, num_heads={self.num_heads}, negative_slope={self.score}"
