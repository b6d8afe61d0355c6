"""The abstract quadrature: where an integral is sampled."""

import abc
from typing import Any, final

from torch import nn

from fredholm.evaluation import Integral
from fredholm.quadrature.nodes import Nodes


class Quadrature(nn.Module, abc.ABC):
    """Chooses the nodes of an integral; the kernel and its weights stay what they are.

    A kernel must be pairwise (`Kernel.is_pairwise`). A normalised kernel is a quotient of two integrals, and both are
    summed at the nodes.
    """

    @abc.abstractmethod
    def nodes(self, integral: Integral[Any]) -> Nodes | None:
        """The nodes of this integral; None: every point, as it is."""

    @abc.abstractmethod
    def describe(self, num_points: int) -> str:
        """What is summed instead of all points of such a domain, in a line."""

    @final
    @property
    def name(self) -> str:
        """The quadrature's name."""
        return type(self).__name__
