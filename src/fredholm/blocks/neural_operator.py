"""The layer of a neural operator round an integral operator."""

from typing import final

from torch import Tensor, nn

from fredholm.blocks.feed_forward import FeedForward
from fredholm.blocks.field_block import FieldBlock
from fredholm.domains import Domain
from fredholm.operators import IntegralOperator
from fredholm.operators.integral import check_operator


@final
class NeuralOperatorBlock(FieldBlock):
    """φ(v + F φ(v)) of v = ∫ κ u dμ + W u + b, with φ the GELU, for any kernel; without F, φ(v) (FNO, eq. 2).

    b and F are additions to the paper. Nothing is normalised, since a norm at each point discards the magnitude of a
    function there.

    Args:
        operator: the integral with W and b, on as many channels as it gives.
        feed_forward: F; None: there is none.
        is_last: whether the outer activation is left out, as after the last layer.
    """

    def __init__(
        self, operator: IntegralOperator, feed_forward: FeedForward | None = None, *, is_last: bool = False
    ) -> None:
        super().__init__()
        check_operator("NeuralOperatorBlock", "operator", operator)
        self.operator = operator
        self.feed_forward: FeedForward | None
        self.add_module("feed_forward", feed_forward)
        self.activation = nn.Identity() if is_last else nn.GELU()

    def forward(self, u: Tensor, domain: Domain | None = None) -> Tensor:
        """See `FieldBlock.forward`."""
        return self._bent(self.operator(u, domain))

    def at(self, query: Tensor, query_domain: Domain, u: Tensor, domain: Domain) -> Tensor:
        """See `FieldBlock.at`."""
        return self._bent(self.operator(u, domain, query=query, query_domain=query_domain))

    def _bent(self, v: Tensor) -> Tensor:
        if self.feed_forward is not None:
            v = v + self.feed_forward(nn.functional.gelu(v))
        return self.activation(v)
