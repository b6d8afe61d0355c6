"""What a block is that maps functions to functions."""

import abc

from torch import Tensor, nn

from fredholm.domains import Domain


class FieldBlock(nn.Module, abc.ABC):
    """A block whose answer has a value at any point, of a signal that is known at some."""

    @abc.abstractmethod
    def forward(self, u: Tensor, domain: Domain) -> Tensor:
        """`(B, N, embed_dim)` on `domain` to the same shape."""

    @abc.abstractmethod
    def at(self, query: Tensor, query_domain: Domain, u: Tensor, domain: Domain) -> Tensor:
        """What the block makes of a signal whose values are known at other points too.

        Args:
            query: the values there, `(B, Nq, embed_dim)`.
            query_domain: where that is, Nq points.
            u: the signal that is integrated, `(B, N, embed_dim)`.
            domain: where it lives.

        Returns:
            `(B, Nq, embed_dim)`; at points of the signal, with its values, what `forward` gives there.
        """
