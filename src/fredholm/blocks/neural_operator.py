"""The layer of a neural operator round an integral operator."""

from typing import final

from torch import Tensor, nn

from fredholm.blocks.field_block import FieldBlock
from fredholm.domains import Domain
from fredholm.operators import IntegralOperator


@final
class NeuralOperatorBlock(FieldBlock):
    """φ(∫ κ u dμ + W u + b) with φ the GELU (FNO, eq. 2), whatever the kernel; b is an addition.

    Nothing is normalised, since a norm at each point forgets how large a function is there.

    Args:
        operator: the integral with W and b, on as many channels as it gives.
        is_last: whether the activation is left out, as after the last layer.
    """

    def __init__(self, operator: IntegralOperator, *, is_last: bool = False) -> None:
        super().__init__()
        self.operator = operator
        self.activation = nn.Identity() if is_last else nn.GELU()

    def forward(self, u: Tensor, domain: Domain | None = None) -> Tensor:
        """See `FieldBlock.forward`."""
        return self.activation(self.operator(u, domain))

    def at(self, query: Tensor, query_domain: Domain, u: Tensor, domain: Domain) -> Tensor:
        """See `FieldBlock.at`."""
        return self.activation(self.operator(u, domain, query=query, query_domain=query_domain))
