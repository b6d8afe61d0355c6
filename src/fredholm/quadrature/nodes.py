"""Nodes shared by all queries, and nodes of each query."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from fredholm.domains import PairList, subset
from fredholm.evaluation import Evaluation, Integral, share
from fredholm.evaluation.integral import ordered_queries
from fredholm.quadrature.pairs import Learning, cross_entropy, pair_norms, take
from fredholm.quadrature.quadrature import Nodes, mass_of


@final
class SharedNodes(Nodes):
    """A selection of points, the same for every query and possibly different per head; sums stay dense products.

    Args:
        index: `(B, H, M)` int64, H = 1 or the heads; repeated or not, and ascending for a causal kernel.
        weights: weight of each node, `(B, H, M)`, >= 0.
        log_probability: returns log p of each node under the distribution that it was drawn from, with its gradient,
            `(B, H, M)`; None where nothing is learned.
        learning: settings of that distribution's loss.
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

    def integrate(self, evaluation: Evaluation, integral: Integral[Any]) -> Tensor:
        """See `Nodes.integrate`."""
        query_domain, times = ordered_queries(integral)
        heads = self.index.shape[1]
        parts = []
        for h in range(heads):
            domain = subset(integral.domain, self.index[:, h], self.weights[:, h], times)
            kernel = integral.kernel if heads == 1 else integral.head(h).kernel
            signal = take(share(integral.u, h, heads), self.index[:, h])
            query = share(integral.query, h, heads) if integral.has_query_signal else None
            parts.append(evaluation.integrate(Integral(kernel, signal, domain, query, query_domain)))
        return parts[0] if heads == 1 else torch.cat(parts, dim=-1)

    def proposal_loss(self, evaluation: Evaluation, integral: Integral[Any]) -> Tensor | None:
        """Cross-entropy towards the best common distribution, p_j ∝ ω_j sqrt(Σ_i ‖κ_ij u_j‖²).

        This p minimises the variance summed over the queries. A mean over batch and heads; see `Nodes.proposal_loss`.
        """
        if self.log_probability is None or self.learning is None or integral.num_queries == 0:
            return None
        mass = mass_of(integral).expand(self.index.shape[0], -1)
        heads = self.index.shape[1]
        squares = []
        with torch.no_grad():
            rows = torch.randint(integral.num_queries, (self.learning.num_targets,), device=mass.device)
            for h in range(heads):
                index = self.index[:, h, None].expand(-1, rows.shape[0], -1)
                squares.append(pair_norms(evaluation, integral, index, rows, h, heads).square().sum(1))
            target = torch.stack(squares, dim=1).sqrt() * take(mass, self.index)
        return self.learning.loss_weight * cross_entropy(target, self.log_probability())


@final
class NodesPerQuery(Nodes):
    """A selection of points for each query: a list of pairs (`Domain.list_pairs`), so that memory stays O(N·M).

    Args:
        index: `(1 or B, Nq, M)` int64; for a causal kernel all visible to their query, or of weight 0.
        weights: weight of each node, of the same shape, >= 0.
        log_probability: returns log p, with its gradient, of the nodes of some queries `(q,)` under the distribution
            that they were drawn from, `(B, q, M)`; None where nothing is learned.
        learning: settings of that distribution's loss.
        is_mean: whether the weights of each query sum to 1, so that the sum is a mean, over its past or all points.
    """

    def __init__(
        self,
        index: Tensor,
        weights: Tensor,
        log_probability: Callable[[Tensor], Tensor] | None = None,
        learning: Learning | None = None,
        *,
        is_mean: bool = False,
    ) -> None:
        self.is_mean = is_mean
        self.index, self.weights = index, weights
        self.log_probability, self.learning = log_probability, learning

    def integrate(self, evaluation: Evaluation, integral: Integral[Any]) -> Tensor:
        """See `Nodes.integrate`."""
        domain = integral.domain
        mass = take(mass_of(integral), self.index)
        density = self.weights / torch.where(mass > 0, mass, 1.0)
        pairs = PairList.of_index(self.index, density, domain.num_points)
        listed = domain.list_pairs(pairs, is_mean=self.is_mean)
        query = integral.query if integral.has_query_signal else None
        return evaluation.integrate(Integral(integral.kernel, integral.u, listed, query, integral.query_domain))

    def proposal_loss(self, evaluation: Evaluation, integral: Integral[Any]) -> Tensor | None:
        """Cross-entropy towards the best distribution of each query, p_ij ∝ ω_j ‖κ_ij u_j‖ (ITNet, eq. 209).

        A mean over batch and queries; see `Nodes.proposal_loss`.
        """
        if self.log_probability is None or self.learning is None or integral.num_queries == 0:
            return None
        with torch.no_grad():
            rows = torch.randint(self.index.shape[1], (self.learning.num_targets,), device=self.index.device)
            index = self.index[:, rows].expand(integral.u.shape[0], -1, -1)
            target = pair_norms(evaluation, integral, index, rows)
            target = target * take(mass_of(integral), index)
        return self.learning.loss_weight * cross_entropy(target, self.log_probability(rows))
