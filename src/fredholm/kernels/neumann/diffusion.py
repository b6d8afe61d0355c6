"""Diffusion along the edges of a graph: a Neumann series of its random walk, cut after some steps.

Legend
    c_y      mass of a node where points are counted (`Domain.counts`)       w_xy    weight of an edge from y to x
    P_xy     (w_xy c_y + 1[x = y] c_y) / (c_x + Σ_z w_xz c_z)                K       steps of the walk
    e_x      1, and γ where c_x = 0: the chance that a walk from x ends where there is mass

    κ(x, y) c_y = [(1 - γ) Σ_{k < K} γᵏ Pᵏ + γᴷ Pᴷ]_xy / e_x,   by   v ← γ P v + (1 - γ) u,   K times from v = u

Constants are preserved: rows sum to 1, also at a node without mass, whose own value no integral reads. Only a node
without mass and without neighbours of mass gets 0. As K grows κ tends to (1 - γ) (I - γP)⁻¹, the chance that a walk
which goes on with probability γ ends at y: personalised PageRank; the truncation error is at most 2 γᴷ in row sum.

Source: Klicpera et al., Predict then Propagate (arXiv 1810.05997), eq. 4-5, there with the symmetric normalisation.
It is the series of infinite attention (InfSA, eq. 8) with a graph's random walk in place of learned scores.
"""

from typing import final

import torch
from torch import Tensor

from fredholm._settings import check_count, check_number
from fredholm.domains import Domain, Graph, PairList
from fredholm.kernels.kernel import Kernel, divided


@final
class Diffusion(Kernel):
    """κ = probabilities of a walk along edges, the same in every channel; without parameters.

    Averages a signal over nearby nodes of a graph, such as a model's predictions where neighbours are mostly similar.
    Needs a `domains.Graph`.

    Args:
        dim: channels, in and out.
        gamma: γ in (0, 1), the chance that the walk goes on.
        num_steps: K >= 1.

    Raises:
        ValueError: on numbers out of range.
    """

    pos_dim = None
    is_causal = False
    reads_query = False
    counts_points = True
    is_pairwise = False

    def __init__(self, dim: int, *, gamma: float = 0.9, num_steps: int = 10) -> None:
        super().__init__()
        for name, value in (("dim", dim), ("num_steps", num_steps)):
            check_count("kernels.Diffusion", name, value)
        check_number("kernels.Diffusion", "gamma", gamma)
        if not 0 < gamma < 1:
            raise ValueError(f"kernels.Diffusion: gamma must be above 0 and below 1; got {gamma}")
        self.in_dim = self.out_dim = dim
        self.gamma, self.num_steps = gamma, num_steps

    def walk(self, domain: Domain, batch: int) -> tuple[PairList, Tensor]:
        """P: the off-diagonal part as listed pairs, whose weights are entries of P, and the diagonal, `(batch, N)`.

        Raises:
            ValueError: for a domain that is no graph.
        """
        if not isinstance(domain, Graph):
            raise ValueError(f"kernels.Diffusion: needs edges, domains.Graph(edge_index, num_nodes); got {domain!r}")
        counts, total = domain.node_counts, domain.degrees + domain.node_counts
        along = divided(domain.edge_counts, total[..., domain.target])
        return domain.edge_pairs(along).repeated(batch), divided(counts, total).view(-1, domain.num_points)

    def matrix(
        self, u: Tensor, domain: Domain, query: Tensor | None = None, query_domain: Domain | None = None
    ) -> Tensor:
        """κ, `(B, N, N, dim, dim)`; see `Kernel.matrix`.

        Raises:
            ValueError: for queries that are not the nodes, and what `walk` refuses.
        """
        if query_domain is not None and not query_domain.has_points_of(domain):
            raise ValueError(f"kernels.Diffusion gives its result at the nodes; got other queries, {query_domain!r}")
        pairs, own = self.walk(domain, u.shape[0])
        one_step = pairs.dense(u.dtype)[:, 0] + torch.diag_embed(own.to(u.dtype))
        identity = torch.eye(domain.num_points, dtype=u.dtype, device=u.device)
        shares = identity
        for _ in range(self.num_steps):
            shares = self.gamma * one_step @ shares + (1 - self.gamma) * identity
        mass = torch.atleast_2d(self.measure(domain)).to(u.dtype)
        shares = torch.where(mass[..., None] > 0, shares, shares / self.gamma)
        kappa = divided(shares, mass[:, None])
        return kappa[..., None, None] * torch.eye(self.in_dim, dtype=u.dtype, device=u.device)

    def extra_repr(self) -> str:
        """The options that `print(module)` shows."""
        return f"dim={self.in_dim}, gamma={self.gamma}, num_steps={self.num_steps}"
