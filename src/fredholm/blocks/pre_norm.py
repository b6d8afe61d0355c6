"""The pre-norm residual block round an integral operator."""

from typing import final

from torch import Tensor, nn

from fredholm.blocks.feed_forward import FeedForward
from fredholm.blocks.field_block import FieldBlock
from fredholm.blocks.stochastic_depth import StochasticDepth
from fredholm.domains import Domain
from fredholm.kernels import State
from fredholm.operators import IntegralOperator


@final
class PreNormBlock(FieldBlock):
    """z = u + K[LN(u)],  out = z + F(LN(z))  (ITNet, eq. 5), whatever the kernel of K.

    Args:
        operator: K, mapping `embed_dim` channels to as many.
        embed_dim: channels of the signal.
        expansion: hidden width of the feed-forward network as a multiple of `embed_dim`.
        dropout: rate after K and after the hidden layer of F.
        drop_path: chance that a sample skips each of the two branches in training.
        output_gain: scale of the start of F's last layer; see `FeedForward`.
    """

    def __init__(
        self,
        operator: IntegralOperator,
        embed_dim: int,
        *,
        expansion: float = 4,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        output_gain: float = 1.0,
    ) -> None:
        super().__init__()
        if operator.kernel.in_dim != embed_dim or operator.kernel.out_dim != embed_dim:
            raise ValueError(
                f"PreNormBlock: the operator maps {operator.kernel.in_dim} to {operator.kernel.out_dim} channels, "
                f"the block has embed_dim {embed_dim}"
            )
        self.operator_norm = nn.LayerNorm(embed_dim)
        self.operator = operator
        self.dropout = nn.Dropout(dropout)
        self.feed_forward_norm = nn.LayerNorm(embed_dim)
        self.feed_forward = FeedForward(embed_dim, expansion, dropout, output_gain)
        self.drop_path = StochasticDepth(drop_path)

    def forward(self, u: Tensor, domain: Domain, key_padding_mask: Tensor | None = None) -> Tensor:
        """`(B, N, embed_dim)` on `domain` to the same shape; `key_padding_mask` as in `IntegralOperator`."""
        return self._join(u, self.operator(self.operator_norm(u), domain, key_padding_mask=key_padding_mask))

    def at(self, query: Tensor, query_domain: Domain, u: Tensor, domain: Domain) -> Tensor:
        """See `FieldBlock.at`."""
        normed, asked = self.operator_norm(u), self.operator_norm(query)
        return self._join(query, self.operator(normed, domain, query=asked, query_domain=query_domain))

    def scan(self, u: Tensor, domain: Domain, state: State) -> tuple[Tensor, State]:
        """The next points `(B, N, embed_dim)` of a sequence, and the operator's state after them."""
        integral, state = self.operator.scan(self.operator_norm(u), domain, state=state)
        return self._join(u, integral), state

    def _join(self, u: Tensor, integral: Tensor) -> Tensor:
        z = u + self.drop_path(self.dropout(integral))
        return z + self.drop_path(self.feed_forward(self.feed_forward_norm(z)))
