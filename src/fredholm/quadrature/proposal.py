"""Learned distributions over points, for Monte Carlo integration.

Legend
    f(y)         hidden features of a point: a layer of its position, harmonics of it, and u(y)
    a, q, k      linear maps of f                    τ     a rate
    ℓ            logits: p ∝ ω exp(ℓ); ℓ = 0 at the start, where points are drawn by their mass

    KeyProposal    ℓ_hj = a_h(f_j)                                    one distribution per head, for all queries
    PairProposal   ℓ_ij = q(f_i)·k(f_j) + a(f_j) - τ ‖x_i - y_j‖²      one distribution per query

Source: ITNet (arXiv 2606.19538), 3.2, calls for a learnable p(y|x) with parameters of its own and leaves its form open.
A pair costs 2 rank + 3s flops here, against the 4 w d of a perceptron kernel.
"""

import math
from typing import final

import torch
from torch import Tensor, nn

from fredholm._settings import check_count
from fredholm.domains import Domain, Points


@final
class PointFeatures(nn.Module):
    """f: `(B, N, width)` from a signal and its positions. Gradients stop here: only the proposal learns.

    Args:
        embed_dim: channels of the signal.
        pos_dim: coordinates s of a position.
        width: hidden units.
        harmonics: whole frequencies 1 … `harmonics` along each axis, in cycles per unit length.
    """

    def __init__(self, embed_dim: int, pos_dim: int, width: int, harmonics: int) -> None:
        super().__init__()
        self.embed_dim, self.pos_dim = embed_dim, pos_dim
        self.register_buffer("frequencies", 2 * math.pi * torch.arange(1, harmonics + 1))
        self.frequencies: Tensor
        self.layer = nn.Linear(embed_dim + pos_dim * (1 + 2 * harmonics), width)

    def forward(self, u: Tensor, domain: Domain) -> Tensor:
        """f at every point of the domain, `(B, N, width)`.

        Raises:
            ValueError: on a signal or positions of another size.
        """
        if (u.shape[-1], domain.pos_dim) != (self.embed_dim, self.pos_dim):
            raise ValueError(
                f"quadrature: the proposal was built for {self.embed_dim} channels at positions with {self.pos_dim} "
                f"coordinates; the signal has {u.shape[-1]} at {domain.pos_dim}"
            )
        pos = domain.pos.detach().to(torch.float32)
        phase = (pos[..., None] * self.frequencies).flatten(-2)
        own = torch.cat([pos, phase.sin(), phase.cos()], dim=-1)
        inputs = torch.cat([own.expand(u.shape[0], -1, -1), u.detach().to(torch.float32)], dim=-1)
        return nn.functional.gelu(self.layer(inputs.to(self.layer.weight.dtype)))


@final
class KeyProposal(nn.Module):
    """One distribution over the points per head, shared by all queries.

    Args:
        embed_dim: channels of the signal.
        pos_dim: coordinates s of a position.
        num_heads: heads with a distribution of their own: 1, or as many as the kernel has.
        width: hidden units.
        harmonics: frequencies per coordinate.
    """

    def __init__(
        self, embed_dim: int, pos_dim: int, num_heads: int = 1, *, width: int = 32, harmonics: int = 4
    ) -> None:
        super().__init__()
        sizes = {"embed_dim": embed_dim, "pos_dim": pos_dim, "num_heads": num_heads, "width": width}
        for what, size in sizes.items():
            check_count("quadrature.KeyProposal", what, size)
        check_count("quadrature.KeyProposal", "harmonics", harmonics, least=0)
        self.embed_dim, self.pos_dim, self.num_heads = embed_dim, pos_dim, num_heads
        self.features = PointFeatures(embed_dim, pos_dim, width, harmonics)
        self.readout = nn.Linear(width, num_heads)
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def logits(self, u: Tensor, domain: Domain) -> Tensor:
        """ℓ, `(B, num_heads, N)`."""
        return self.readout(self.features(u, domain)).transpose(1, 2)


@final
class PairProposal(nn.Module):
    """A distribution over the points for each query, by distance and by similarity of features.

    Args:
        embed_dim: channels of the signal.
        pos_dim: coordinates s of a position.
        query_dim: channels of the signal at the queries; None: embed_dim.
        rank: length of q and k.
        width: hidden units.
        harmonics: frequencies per coordinate.
    """

    def __init__(
        self,
        embed_dim: int,
        pos_dim: int,
        *,
        query_dim: int | None = None,
        rank: int = 16,
        width: int = 32,
        harmonics: int = 4,
    ) -> None:
        super().__init__()
        query_dim = embed_dim if query_dim is None else query_dim
        sizes = {"embed_dim": embed_dim, "pos_dim": pos_dim, "query_dim": query_dim, "rank": rank, "width": width}
        for what, size in sizes.items():
            check_count("quadrature.PairProposal", what, size)
        check_count("quadrature.PairProposal", "harmonics", harmonics, least=0)
        self.embed_dim, self.pos_dim, self.query_dim = embed_dim, pos_dim, query_dim
        self.key_features = PointFeatures(embed_dim, pos_dim, width, harmonics)
        self.query_features = PointFeatures(query_dim, pos_dim, width, harmonics)
        self.key = nn.Linear(width, rank, bias=False)
        self.query = nn.Linear(width, rank, bias=False)
        self.readout = nn.Linear(width, 1)
        self.rate = nn.Parameter(torch.zeros(1))
        for layer in (self.query, self.readout):
            nn.init.zeros_(layer.weight)
        nn.init.zeros_(self.readout.bias)

    def logits(self, u: Tensor, domain: Domain, query: Tensor, query_domain: Domain, rows: Tensor) -> Tensor:
        """ℓ of the queries `rows` `(n,)`, `(B, n, N)`."""
        keys = self.key_features(u, domain)
        query_pos = query_domain.pos[..., rows, :]
        nodes = Points.derived(query_domain, query_pos, query_pos[..., 0])
        queries = self.query(self.query_features(query[:, rows], nodes))
        displacement = domain.displacement(query_pos.detach())
        squared = displacement.square().sum(-1).to(queries.dtype)
        return queries @ self.key(keys).mT + self.readout(keys).mT - self.rate[0] * squared
