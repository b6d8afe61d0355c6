"""What a quadrature looks at, and what it chooses: nodes at which an integral is summed.

Legend of this folder
    ω_j        mass of point j                                 N, Nq, M   points, queries, nodes
    p_j        probability of drawing point j                  p_ij       the same for query i
"""

import abc
from typing import NamedTuple

from torch import Tensor

from fredholm.domains import Domain, Points, order_times


class Integral(abc.ABC):
    """Sums κ u over all points of whatever domain it is given; an operator makes one of its kernel."""

    @abc.abstractmethod
    def __call__(self, u: Tensor, domain: Domain, query: Tensor | None, query_domain: Domain | None) -> Tensor:
        """Arguments and result as in `Evaluation.integrate`."""

    @abc.abstractmethod
    def head(self, index: int) -> "Integral":
        """The integral of one head, on its share of the channels."""


class Integrand(NamedTuple):
    """An integral that is to be sampled.

    `num_heads` says for how many heads nodes may differ: each then has an equal share of the channels; 1: for none.
    """

    u: Tensor  # (B, N, d_in)
    domain: Domain
    query: Tensor | None  # (B, Nq, query_dim); None only where neither kernel nor proposal reads it
    query_domain: Domain
    mass: Tensor  # ω: (1 or B, N)
    num_heads: int
    is_causal: bool

    def ordered_queries(self) -> tuple[Domain, Tensor | None]:
        """The queries' domain and the points' times, `(1 or B, N)`, by which nodes keep their order; None: no order."""
        if not self.is_causal:
            return self.query_domain, None
        asked, times = order_times(self.query_domain, self.domain)
        queries = self.query_domain
        pos = queries.pos if queries.pos.ndim == 3 else queries.pos[None]
        batch = max(len(pos), len(asked))
        pos, asked = pos.expand(batch, -1, -1), asked.expand(batch, -1)
        return Points.derived(queries, pos, pos.new_ones(pos.shape[:2]), asked), times


class Nodes(abc.ABC):
    """Points, with weights, that stand for all points of a domain in an integral."""

    @abc.abstractmethod
    def integrate(self, integral: Integral, integrand: Integrand) -> Tensor:
        """The sum over the nodes, `(B, Nq, d_out)`."""

    def proposal_loss(self, integral: Integral, integrand: Integrand) -> Tensor | None:
        """How far the distribution that the nodes were drawn from is from the best one; None: nothing is learned.

        Its gradient reaches the parameters of that distribution and nothing else.
        """
        return None
