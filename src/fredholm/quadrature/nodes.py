"""What a quadrature looks at, and what it chooses: nodes at which an integral is summed.

Legend of this folder
    ω_j        mass of point j                                 N, Nq, M   points, queries, nodes
    p_j        probability of drawing point j                  p_ij       the same for query i
"""

import abc
from typing import Any

import torch
from torch import Tensor

from fredholm.evaluation import Evaluation, Integral


class Nodes(abc.ABC):
    """Points, with weights, that stand for all points of a domain in an integral."""

    @abc.abstractmethod
    def integrate(self, evaluation: Evaluation, integral: Integral[Any]) -> Tensor:
        """The sum over the nodes, `(B, Nq, d_out)`."""

    def proposal_loss(self, evaluation: Evaluation, integral: Integral[Any]) -> Tensor | None:
        """How far the distribution that the nodes were drawn from is from the best one; None: nothing is learned.

        Its gradient reaches the parameters of that distribution and nothing else.
        """
        return None


def mass_of(integral: Integral[Any]) -> Tensor:
    """ω, `(1 or B, N)`."""
    return torch.atleast_2d(integral.domain.weights)
