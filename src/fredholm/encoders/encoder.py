"""The abstract encoder: a modality becomes a signal on a domain."""

import abc

from torch import Tensor, nn

from fredholm.domains import Domain


class Encoder(nn.Module, abc.ABC):
    """Turns raw inputs into a signal and says where it lives.

    Attributes:
        embed_dim: channels of the signal.
        pos_dim: coordinates of the domain's positions.
        has_class_token: whether the first point is a class token of its own, for a model to read its output from.
        edge_dim: features that the domain tells of a pair of points; 0: none.
    """

    embed_dim: int
    pos_dim: int
    has_class_token: bool = False
    edge_dim: int = 0

    @abc.abstractmethod
    def forward(self, inputs: Tensor) -> tuple[Tensor, Domain]:
        """Raw inputs of one batch to the signal `(B, N, embed_dim)` and its domain of N points."""
