"""Points that all queries share."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from fredholm.domains import subset
from fredholm.quadrature.nodes import Integral, Integrand, Nodes
from fredholm.quadrature.pairs import Learning, cross_entropy, pair_norms, share, take


@final
class SharedNodes(Nodes):
    """Some of the points, the same for every query, perhaps others for each head; sums stay dense matrix products.

    Args:
        index: `(B, H, M)` int64, H = 1 or the heads; repeated or not, and ascending for a causal kernel.
        weights: what each weighs, `(B, H, M)`, >= 0.
        log_probability: gives log p of each under the distribution they were drawn from, with its gradient,
            `(B, H, M)`; None where nothing is learned.
        learning: how that distribution learns.
    """

    def __init__(
        self,
        index: Tensor,
        weights: Tensor,
        log_probability: Callable[[], Tensor] | None = None,
        learning: Learning | None = None,
    ) -> None:
        self.index, self.weights = index, weights
        self.log_probability, self.learning = log_probability, learning

    def integrate(self, integral: Integral, integrand: Integrand) -> Tensor:
        """See `Nodes.integrate`."""
        query_domain, times = integrand.ordered_queries()
        query, heads = integrand.query, self.index.shape[1]
        parts = []
        for h in range(heads):
            domain = subset(integrand.domain, self.index[:, h], self.weights[:, h], times)
            own = integral if heads == 1 else integral.head(h)
            signal = take(share(integrand.u, h, heads), self.index[:, h])
            parts.append(own(signal, domain, None if query is None else share(query, h, heads), query_domain))
        return parts[0] if heads == 1 else torch.cat(parts, dim=-1)

    def proposal_loss(self, integral: Integral, integrand: Integrand) -> Tensor | None:
        """Cross-entropy towards the best common distribution, p_j ∝ ω_j sqrt(Σ_i ‖κ_ij u_j‖²).

        That one minimises the variance summed over the queries. A mean over batch and heads; see `Nodes.proposal_loss`.
        """
        if self.log_probability is None or self.learning is None or integrand.query_domain.num_points == 0:
            return None
        mass = integrand.mass.expand(len(self.index), -1)
        heads = self.index.shape[1]
        squares = []
        with torch.no_grad():
            rows = torch.randint(integrand.query_domain.num_points, (self.learning.num_targets,), device=mass.device)
            for h in range(heads):
                own = integral if heads == 1 else integral.head(h)
                index = self.index[:, h, None].expand(-1, len(rows), -1)
                squares.append(pair_norms(own, integrand, index, rows, h, heads).square().sum(1))
            target = torch.stack(squares, dim=1).sqrt() * take(mass, self.index)
        return self.learning.loss_weight * cross_entropy(target, self.log_probability())
