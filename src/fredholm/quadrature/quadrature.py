"""The abstract quadrature, and the nodes that it chooses.

Legend of this folder
    ω_j        mass of point j                                 N, Nq, M   points, queries, nodes
    p_j        probability of drawing point j                  p_ij       the same for query i
"""

import abc
from typing import Any, final

import torch
from torch import Tensor, nn

from fredholm.evaluation import Evaluation, Integral


class Nodes(abc.ABC):
    """Weighted points that replace all points of a domain in an integral."""

    @abc.abstractmethod
    def integrate(self, evaluation: Evaluation, integral: Integral[Any]) -> Tensor:
        """The sum over the nodes, `(B, Nq, d_out)`."""

    def proposal_loss(self, evaluation: Evaluation, integral: Integral[Any]) -> Tensor | None:
        """Loss of the distribution that the nodes were drawn from against the best one; None: nothing is learned.

        Its gradient reaches the parameters of that distribution and nothing else.
        """
        return None


class Quadrature(nn.Module, abc.ABC):
    """Chooses the nodes of an integral; kernel and parameters stay the same.

    A kernel must be pairwise (`Kernel.is_pairwise`). A normalised kernel is a quotient of two integrals, and both are
    summed at the nodes.
    """

    @abc.abstractmethod
    def nodes(self, integral: Integral[Any]) -> Nodes | None:
        """The nodes of this integral; None: all points."""

    @abc.abstractmethod
    def describe(self, num_points: int) -> str:
        """A line that describes the nodes for a domain of `num_points` points."""

    @final
    @property
    def name(self) -> str:
        """The quadrature's name."""
        return type(self).__name__


@final
class Full(Quadrature):
    """Sums over all points, as an operator without a quadrature does."""

    def nodes(self, integral: Integral[Any]) -> Nodes | None:
        """None; see `Quadrature.nodes`."""
        return None

    def describe(self, num_points: int) -> str:
        """See `Quadrature.describe`."""
        return f"all {num_points} points"


def mass_of(integral: Integral[Any]) -> Tensor:
    """ω, `(1 or B, N)`."""
    return torch.atleast_2d(integral.domain.weights)
