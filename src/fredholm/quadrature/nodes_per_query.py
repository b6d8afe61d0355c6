"""Points that each query has for itself."""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from fredholm.domains import Domain, Points
from fredholm.evaluation import Evaluation, Integral
from fredholm.evaluation.integral import ordered_queries
from fredholm.evaluation.recomputed import recomputed
from fredholm.quadrature.pairs import Learning, batched, cross_entropy, pair_norms, take
from fredholm.quadrature.quadrature import Nodes, mass_of

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
        is_mean: whether the weights of each query sum to 1, so that they are a mean over its past already.
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
        batch, _, channels = integral.u.shape
        num_queries, samples = self.index.shape[1:]
        query_domain = ordered_queries(integral)[0]
        size = max(1, GATHERED_ELEMENTS // max(1, batch * samples * channels))
        out = []
        for start in range(0, max(num_queries, 1), size):
            rows = slice(start, min(start + size, num_queries))
            out.append(recomputed(integral.kernel, self._chunk, evaluation, integral, query_domain, rows))
        return torch.cat(out, dim=1)

    def _chunk(self, evaluation: Evaluation, integral: Integral[Any], query_domain: Domain, rows: slice) -> Tensor:
        u, batch, queries = integral.u, len(integral.u), rows.stop - rows.start
        index, weights = (part[:, rows].expand(batch, -1, -1) for part in (self.index, self.weights))
        pos = take(batched(integral.domain.pos), index).flatten(0, 1)
        nodes = Points.derived(integral.domain, pos, weights.flatten(0, 1))
        asked_pos = batched(query_domain.pos)[:, rows].expand(batch, -1, -1).reshape(-1, 1, pos.shape[-1])
        ones, past = weights.new_ones(batch * queries, 1), query_domain.given_past_mass
        if past is not None:
            past = ones if self.is_mean else past[:, rows].expand(batch, -1).reshape(-1, 1)
        asked = Points.derived(query_domain, asked_pos, ones, past_mass=past)
        query = integral.query[:, rows].flatten(0, 1)[:, None] if integral.has_query_signal else None
        chunk = Integral(integral.kernel, take(u, index).flatten(0, 1), nodes, query, asked)
        out = evaluation.integrate(chunk)
        return out.view(batch, queries, out.shape[-1])

    def proposal_loss(self, evaluation: Evaluation, integral: Integral[Any]) -> Tensor | None:
        """Cross-entropy towards the best distribution of each query, p_ij ∝ ω_j ‖κ_ij u_j‖ (ITNet, eq. 209).

        A mean over batch and queries; see `Nodes.proposal_loss`.
        """
        if self.log_probability is None or self.learning is None or integral.num_queries == 0:
            return None
        with torch.no_grad():
            rows = torch.randint(self.index.shape[1], (self.learning.num_targets,), device=self.index.device)
            index = self.index[:, rows].expand(len(integral.u), -1, -1)
            target = pair_norms(evaluation, integral, index, rows)
            target = target * take(mass_of(integral), index)
        return self.learning.loss_weight * cross_entropy(target, self.log_probability(rows))
