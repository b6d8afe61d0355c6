"""Points that each query has for itself."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fredholm.domains import Points
from fredholm.quadrature.nodes import Integral, Integrand, Nodes
from fredholm.quadrature.pairs import Learning, batched, cross_entropy, pair_norms, take

GATHERED_ELEMENTS = 1 << 24
"""Numbers that a chunk of queries gathers from the signal."""


@final
class NodesPerQuery(Nodes):
    """Some of the points, others for each query, which becomes a batch entry of its own.

    Queries go through in chunks, which a backward pass gathers again, so that memory stays O(N·d).

    Args:
        index: `(1 or B, Nq, M)` int64; for a causal kernel all visible to their query, or of weight 0.
        weights: what each weighs, of the same shape, >= 0.
        log_probability: gives log p, with its gradient, of the nodes of some queries `(q,)` under the distribution they
            were drawn from, `(B, q, M)`; None where nothing is learned.
        learning: how that distribution learns.
    """

    def __init__(
        self,
        index: Tensor,
        weights: Tensor,
        log_probability: Callable[[Tensor], Tensor] | None = None,
        learning: Learning | None = None,
    ) -> None:
        self.index, self.weights = index, weights
        self.log_probability, self.learning = log_probability, learning

    def integrate(self, integral: Integral, integrand: Integrand) -> Tensor:
        """See `Nodes.integrate`."""
        batch, _, channels = integrand.u.shape
        num_queries, samples = self.index.shape[1:]
        size = max(1, GATHERED_ELEMENTS // max(1, batch * samples * channels))
        out = []
        for start in range(0, max(num_queries, 1), size):
            rows = slice(start, min(start + size, num_queries))
            if torch.is_grad_enabled():
                out.append(checkpoint(self._chunk, integral, integrand, rows, use_reentrant=False))
            else:
                out.append(self._chunk(integral, integrand, rows))
        return torch.cat(out, dim=1)

    def _chunk(self, integral: Integral, integrand: Integrand, rows: slice) -> Tensor:
        u, batch, queries = integrand.u, len(integrand.u), rows.stop - rows.start
        index, weights = (part[:, rows].expand(batch, -1, -1) for part in (self.index, self.weights))
        pos = take(batched(integrand.domain.pos), index).flatten(0, 1)
        nodes = Points.derived(integrand.domain, pos, weights.flatten(0, 1))
        asked_pos = batched(integrand.query_domain.pos)[:, rows].expand(batch, -1, -1).reshape(-1, 1, pos.shape[-1])
        asked = Points.derived(integrand.query_domain, asked_pos, weights.new_ones(batch * queries, 1))
        query = None if integrand.query is None else integrand.query[:, rows].flatten(0, 1)[:, None]
        out = integral(take(u, index).flatten(0, 1), nodes, query, asked)
        return out.view(batch, queries, out.shape[-1])

    def proposal_loss(self, integral: Integral, integrand: Integrand) -> Tensor | None:
        """Cross-entropy towards the best distribution of each query, p_ij ∝ ω_j ‖κ_ij u_j‖ (ITNet, eq. 209).

        A mean over batch and queries; see `Nodes.proposal_loss`.
        """
        if self.log_probability is None or self.learning is None or integrand.query_domain.num_points == 0:
            return None
        with torch.no_grad():
            rows = torch.randint(self.index.shape[1], (self.learning.num_targets,), device=self.index.device)
            index = self.index[:, rows].expand(len(integrand.u), -1, -1)
            target = pair_norms(integral, integrand, index, rows)
            target = target * take(integrand.mass, index)
        return self.learning.loss_weight * cross_entropy(target, self.log_probability(rows))
