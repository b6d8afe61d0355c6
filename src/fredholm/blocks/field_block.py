"""The abstract block that maps functions to functions."""

import abc

from torch import Tensor, nn

from fredholm.domains import Domain


class FieldBlock(nn.Module, abc.ABC):
    """A block whose output can be evaluated at any point, from a signal known at some points."""

    @abc.abstractmethod
    def forward(self, u: Tensor, domain: Domain) -> Tensor:
        """`(B, N, embed_dim)` on `domain` to the same shape."""

    @abc.abstractmethod
    def at(self, query: Tensor, query_domain: Domain, u: Tensor, domain: Domain) -> Tensor:
        """The block's output at query points, where the signal's values are known too.

        Args:
            query: the values there, `(B, Nq, embed_dim)`.
            query_domain: their positions, Nq points.
            u: the signal that is integrated, `(B, N, embed_dim)`.
            domain: its points.

        Returns:
            `(B, Nq, embed_dim)`; at points of the signal, with its values, equal to `forward`.
        """
